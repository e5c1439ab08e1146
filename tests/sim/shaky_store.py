"""The real SQLite store without its threads, behind one whose commits go wrong."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from aioflow.errors import BatchRefused, StoreUnavailable
from aioflow.rows import Batch
from aioflow.secrets import Vault
from aioflow.store.lock import FileLock
from aioflow.store.sqlite import SqliteStore
from aioflow.store.sqlite_file import open_reader, open_writer, prepare, translated
from tests.sim.faults import Faults

__all__ = ("Crash", "ShakyStore", "open_inline", "template")

T = TypeVar("T")
_QUIET_COMMITS = 80


class Crash(Exception):
    """The node dies now."""


def template(folder: Path) -> Path:
    """Return an empty database that every seed begins with a copy of."""
    path = folder / "template.db"
    if not path.exists():
        lock = FileLock.take(path)
        try:
            prepare(path, lock)
        finally:
            lock.release()
    return path


class _Writer:
    """Runs at once what the real one runs in the thread of its connection."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.raw = open_writer(path, synchronous="OFF")
        self.checkpointer = self

    def verify(self) -> None:
        """Nobody takes the file away here."""

    def after_commit(self, raw: sqlite3.Connection) -> None:
        """The log is never long enough to matter."""

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        await anyio.lowlevel.checkpoint()
        with translated(self._path):
            return function(self.raw)


class _Reader:
    """As much of a connection as the store touches."""

    def __init__(self, path: Path) -> None:
        self._conn = open_reader(path)

    async def _execute(self, function: Callable[..., T], *arguments: Any) -> T:
        await anyio.lowlevel.checkpoint()
        return function(*arguments)


def open_inline(empty: Path, folder: Path) -> tuple[SqliteStore, Callable[[], None]]:
    """Open a fresh copy of an empty database; the second closes it."""
    path = folder / "node.db"
    shutil.copy(empty, path)
    writer, reader = _Writer(path), _Reader(path)
    make: Any = SqliteStore

    def close() -> None:
        writer.raw.close()
        reader._conn.close()

    return make(path, Vault([b"k" * 32]), writer, [reader]), close


class ShakyStore:
    """Passes everything on; a write may fail, be heard late or not at all, or be refused."""

    def __init__(
        self,
        store: SqliteStore,
        faults: Faults,
        points: Counter[str],
        applied: Callable[[Batch], None],
    ) -> None:
        self._store = store
        self._faults = faults
        self._points = points
        self._applied = applied
        self._quiet = 0
        self._applied_no = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _happens(self, kind: str) -> bool:
        if self._faults.happens(kind):
            self._points[kind] += 1
            return True
        return False

    def _reachable(self) -> None:
        if self._happens("database away"):
            raise StoreUnavailable("away for a moment")

    async def lease_numbers(self, count: int) -> int:
        """See ``Store``."""
        self._reachable()
        return await self._store.lease_numbers(count)

    async def list_dags(self) -> Any:
        """See ``Store``."""
        self._reachable()
        return await self._store.list_dags()

    async def load_run(self, run_no: int) -> Any:
        """See ``Store``."""
        self._reachable()
        return await self._store.load_run(run_no)

    async def commit(self, batch: Batch) -> None:
        """See ``Store``; a refusal is followed by some commits that are not refused."""
        self._reachable()
        if self._happens("commit fails"):
            raise StoreUnavailable("nothing was written")
        self._quiet -= 1
        is_new = batch.number != self._applied_no
        if is_new and self._quiet < 0 and self._happens("batch refused"):
            self._quiet = _QUIET_COMMITS
            raise BatchRefused("a value nobody can store")
        if self._happens("crash before"):
            raise Crash
        if self._happens("commit delayed"):
            await anyio.sleep(0.3)
        await self._store.commit(batch)
        self._applied_no = batch.number
        self._applied(batch)
        if self._happens("crash after"):
            raise Crash
        if self._happens("reply lost"):
            raise StoreUnavailable("applied, but nobody heard")
        self._points["ok"] += 1
