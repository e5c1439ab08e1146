"""Keeps the write-ahead log of a SQLite file short without holding up its writer.

A thread of its own copies the log back while the writer goes on (a PASSIVE checkpoint).
What the writer appended meanwhile is little; the writer copies that itself after its next
commit, so that the log is empty for a moment and starts over. Only a log that grows past its
bound, because a reader holds it or the disk is slow, makes the writer wait.
"""

from __future__ import annotations

import logging
import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from aioflow.clock import Clock
from aioflow.store.sqlite_file import BUSY_MS

__all__ = ("WAL_BOUND_BYTES", "WAL_GOAL_BYTES", "Checkpointer")

WAL_GOAL_BYTES = 4 * 1024 * 1024
"""From here on the log is copied back in the background, and it is cut to this size."""

WAL_BOUND_BYTES = 64 * 1024 * 1024
"""From here on the writer waits for it."""

_PATIENCE_US = 10_000_000
"""Between two attempts that make the writer wait: a reader that holds the log may be slow."""

_FORCED_WAIT_MS = 200

_log = logging.getLogger(__name__)


class Checkpointer:
    """One for a writer; ``after_commit`` is called in the writer's thread.

    Args:
        path: The database file.
        connection: For the checkpoints; used by the thread made here alone.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, clock: Clock) -> None:
        # SQLite follows symbolic links before it names its log.
        self._wal = Path(f"{path.resolve()}-wal")
        self._connection = connection
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aioflow-checkpoint")
        # It starts with the first that is submitted. Later there may be none to be had.
        self._thread.submit(self.wal_bytes)
        self._pass: Future[None] | None = None
        self._next_force_us = 0

    def after_commit(self, writer: sqlite3.Connection) -> None:
        """Do what the length of the log calls for.

        A checkpoint that fails is logged and tried again after the next commit: the commit
        before it stands, only the log grows.
        """
        size = self.wal_bytes()
        try:
            if size > WAL_BOUND_BYTES and self._clock.monotonic_us() >= self._next_force_us:
                self._force(writer)
            elif size > WAL_GOAL_BYTES:
                self._advance(writer)
        except sqlite3.Error as exc:
            _log.warning("a checkpoint failed, the log has %d bytes: %s", size, exc)

    def wal_bytes(self) -> int:
        """Return the size of the log on disk."""
        try:
            return self._wal.stat().st_size
        except FileNotFoundError:
            return 0

    def run(self) -> None:
        """Copy back what can be copied now; blocks until it is done."""
        self._thread.submit(self._copy_back).result()

    def close(self) -> None:
        """Wait for the thread and close its connection."""
        self._thread.submit(self._connection.close)
        self._thread.shutdown()

    def _advance(self, writer: sqlite3.Connection) -> None:
        if self._pass is None:
            self._pass = self._thread.submit(self._copy_back)
        elif self._pass.done():
            finished, self._pass = self._pass, None
            finished.result()
            writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _force(self, writer: sqlite3.Connection) -> None:
        self._next_force_us = self._clock.monotonic_us() + _PATIENCE_US
        if self._pass is not None:
            finished, self._pass = self._pass, None
            finished.result()
        writer.execute(f"PRAGMA busy_timeout = {_FORCED_WAIT_MS}")
        try:
            [(is_busy, *_)] = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if is_busy:
                held = "the database's log has %d bytes and cannot be cut: somebody reads it"
                _log.warning(held, self.wal_bytes())
        finally:
            writer.execute(f"PRAGMA busy_timeout = {BUSY_MS}")

    def _copy_back(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
