"""The connection that writes a SQLite file, with the file's lock, check and checkpoints.

aiosqlite owns the thread of a connection. Whole functions run in it, not single statements.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiosqlite
import anyio

from aioflow._threads import in_thread
from aioflow.clock import SystemClock
from aioflow.errors import StoreUnavailable, SyncFailed
from aioflow.store import Durability
from aioflow.store.checkpointer import Checkpointer
from aioflow.store.database_identity import check_log, next_log
from aioflow.store.file_integrity import CHECK_SECONDS, damage, damaged
from aioflow.store.last_shutdown import LastShutdown
from aioflow.store.lock import FileLock
from aioflow.store.sqlite_file import (
    is_input_output_error,
    is_sync_failure,
    open_checkpointer,
    open_reader,
    open_writer,
    prepare,
    translated,
)
from aioflow.store.wal_file import copy_again

__all__ = ("Writer", "cross", "open_to_write", "threaded", "transaction")

_ROWS_AT_ONCE = 64

T = TypeVar("T")


@asynccontextmanager
async def open_to_write(
    path: Path, durability: Durability, home: Path | None
) -> AsyncIterator[Writer]:
    """Open a file exclusively for the block; see ``open_store``."""
    lock = await in_thread(_locked, path)
    try:
        last_shutdown = LastShutdown(path, home)
        await in_thread(prepare, path, lock, home)
        last_shutdown.begin()  # after prepare(): until then the log shows an unclean shutdown
        synchronous = "FULL" if durability == "full" else "NORMAL"
        writer = Writer(path, lock, last_shutdown, synchronous=synchronous)
        checking = None if last_shutdown.was_clean else _began_check(path)
        try:
            await writer.open()
            writer.checking = checking
            yield writer
        finally:
            with anyio.CancelScope(shield=True):
                await writer.close()
                if checking is not None:
                    await in_thread(wait, [checking])
            writer.note_end()
    finally:
        lock.release()


def _began_check(path: Path) -> Future[bool]:
    """Start the check of the file, which runs while the rest of the node starts."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="aioflow-check")
    try:
        return pool.submit(_check, path)
    except RuntimeError as exc:  # the system has no thread to spare
        raise StoreUnavailable(f"{path} cannot be checked: {exc}") from exc
    finally:
        pool.shutdown(wait=False)


def _check(path: Path) -> bool:
    """Check the file after an unclean shutdown, with a time limit.

    Return whether it was completed.
    """
    with translated(path), closing(open_reader(path)) as raw:
        found = damage(raw, CHECK_SECONDS)
    if found:
        raise damaged(path, "; ".join(found))
    return found is not None


def _locked(path: Path) -> FileLock:
    if not path.exists():
        check_log(path, b"")  # before an empty file exists that the log could seem to fit
    return FileLock.take(path)


class Writer:
    """The writing connection, with the lock, the check and the checkpoints of its file.

    Attributes:
        last_shutdown: How the previous process ended.
        checking: The check after an unclean shutdown. Its result is whether it was completed.
    """

    def __init__(
        self, path: Path, lock: FileLock, last_shutdown: LastShutdown, *, synchronous: str
    ) -> None:
        self._path = path
        self._lock = lock
        self.last_shutdown = last_shutdown
        self.checking: Future[bool] | None = None
        self._sync_failure = ""
        self._synchronous = synchronous
        self._clock = SystemClock()
        self._turn = anyio.Lock()
        self._connection: aiosqlite.Connection | None = None
        self._checkpointer: Checkpointer | None = None

    @property
    def follows_crash(self) -> bool:
        """Whether the previous process ended without closing the database."""
        return not self.last_shutdown.was_clean

    @property
    def checkpointer(self) -> Checkpointer:
        """The checkpointer of the open file."""
        if self._checkpointer is None:
            raise StoreUnavailable(f"the database {self._path} is not open")
        return self._checkpointer

    async def open(self) -> None:
        """Open the file, which must have been prepared."""
        with translated(self._path):
            raw = await in_thread(open_checkpointer, self._path)
        self._checkpointer = Checkpointer(self._path, raw, self._clock, self._sync_failed)
        connector = partial(open_writer, self._path, synchronous=self._synchronous)
        self._connection = await threaded(connector, self._path)

    async def close(self) -> None:
        """Wait for running work, and close the file. The log is copied back."""
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            await in_thread(checkpointer.close)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def checked(self) -> bool:
        """Wait for the check after an unclean shutdown. Return whether it covered the whole file.

        Raises:
            ForeignDatabase: If the file is damaged.
        """
        return self.checking is None or await in_thread(self.checking.result)

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function in the thread of the connection.

        Raises:
            StoreError: The error of the store for an error of SQLite.
        """
        async with self._turn:
            self.raise_sync_failure()
            if self._connection is None:
                await self.open()
            assert self._connection is not None  # noqa: S101 - open() raises otherwise
            try:
                with translated(self._path):
                    return await cross(self._connection, partial(self._guarded, function))
            except StoreUnavailable as exc:
                # A disk that failed to write may have lost data that SQLite considers written.
                if is_input_output_error(exc.__cause__):
                    with anyio.CancelScope(shield=True):
                        await self.close()
                raise

    @contextmanager
    def transaction(self, raw: sqlite3.Connection) -> Iterator[None]:
        """Write in the block, all or nothing. Called in the thread of the connection."""
        with transaction(raw):
            if self.checkpointer.may_start_over:
                next_log(raw)
            yield

    def after_commit(self, raw: sqlite3.Connection) -> None:
        """Keep the log short. Called in the thread of the connection."""
        self.checkpointer.after_commit(raw)

    def verify(self) -> None:
        """Check that the file is still the locked one, and that no sync has failed."""
        self.raise_sync_failure()
        self._lock.verify()

    def raise_sync_failure(self, cause: BaseException | None = None) -> None:
        """Raise ``SyncFailed`` if a sync has failed. Later errors are consequences of that."""
        if self._sync_failure:
            raise SyncFailed(self._sync_failure) from cause

    def note_end(self) -> None:
        """Note that the file was closed.

        After a failed sync, the next start must recover the log.
        """
        if not self._sync_failure:
            self.last_shutdown.close()

    def _guarded(self, function: Callable[[sqlite3.Connection], T], raw: sqlite3.Connection) -> T:
        try:
            return function(raw)
        except sqlite3.Error as exc:
            if is_sync_failure(exc):
                self._sync_failed(exc)
            self.raise_sync_failure(exc)
            raise

    def _sync_failed(self, exc: sqlite3.Error) -> None:
        """Detach SQLite from the file, at once and in any thread.

        On closing, SQLite would copy the rest of the log, sync that, and remove the log. The
        earlier pages would then exist only in the memory of the system.
        """
        if not self._sync_failure:
            self._sync_failure = (
                f"the disk failed to sync the database {self._path} ({exc}): what was written "
                "since is not safe. This process ends; the next start writes all of it again"
            )
            self._lock.sever()
            copy_again(self._path, keep_open=True)  # in case another program closes it last
            self.last_shutdown.fail(self._sync_failure)


async def threaded(connector: Callable[[], sqlite3.Connection], path: Path) -> aiosqlite.Connection:
    """Open a connection that has its own thread."""
    # Opened before aiosqlite gets it: if aiosqlite's connector fails, its thread is leaked.
    with translated(path):
        raw = await in_thread(connector)
        return await aiosqlite.Connection(lambda: raw, _ROWS_AT_ONCE)


async def cross(connection: aiosqlite.Connection, function: Callable[[sqlite3.Connection], T]) -> T:
    """Run a function in the thread of the connection and return its result."""
    # The whole function runs there, not single statements. aiosqlite has no public name for that.
    execute: Callable[..., Awaitable[T]] = connection._execute  # noqa: SLF001
    return await execute(function, connection._conn)  # noqa: SLF001


@contextmanager
def transaction(raw: sqlite3.Connection) -> Iterator[None]:
    """Write in the block, all or nothing."""
    # Immediate: a transaction that reads before it writes fails if another one wrote in between,
    # and waiting does not help.
    raw.execute("BEGIN IMMEDIATE")
    try:
        yield
        raw.execute("COMMIT")
    finally:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
