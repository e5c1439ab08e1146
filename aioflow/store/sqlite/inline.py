"""A SQLite store without threads and syncs, for tests of DAGs.

The file, the schema and the statements are those of ``SqliteStore``. Everything runs in the
caller's thread instead of separate threads for the connections.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

import aiosqlite
import anyio.lowlevel

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.store.sqlite.database_file import (
    open_reader,
    open_writer,
    prepare_file,
    translated_errors,
)
from aioflow.store.sqlite.lock import FileLock
from aioflow.store.sqlite.store import SqliteStore
from aioflow.store.sqlite.writer import Writer, transaction

__all__ = (
    "InlineReader",
    "InlineStore",
    "InlineWriter",
    "another_reader",
    "empty_database",
    "open_inline",
)

T = TypeVar("T")


@contextmanager
def open_inline(path: Path, vault: Vault) -> Iterator[InlineStore]:
    """Create an empty database and open it. No other process may use the file."""
    path.write_bytes(empty_database())
    with (
        closing(open_writer(path, synchronous="OFF")) as writing,
        closing(open_reader(path)) as reading,
    ):
        yield InlineStore(path, vault, writing, reading)


@cache
def empty_database() -> bytes:
    """Return the bytes of a database without rows.

    They are cached in the process, because the migrations take longer than most tests.
    """
    with tempfile.TemporaryDirectory(prefix="aioflow-") as folder:
        path = Path(folder) / "empty.db"
        lock = FileLock.take(path)
        try:
            prepare_file(path, lock)
        finally:
            lock.release()
        return path.read_bytes()


class InlineWriter(Writer):
    """The writing connection, used in the caller's thread."""

    def __init__(self, path: Path, raw: sqlite3.Connection, *, follows_crash: bool = False) -> None:
        self._path = path
        self._raw = raw
        self._follows_crash = follows_crash

    @property
    def follows_crash(self) -> bool:
        """See ``Writer``."""
        return self._follows_crash

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """See ``Writer``."""
        await anyio.lowlevel.checkpoint()
        with translated_errors(self._path):
            return function(self._raw)

    def verify(self) -> None:
        """Do nothing: no other process uses the file."""

    async def checked(self) -> bool:
        """Return ``True``: the file is new."""
        return True

    def raise_sync_failure(self, cause: BaseException | None = None) -> None:
        """Do nothing: nothing is synced."""

    @contextmanager
    def transaction(self, raw: sqlite3.Connection) -> Iterator[None]:
        """See ``Writer``."""
        with transaction(raw):
            yield

    def after_commit(self, raw: sqlite3.Connection) -> None:
        """Do nothing: the file is deleted before its log grows long."""


class InlineReader:
    """The subset of an aiosqlite connection that the store uses, run in the caller's thread."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._conn = raw

    async def _execute(self, function: Callable[..., T], *arguments: object) -> T:
        await anyio.lowlevel.checkpoint()
        return function(*arguments)


@asynccontextmanager
async def another_reader(path: Path) -> AsyncIterator[aiosqlite.Connection]:
    """Open another reading connection."""
    with closing(open_reader(path)) as raw:
        yield cast(aiosqlite.Connection, InlineReader(raw))


def _nothing() -> None:
    """Do nothing."""


class InlineStore(SqliteStore):
    """See ``Store``.

    Attributes:
        before_commit: Called before each commit. A crash at this point is simulated by raising.
        after_commit: Called when a batch is durable, before its commit returns.
    """

    def __init__(
        self, path: Path, vault: Vault, writing: sqlite3.Connection, reading: sqlite3.Connection
    ) -> None:
        reader = cast(aiosqlite.Connection, InlineReader(reading))
        super().__init__(path, vault, InlineWriter(path, writing), [reader], another_reader)
        self.before_commit = self.after_commit = _nothing

    async def commit(self, batch: Batch) -> None:
        """See ``Store``."""
        self.before_commit()
        await super().commit(batch)
        self.after_commit()
