"""A SQLite store without threads and without a disk that is waited for: for tests of DAGs.

The file, the schema and the statements are those of ``SqliteStore``. What that runs in the
threads of its connections is run here at once, in the thread of the caller.
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
from aioflow.store.lock import FileLock
from aioflow.store.sqlite import SqliteStore
from aioflow.store.sqlite_file import open_reader, open_writer, prepare, translated
from aioflow.store.writer import Writer, transaction

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
    """Make an empty database and open it; nobody else may have it."""
    path.write_bytes(empty_database())
    with (
        closing(open_writer(path, synchronous="OFF")) as writing,
        closing(open_reader(path)) as reading,
    ):
        yield InlineStore(path, vault, writing, reading)


@cache
def empty_database() -> bytes:
    """Return a database without rows.

    Migrating one takes longer than most tests; this process does it once.
    """
    with tempfile.TemporaryDirectory(prefix="aioflow-") as folder:
        path = Path(folder) / "empty.db"
        lock = FileLock.take(path)
        try:
            prepare(path, lock)
        finally:
            lock.release()
        return path.read_bytes()


class InlineWriter(Writer):
    """The connection that writes, in the thread of whoever wants to write."""

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
        with translated(self._path):
            return function(self._raw)

    def verify(self) -> None:
        """The file is nobody else's."""

    async def checked(self) -> bool:
        """It has just been made."""
        return True

    def raise_sync_failure(self, cause: BaseException | None = None) -> None:
        """Nothing is synced."""

    @contextmanager
    def transaction(self, raw: sqlite3.Connection) -> Iterator[None]:
        """See ``Writer``."""
        with transaction(raw):
            yield

    def after_commit(self, raw: sqlite3.Connection) -> None:
        """The file goes before its log is long."""


class InlineReader:
    """As much of a connection as the store touches."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._conn = raw

    async def _execute(self, function: Callable[..., T], *arguments: object) -> T:
        await anyio.lowlevel.checkpoint()
        return function(*arguments)


@asynccontextmanager
async def another_reader(path: Path) -> AsyncIterator[aiosqlite.Connection]:
    """Open one more connection that reads."""
    with closing(open_reader(path)) as raw:
        yield cast(aiosqlite.Connection, InlineReader(raw))


def _nothing() -> None:
    """Do nothing."""


class InlineStore(SqliteStore):
    """See ``Store``.

    Attributes:
        before_commit: Called before each commit; what it raises is as a crash there.
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
