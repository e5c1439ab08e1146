"""The real SQLite store without threads, on a file whose power may be cut at any statement.

After a power cut, the file contains what a disk guarantees: every commit that returned, and any
prefix of the log written by the commit in progress, possibly with a torn frame.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any, cast

import aiosqlite

from aioflow.crypto import Vault
from aioflow.store.sqlite.database_file import open_reader, open_writer
from aioflow.store.sqlite.inline import InlineReader, InlineWriter, another_reader, empty_database
from aioflow.store.sqlite.store import SqliteStore

__all__ = ("Disk", "PowerCut")

KEYS = (b"k" * 32, b"l" * 32)


class PowerCut(Exception):
    """The machine lost power.

    Attributes:
        is_unsure: Whether the transaction may have reached the disk.
    """

    def __init__(self, *, is_unsure: bool) -> None:
        super().__init__()
        self.is_unsure = is_unsure


class _Statements:
    """A connection that cuts the power at a given statement, without a rollback."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw
        self._left = -1

    def arm(self, statements: int) -> None:
        """Cut the power at the statement with the given number, counted from now."""
        self._left = statements

    @property
    def in_transaction(self) -> bool:
        return self._left != 0 and self._raw.in_transaction

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        self._count(sql)
        return self._raw.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        self._count(sql)
        return self._raw.executemany(sql, parameters)

    def close(self) -> None:
        self._raw.close()

    def _count(self, sql: str) -> None:
        if self._left > 0:
            self._left -= 1
            if not self._left:
                if is_commit := sql == "COMMIT":
                    self._raw.execute(sql)
                raise PowerCut(is_unsure=is_commit)


class Disk:
    """A database file with a store on it.

    Attributes:
        store: The current store. A power cut replaces it.
        raw: The writing connection.
        keys: The keys that later stores are opened with. The first one encrypts.
    """

    def __init__(self, folder: Path) -> None:
        self.keys: tuple[bytes, ...] = KEYS
        self.everything = Vault(KEYS)
        self._folder = folder
        self._count = 0
        self._path.write_bytes(empty_database())
        self._open()

    @property
    def _path(self) -> Path:
        return self._folder / f"node{self._count}.db"

    @property
    def _log(self) -> Path:
        return Path(f"{self._path}-wal")

    def _open(self) -> None:
        self.raw = _Statements(open_writer(self._path, synchronous="OFF"))
        self._reading = open_reader(self._path)
        self.store = self.another_store()

    def use_keys(self, keys: tuple[bytes, ...]) -> None:
        """Reopen the store with the given keys. The first one encrypts."""
        if keys != self.keys:
            self.keys = keys
            self.store = self.another_store()

    def another_store(self, epoch: int | None = None) -> SqliteStore:
        """Return another store on the same file, as a second node would have."""
        raw = cast(sqlite3.Connection, self.raw)
        writer = InlineWriter(self._path, raw, follows_crash=True)
        reader = cast(aiosqlite.Connection, InlineReader(self._reading))
        store = SqliteStore(self._path, Vault(self.keys), writer, [reader], another_reader)
        store._epoch = epoch
        return store

    def close(self) -> None:
        """Close the file."""
        self.raw.close()
        self._reading.close()

    def log_bytes(self) -> int:
        """Return the size of the write-ahead log in bytes."""
        return self._log.stat().st_size if self._log.exists() else 0

    def come_back(self, log_bytes: int) -> None:
        """Reopen the database after a power cut, with the part of the log that reached the disk."""
        old, old_log = self._path, self._log
        self._count += 1
        shutil.copy(old, self._path)
        if old_log.exists():
            shutil.copy(old_log, self._log)
            with self._log.open("r+b") as log:
                log.truncate(log_bytes)
        self._count -= 1
        self.close()
        old.unlink()
        self._count += 1
        self._open()
