"""Checkpoints of a SQLite file, which do not block the writer.

A separate thread copies the log to the database file while the writer continues (a PASSIVE
checkpoint). In the meantime the writer appends only a little to the log. After its next commit, the
writer copies this rest itself, so that the log is empty for a moment and starts over. The writer
has to wait only if the log reaches ``WAL_BOUND_BYTES``, because a reader blocks checkpoints or the
disk is slow.

If a checkpoint does not reach the end of the log, SQLite does not sync what it has copied. If a
later sync fails, it is unknown which pages are on the disk, so nothing may be copied any more.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from aioflow.clock import Clock
from aioflow.store.sqlite.database_file import BUSY_MS, is_sync_failure
from aioflow.store.sqlite.wal_file import log_head, log_path

__all__ = ("WAL_BOUND_BYTES", "WAL_GOAL_BYTES", "Checkpointer")

WAL_GOAL_BYTES = 4 * 1024 * 1024
"""Log size that starts a background checkpoint, and to which the log is truncated."""

WAL_BOUND_BYTES = 64 * 1024 * 1024
"""Log size at which the writer waits for a checkpoint."""

_PATIENCE_US = 10_000_000
"""Minimum time between checkpoints that make the writer wait. A reader may block each of them."""

_FORCED_WAIT_MS = 200

_log = logging.getLogger(__name__)


class Checkpointer:
    """The checkpoints of one writer, which calls ``after_commit`` in its own thread.

    Args:
        path: The database file.
        connection: A connection for the checkpoints, used only by the thread of this object.
        on_sync_failure: Called if a sync failed, in any thread, before anything else is copied.

    Attributes:
        may_start_over: Whether the next transaction may be the first of a new log.
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
        # Start the thread now, with a first task. Later, the system might not allow another thread.
        self._thread.submit(self.wal_bytes)
        self._pass: Future[None] | None = None
        self._next_force_us = 0

    def after_commit(self, writer: sqlite3.Connection) -> None:
        """Checkpoint if the log is long enough.

        A failed checkpoint is logged, and repeated after the next commit. The last commit remains
        valid; only the log grows.

        Raises:
            sqlite3.Error: If a sync failed.
        """
        if self.may_start_over:
            self._check_for_new_log()
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
        """Copy as much of the log as current readers allow. Block until the copy is complete."""
        self.may_start_over = True
        self._thread.submit(self._copy_back).result()

    def close(self) -> None:
        """Wait for the thread and close its connection."""
        self._thread.submit(self._connection.close)
        self._thread.shutdown()

    def _check_for_new_log(self) -> None:
        """Check whether a new log has started, and update ``may_start_over``.

        If a new log has started, the following one can start only after another checkpoint.
        """
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
                held = "the database's log has %d bytes and cannot be truncated: a reader holds it"
                _log.warning(held, self.wal_bytes())
        finally:
            writer.execute(f"PRAGMA busy_timeout = {BUSY_MS}")

    def _copy_back(self) -> None:
        self._checkpoint(self._connection, "PASSIVE")

    def _checkpoint(self, connection: sqlite3.Connection, mode: str) -> bool:
        """Run one checkpoint. Return whether a reader or writer blocked it."""
        with self._one_pass:
            try:
                [(is_busy, *_)] = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
            except sqlite3.Error as exc:
                if is_sync_failure(exc):
                    self._on_sync_failure(exc)
                raise
        return bool(is_busy)
