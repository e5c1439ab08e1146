"""The connection that writes a SQLite file, with the file's lock, check and checkpoints.

aiosqlite owns the thread of a connection. Each call runs a whole function in the thread, not a
single statement.
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
from aioflow.store.sqlite.checkpointer import Checkpointer
from aioflow.store.sqlite.database_file import (
    CHECK_SECONDS,
    damaged_file,
    is_input_output_error,
    is_sync_failure,
    open_checkpointer,
    open_reader,
    open_writer,
    prepare_file,
    quick_check,
    translated_errors,
)
from aioflow.store.sqlite.lock import FileLock
from aioflow.store.sqlite.wal_file import (
    LastShutdown,
    check_log,
    copy_again,
    next_log,
)

__all__ = (
    "Writer",
    "open_threaded",
    "open_to_write",
    "run_in_its_thread",
    "transaction",
)


_ROWS_AT_ONCE = 64

T = TypeVar("T")


@asynccontextmanager
async def open_to_write(
    path: Path, durability: Durability, home: Path | None
) -> AsyncIterator[Writer]:
    """Open a file for exclusive writing during a ``with`` block; see ``open_store``."""
    lock = await in_thread(_take_lock, path)
    try:
        last_shutdown = LastShutdown(path, home)
        await in_thread(prepare_file, path, lock, home)
        last_shutdown.begin()  # after prepare(), which finds an unclean shutdown by the log
        synchronous = "FULL" if durability == "full" else "NORMAL"
        writer = Writer(path, lock, last_shutdown, synchronous=synchronous)
        checking = None if last_shutdown.was_clean else _start_check(path)
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


def _start_check(path: Path) -> Future[bool]:
    """Start the check of the file. It runs while the rest of the node starts."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="aioflow-check")
    try:
        return pool.submit(_check_file, path)
    except RuntimeError as exc:  # the system cannot start another thread
        raise StoreUnavailable(f"{path} cannot be checked: {exc}") from exc
    finally:
        pool.shutdown(wait=False)


def _check_file(path: Path) -> bool:
    """Check the file after an unclean shutdown, with a time limit.

    Return whether the check was completed.
    """
    with translated_errors(path), closing(open_reader(path)) as raw:
        found = quick_check(raw, CHECK_SECONDS)
    if found:
        raise damaged_file(path, "; ".join(found))
    return found is not None


def _take_lock(path: Path) -> FileLock:
    if not path.exists():
        check_log(path, b"")  # before ``take`` creates an empty file that the log may seem to fit
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
        self._turn = anyio.Lock(fast_acquire=True)  # the holder yields to the loop by waiting
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
        """Open the file. It must have been prepared with ``prepare_file``."""
        with translated_errors(self._path):
            raw = await in_thread(open_checkpointer, self._path)
        self._checkpointer = Checkpointer(self._path, raw, self._clock, self._sync_failed)
        connector = partial(open_writer, self._path, synchronous=self._synchronous)
        self._connection = await open_threaded(connector, self._path)

    async def close(self) -> None:
        """Wait for running work, and close the file. SQLite then copies the rest of the log."""
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
            StoreError: If SQLite reports an error; translated by ``translated_errors``.
        """
        async with self._turn:
            self.raise_sync_failure()
            if self._connection is None:
                await self.open()
            assert self._connection is not None  # noqa: S101 - open() raises otherwise
            try:
                with translated_errors(self._path):
                    return await run_in_its_thread(
                        self._connection, partial(self._guarded, function)
                    )
            except StoreUnavailable as exc:
                # If the disk failed, data that SQLite considers written may be lost.
                if is_input_output_error(exc.__cause__):
                    with anyio.CancelScope(shield=True):
                        await self.close()
                raise

    @contextmanager
    def transaction(self, raw: sqlite3.Connection) -> Iterator[None]:
        """Write in a transaction, all or nothing. Called in the thread of the connection."""
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
        """Raise ``SyncFailed`` if a sync has failed. Any later error is a consequence of that."""
        if self._sync_failure:
            raise SyncFailed(self._sync_failure) from cause

    def note_end(self) -> None:
        """Delete the note that the file is open.

        After a failed sync the note remains, because the next start must recover the log.
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
        """Detach SQLite from the file at once. Called in any thread.

        Otherwise SQLite would copy and sync the rest of the log when it closes the file, and delete
        the log. Pages copied earlier would then exist only in the memory of the system.
        """
        if not self._sync_failure:
            self._sync_failure = (
                f"the disk failed to sync the database {self._path} ({exc}): what was written "
                "since is not safe. This process ends; the next start writes all of it again"
            )
            self._lock.detach()
            copy_again(self._path, keep_open=True)  # another program may close the file last
            self.last_shutdown.fail(self._sync_failure)


async def open_threaded(
    connector: Callable[[], sqlite3.Connection], path: Path
) -> aiosqlite.Connection:
    """Open a connection that has its own thread."""
    # Connect before aiosqlite gets the connection, because aiosqlite leaks a thread if it cannot
    # connect.
    with translated_errors(path):
        raw = await in_thread(connector)
        return await aiosqlite.Connection(lambda: raw, _ROWS_AT_ONCE)


async def run_in_its_thread(
    connection: aiosqlite.Connection, function: Callable[[sqlite3.Connection], T]
) -> T:
    """Run a function in the thread of the connection and return its result."""
    # aiosqlite has no public method that runs a whole function in its thread.
    execute: Callable[..., Awaitable[T]] = connection._execute  # noqa: SLF001
    return await execute(function, connection._conn)  # noqa: SLF001


@contextmanager
def transaction(raw: sqlite3.Connection) -> Iterator[None]:
    """Write in a transaction, all or nothing."""
    # The transaction must be immediate. Otherwise, if it reads first and another connection writes
    # before its own first write, it fails, and waiting does not help.
    raw.execute("BEGIN IMMEDIATE")
    try:
        yield
        raw.execute("COMMIT")
    finally:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
