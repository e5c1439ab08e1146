"""Keeps the write-ahead log of a SQLite file short without holding up its writer.

A thread of its own copies the log back while the writer goes on (a PASSIVE checkpoint).
What the writer appended meanwhile is little; the writer copies that itself after its next
commit, so that the log is empty for a moment and starts over. Only a log that grows past its
bound, because a reader holds it or the disk is slow, makes the writer wait.

A pass that does not reach the end of the log is not synced by SQLite. If the sync of a later one
fails, nothing tells which pages the disk has: nothing may be copied any more.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from aioflow.clock import Clock
from aioflow.store.sqlite_file import BUSY_MS, is_sync_failure
from aioflow.store.wal_file import log_head, log_path

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
        on_sync_failure: Called in any thread, before anything else is copied.

    Attributes:
        may_start_over: The next transaction may be the first of a log.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        clock: Clock,
        on_sync_failure: Callable[[sqlite3.Error], None],
    ) -> None:
        self._path = path
        self._wal = log_path(path)
        self._connection = connection
        self._on_sync_failure = on_sync_failure
        self._one_pass = Lock()
        self._head = log_head(path)
        self.may_start_over = True
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

        Raises:
            sqlite3.Error: If a sync failed.
        """
        if self.may_start_over:
            self._look_whether_started_over()
        size = self.wal_bytes()
        try:
            if size > WAL_BOUND_BYTES and self._clock.monotonic_us() >= self._next_force_us:
                self._force(writer)
            elif size > WAL_GOAL_BYTES:
                self._advance(writer)
        except sqlite3.Error as exc:
            if is_sync_failure(exc):
                raise
            _log.warning("a checkpoint failed, the log has %d bytes: %s", size, exc)

    def wal_bytes(self) -> int:
        """Return the size of the log on disk."""
        try:
            return self._wal.stat().st_size
        except FileNotFoundError:
            return 0

    def run(self) -> None:
        """Copy back what can be copied now; blocks until it is done."""
        self.may_start_over = True
        self._thread.submit(self._copy_back).result()

    def close(self) -> None:
        """Wait for the thread and close its connection."""
        self._thread.submit(self._connection.close)
        self._thread.shutdown()

    def _look_whether_started_over(self) -> None:
        """See whether a log began since the last pass; then none does before the next one."""
        head = log_head(self._path)
        if head != self._head:
            self._head = head
            self.may_start_over = self._pass is not None and not self._pass.done()

    def _advance(self, writer: sqlite3.Connection) -> None:
        if self._pass is None:
            self.may_start_over = True
            self._pass = self._thread.submit(self._copy_back)
        elif self._pass.done():
            finished, self._pass = self._pass, None
            finished.result()
            self.may_start_over = True
            self._checkpoint(writer, "PASSIVE")

    def _force(self, writer: sqlite3.Connection) -> None:
        self._next_force_us = self._clock.monotonic_us() + _PATIENCE_US
        if self._pass is not None:
            finished, self._pass = self._pass, None
            finished.result()
        self.may_start_over = True
        writer.execute(f"PRAGMA busy_timeout = {_FORCED_WAIT_MS}")
        try:
            if self._checkpoint(writer, "TRUNCATE"):
                held = "the database's log has %d bytes and cannot be cut: somebody reads it"
                _log.warning(held, self.wal_bytes())
        finally:
            writer.execute(f"PRAGMA busy_timeout = {BUSY_MS}")

    def _copy_back(self) -> None:
        self._checkpoint(self._connection, "PASSIVE")

    def _checkpoint(self, connection: sqlite3.Connection, mode: str) -> bool:
        """Do a pass; return whether something was in its way."""
        with self._one_pass:
            try:
                [(is_busy, *_)] = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
            except sqlite3.Error as exc:
                if is_sync_failure(exc):
                    self._on_sync_failure(exc)
                raise
        return bool(is_busy)
