"""The connection that writes a SQLite file, and what keeps that file in order.

aiosqlite owns the thread of a connection; whole functions cross into it, not statements.
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
from aioflow.crypto import Vault
from aioflow.errors import StoreUnavailable, SyncFailed
from aioflow.store import Durability
from aioflow.store.checkpointer import Checkpointer
from aioflow.store.database_identity import check_log, next_log
from aioflow.store.file_integrity import CHECK_SECONDS, damage, damaged
from aioflow.store.last_shutdown import LastEnd
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
    path: Path, vault: Vault, durability: Durability, home: Path | None
) -> AsyncIterator[Writer]:
    """Open a file for the block, alone; see ``open_store``."""
    lock = await in_thread(_locked, path)
    try:
        last_end = LastEnd(path, home)
        await in_thread(prepare, path, lock, vault, home)
        last_end.begin()  # with the log, what told of an unclean end has gone: not before this
        synchronous = "FULL" if durability == "full" else "NORMAL"
        writer = Writer(path, lock, last_end, synchronous=synchronous)
        checking = None if last_end.was_clean else _began_check(path)
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
    """Begin to check the file, while the rest of a node starts: few of its threads wait for it."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="aioflow-check")
    try:
        return pool.submit(_check, path)
    except RuntimeError as exc:  # there is no thread to be had now
        raise StoreUnavailable(f"{path} cannot be checked: {exc}") from exc
    finally:
        pool.shutdown(wait=False)


def _check(path: Path) -> bool:
    """Check the file after an unclean end, for a while; return whether that was all of it."""
    with translated(path), closing(open_reader(path)) as raw:
        found = damage(raw, CHECK_SECONDS)
    if found:
        raise damaged(path, "; ".join(found))
    return found is not None


def _locked(path: Path) -> FileLock:
    if not path.exists():
        check_log(path, b"")  # before there is a file that it could seem to fit
    return FileLock.take(path)


class Writer:
    """The connection that writes, and what keeps its file in order.

    Attributes:
        last_end: How the life before ended.
        checking: The check after an unclean end; says whether that was all of the file.
    """

    def __init__(self, path: Path, lock: FileLock, last_end: LastEnd, *, synchronous: str) -> None:
        self._path = path
        self._lock = lock
        self.last_end = last_end
        self.checking: Future[bool] | None = None
        self._sync_failure = ""
        self._synchronous = synchronous
        self._clock = SystemClock()
        self._turn = anyio.Lock()
        self._connection: aiosqlite.Connection | None = None
        self._checkpointer: Checkpointer | None = None

    @property
    def follows_crash(self) -> bool:
        """Whether the life before ended without closing the database."""
        return not self.last_end.was_clean

    @property
    def checkpointer(self) -> Checkpointer:
        """Of the open file."""
        if self._checkpointer is None:
            raise StoreUnavailable(f"the database {self._path} is not open")
        return self._checkpointer

    async def open(self) -> None:
        """Open the file; it must have been prepared."""
        with translated(self._path):
            raw = await in_thread(open_checkpointer, self._path)
        self._checkpointer = Checkpointer(self._path, raw, self._clock, self._sync_failed)
        connector = partial(open_writer, self._path, synchronous=self._synchronous)
        self._connection = await threaded(connector, self._path)

    async def close(self) -> None:
        """Wait for what is under way, and close the file. The log is copied back."""
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            await in_thread(checkpointer.close)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def checked(self) -> bool:
        """Wait for the check after an unclean end; return whether that was all of the file.

        Raises:
            ForeignDatabase: If it is damaged.
        """
        return self.checking is None or await in_thread(self.checking.result)

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function in the thread of the connection.

        Raises:
            StoreError: What the errors of SQLite mean.
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
                # A disk that failed to write may have dropped what SQLite believes it holds.
                if is_input_output_error(exc.__cause__):
                    with anyio.CancelScope(shield=True):
                        await self.close()
                raise

    @contextmanager
    def transaction(self, raw: sqlite3.Connection) -> Iterator[None]:
        """Write in the block, all of it or nothing; in the thread of the connection."""
        with transaction(raw):
            if self.checkpointer.may_start_over:
                next_log(raw)
            yield

    def after_commit(self, raw: sqlite3.Connection) -> None:
        """Keep the log short; in the thread of the connection."""
        self.checkpointer.after_commit(raw)

    def verify(self) -> None:
        """Check that the file is still the one that was locked, and that the disk has it."""
        self.raise_sync_failure()
        self._lock.verify()

    def raise_sync_failure(self, cause: BaseException | None = None) -> None:
        """Raise it, if a sync has failed: whatever else fails then follows from that."""
        if self._sync_failure:
            raise SyncFailed(self._sync_failure) from cause

    def note_end(self) -> None:
        """Note that the file was closed. What failed to be synced is left for the next start."""
        if not self._sync_failure:
            self.last_end.close()

    def _guarded(self, function: Callable[[sqlite3.Connection], T], raw: sqlite3.Connection) -> T:
        try:
            return function(raw)
        except sqlite3.Error as exc:
            if is_sync_failure(exc):
                self._sync_failed(exc)
            self.raise_sync_failure(exc)
            raise

    def _sync_failed(self, exc: sqlite3.Error) -> None:
        """Take the file out of SQLite's hands; in any thread, at once.

        At its close SQLite would copy the rest of the log, sync that, and remove the log: the
        pages before would be nowhere but in the memory of the system.
        """
        if not self._sync_failure:
            self._sync_failure = (
                f"the disk failed to sync the database {self._path} ({exc}): what was written "
                "since is not safe. This process ends; the next start writes all of it again"
            )
            self._lock.sever()
            copy_again(self._path, keep_open=True)  # also if another program closes it last
            self.last_end.fail(self._sync_failure)


async def threaded(connector: Callable[[], sqlite3.Connection], path: Path) -> aiosqlite.Connection:
    """Open a connection that has a thread of its own."""
    # Opened before aiosqlite has it: where its connector fails, it leaves its thread behind.
    with translated(path):
        raw = await in_thread(connector)
        return await aiosqlite.Connection(lambda: raw, _ROWS_AT_ONCE)


async def cross(connection: aiosqlite.Connection, function: Callable[[sqlite3.Connection], T]) -> T:
    """Return what a function returns in the thread of the connection."""
    # The whole function crosses, not its statements. aiosqlite has no public name for that.
    execute: Callable[..., Awaitable[T]] = connection._execute  # noqa: SLF001
    return await execute(function, connection._conn)  # noqa: SLF001


@contextmanager
def transaction(raw: sqlite3.Connection) -> Iterator[None]:
    """Write in the block, all of it or nothing."""
    # Immediate: a transaction that reads first and then writes fails where another came in
    # between, and no waiting helps it.
    raw.execute("BEGIN IMMEDIATE")
    try:
        yield
        raw.execute("COMMIT")
    finally:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
