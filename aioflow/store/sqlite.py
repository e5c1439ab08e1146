"""The store on a SQLite file: one writer in a thread of its own, crossed into once a batch.

aiosqlite owns the threads. A batch, a claim, a page of rows is each *one* function that runs
there on the raw connection and does everything; awaiting statement by statement would cost
five times as much. Such a function ends by itself when its caller is cancelled, so that no
transaction stays half open.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from copy import copy
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import aiosqlite
import anyio

from aioflow.clock import SystemClock
from aioflow.errors import BatchRefused, StoreSlow, StoreUnavailable, StrangeDatabase
from aioflow.rows import Batch, NodeFacts
from aioflow.secrets import Vault
from aioflow.store import Claim, Durability, Store, journal
from aioflow.store.changes import Changes, bind, named_by
from aioflow.store.checkpointer import Checkpointer
from aioflow.store.fence import NODE_NO, claiming, confirm_applied
from aioflow.store.in_order import Fetch
from aioflow.store.lock import FileLock
from aioflow.store.reading import Question, Reading
from aioflow.store.rows import Values
from aioflow.store.sql import (
    CLAIM_NODE,
    FENCE,
    INSERT_JOURNAL,
    LEASE_NUMBERS,
    READ_NODE,
    SQLITE,
    compiled,
    written,
)
from aioflow.store.sqlite_file import (
    check_reader,
    is_input_output_error,
    open_checkpointer,
    open_reader,
    open_writer,
    prepare,
    translated,
)
from aioflow.store.sqlite_text import LongAnswer, answered
from aioflow.threads import in_thread

__all__ = ("SqliteStore", "Writer", "open_sqlite")

_READERS = 2
_ASKED = 2
"""Of those who may have to wait, besides."""

_ROWS_AT_ONCE = 64
_STEPS_BETWEEN_LOOKS = 20_000
"""Of SQLite's machine: some hundred microseconds."""

_clock = SystemClock()

T = TypeVar("T")


@asynccontextmanager
async def open_sqlite(
    path: Path, vault: Vault, *, durability: Durability, exclusive: bool
) -> AsyncIterator[Store]:
    """Open a file; see ``open_store``."""
    async with AsyncExitStack() as stack:
        writer = None
        if exclusive:
            writer = await stack.enter_async_context(_writing(path, durability))
        readers = [await stack.enter_async_context(_reader(path)) for _ in range(_READERS)]
        asked = [
            await stack.enter_async_context(_reader(path))
            for _ in range(_ASKED if exclusive else 0)
        ]
        yield SqliteStore(path, vault, writer, readers, asked=asked)


@asynccontextmanager
async def _writing(path: Path, durability: Durability) -> AsyncIterator[Writer]:
    lock = await in_thread(FileLock.take, path)
    try:
        await in_thread(prepare, path, lock)
        writer = Writer(path, lock, synchronous="FULL" if durability == "full" else "NORMAL")
        try:
            await writer.open()
            yield writer
        finally:
            with anyio.CancelScope(shield=True):
                await writer.close()
    finally:
        lock.release()


@asynccontextmanager
async def _reader(path: Path) -> AsyncIterator[aiosqlite.Connection]:
    connection = await _opened(partial(open_reader, path), path)
    try:
        with translated(path):
            await _in_thread(connection, partial(check_reader, path))
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await connection.close()


async def _opened(connector: Callable[[], sqlite3.Connection], path: Path) -> aiosqlite.Connection:
    # Opened before aiosqlite has it: where its connector fails, it leaves its thread behind.
    with translated(path):
        raw = await in_thread(connector)
        return await aiosqlite.Connection(lambda: raw, _ROWS_AT_ONCE)


async def _in_thread(
    connection: aiosqlite.Connection, function: Callable[[sqlite3.Connection], T]
) -> T:
    # The whole function crosses, not its statements. aiosqlite has no public name for that.
    cross: Callable[..., Awaitable[T]] = connection._execute  # noqa: SLF001
    return await cross(function, connection._conn)  # noqa: SLF001


class Writer:
    """The connection that writes, and what keeps its file in order."""

    def __init__(self, path: Path, lock: FileLock, *, synchronous: str) -> None:
        self._path = path
        self._lock = lock
        self._synchronous = synchronous
        self._clock = SystemClock()
        self._turn = anyio.Lock()
        self._connection: aiosqlite.Connection | None = None
        self._checkpointer: Checkpointer | None = None

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
        self._checkpointer = Checkpointer(self._path, raw, self._clock)
        connector = partial(open_writer, self._path, synchronous=self._synchronous)
        self._connection = await _opened(connector, self._path)

    async def close(self) -> None:
        """Wait for what is under way, and close the file. The log is copied back."""
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            await in_thread(checkpointer.close)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function in the thread of the connection.

        Raises:
            StoreError: What the errors of SQLite mean.
        """
        async with self._turn:
            if self._connection is None:
                await self.open()
            assert self._connection is not None  # noqa: S101 - open() raises otherwise
            try:
                with translated(self._path):
                    return await _in_thread(self._connection, function)
            except StoreUnavailable as exc:
                # A disk that failed to write may have dropped what SQLite believes it holds.
                if is_input_output_error(exc.__cause__):
                    with anyio.CancelScope(shield=True):
                        await self.close()
                raise

    def after_commit(self, raw: sqlite3.Connection) -> None:
        """Keep the log short; in the thread of the connection."""
        self.checkpointer.after_commit(raw)

    def verify(self) -> None:
        """Check that the file is still the one that was locked."""
        self._lock.verify()


class SqliteStore(Reading):
    """See ``Store``.

    Args:
        open_another: Opens a connection for one long answer; like ``readers`` by default.
        asked: What those read with whose time is limited; ``readers`` if there are none.
    """

    def __init__(
        self,
        path: Path,
        vault: Vault,
        writer: Writer | None,
        readers: Sequence[aiosqlite.Connection],
        open_another: Callable[[Path], AbstractAsyncContextManager[aiosqlite.Connection]] = _reader,
        *,
        asked: Sequence[aiosqlite.Connection] = (),
    ) -> None:
        super().__init__(SQLITE, vault)
        self._path = path
        self._writer = writer
        self._readers = cycle(readers)
        self._free = list(asked or readers)
        self._admitted = anyio.Semaphore(len(self._free))
        self._open_another = open_another
        self._epoch: int | None = None
        self._seconds: float | None = None

    def limited(self, seconds: float) -> Store:
        """See ``Store``."""
        reader = copy(self)
        reader._seconds = seconds  # noqa: SLF001 - its own
        return reader

    async def claim(self, about: NodeFacts | None = None) -> Claim:
        """See ``Store``."""
        statement = compiled(CLAIM_NODE[SQLITE], SQLITE)
        row = await self._write_one(statement.sql, statement.placed(claiming(about)))
        if not all(isinstance(value, int) for value in row):
            raise StrangeDatabase(f"damaged: table node, row node_no={NODE_NO}: {row}")
        self._epoch, commit_no = row
        return Claim(node_no=NODE_NO, epoch=self._epoch, commit_no=commit_no)

    async def lease_numbers(self, count: int) -> int:
        """See ``Store``."""
        if count < 1:
            raise ValueError(f"at least one number must be leased, not {count}")
        statement = compiled(LEASE_NUMBERS[SQLITE], SQLITE)
        values = statement.placed({"name": "row", "count": count})
        (end,) = await self._write_one(statement.sql, values)
        return int(end) - count

    async def commit(self, batch: Batch) -> None:
        """See ``Store``."""
        if self._epoch is None:
            raise RuntimeError("claim() comes before the first commit()")
        await self._writing().run(partial(self._apply, batch, self._epoch))

    async def find_refused(self, batch: Batch) -> dict[str, int]:
        """See ``Store``."""
        try:
            changes = bind(batch, self._vault)
        except BatchRefused:
            return {}
        return await self._writing().run(partial(_first_refused, changes))

    async def size_bytes(self) -> int:
        """See ``Store``."""
        return await in_thread(self._measure)

    async def checkpoint(self) -> None:
        """See ``Store``."""
        with translated(self._path):
            await in_thread(self._writing().checkpointer.run)

    def verify(self) -> None:
        """See ``Store``."""
        self._writing().verify()

    async def _fetch(self, questions: Sequence[Question]) -> list[Sequence[Values]]:
        if self._writer is not None:
            self._writer.verify()
        with translated(self._path):
            if self._seconds is None:
                return await _in_thread(next(self._readers), partial(_answers, questions))
            answers = partial(_answers_within, questions, self._seconds)
            async with self._admitted:
                connection = self._free.pop(0)
                try:
                    return await _in_thread(connection, answers)
                finally:
                    self._free.append(connection)

    @asynccontextmanager
    async def _streaming(self, questions: Sequence[Question]) -> AsyncIterator[list[Fetch]]:
        if self._writer is not None:
            self._writer.verify()
        # A connection of its own: its transaction stays open, and what it cached goes with it.
        async with self._open_another(self._path) as connection:
            with translated(self._path):
                answers = await _in_thread(connection, partial(_opened_answers, questions))

            async def fetch(answer: LongAnswer, count: int) -> Sequence[Values]:
                with translated(self._path):
                    return await _in_thread(connection, lambda _: answer.fetch(count))

            yield [partial(fetch, answer) for answer in answers]

    async def _write_one(self, sql: str, values: tuple[object, ...]) -> tuple[int, ...]:
        writer = self._writing()

        def write(raw: sqlite3.Connection) -> tuple[int, ...]:
            writer.verify()
            with _transaction(raw):
                row: tuple[int, ...] = raw.execute(sql, values).fetchone()
            return row

        return await writer.run(write)

    def _writing(self) -> Writer:
        if self._writer is None:
            raise RuntimeError("this store was opened for reading")
        return self._writer

    def _measure(self) -> int:
        real = self._path.resolve()
        files = (Path(f"{real}{ending}") for ending in ("", "-wal", "-shm"))
        return sum(file.stat().st_size for file in files if file.exists())

    def _apply(self, batch: Batch, epoch: int, raw: sqlite3.Connection) -> None:
        writer = self._writing()
        writer.verify()
        changes = bind(batch, self._vault)
        body = journal.encode(batch, changes)
        with _transaction(raw):
            if not _advanced(raw, epoch, batch):
                return
            _run(raw, changes)
            insert = compiled(INSERT_JOURNAL, SQLITE)
            values = {"commit_no": batch.number, "at": batch.at, "body": body}
            raw.execute(insert.sql, insert.placed(values))
        writer.verify()  # what went into a file that is gone was never committed
        writer.after_commit(raw)


# ── in the thread ───────────────────────────────────────────────────────────────────────


@contextmanager
def _transaction(raw: sqlite3.Connection) -> Iterator[None]:
    # Immediate: a transaction that reads first and then writes fails where another came in
    # between, and no waiting helps it.
    raw.execute("BEGIN IMMEDIATE")
    try:
        yield
        raw.execute("COMMIT")
    finally:
        if raw.in_transaction:
            raw.execute("ROLLBACK")


def _advanced(raw: sqlite3.Connection, epoch: int, batch: Batch) -> bool:
    """Advance the commit number; ``False`` if the batch was applied earlier."""
    fence = compiled(FENCE, SQLITE)
    number = batch.number
    moved = {"before": number - 1, "number": number, "at": batch.at}
    values = {"node_no": NODE_NO, "epoch": epoch, **moved}
    if raw.execute(fence.sql, fence.placed(values)).rowcount == 1:
        return True
    read = compiled(READ_NODE, SQLITE)
    node = raw.execute(read.sql, read.placed(values)).fetchone()
    confirm_applied(node, epoch=epoch, number=number)
    return False


def _run(raw: sqlite3.Connection, changes: Changes) -> None:
    for kind, rows in changes:
        count = raw.executemany(written(kind, SQLITE).sql, rows).rowcount
        if kind.is_counted and count != len(rows):
            raise BatchRefused(f"{kind.name}: {count} of {len(rows)} rows stood as expected")


def _first_refused(changes: Changes, raw: sqlite3.Connection) -> dict[str, int]:
    """Apply the changes row by row, up to the first that is refused, and take them back."""
    raw.execute("BEGIN IMMEDIATE")
    try:
        for kind, rows in changes:
            sql = written(kind, SQLITE).sql
            for row in rows:
                if not _is_taken(raw, sql, row, is_counted=kind.is_counted):
                    return named_by(kind, row)
        return {}
    finally:
        raw.execute("ROLLBACK")


def _is_taken(
    raw: sqlite3.Connection, sql: str, row: tuple[object, ...], *, is_counted: bool
) -> bool:
    try:
        count = raw.execute(sql, row).rowcount
    except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, UnicodeError):
        return False
    return count == 1 or not is_counted


def _answers(questions: Sequence[Question], raw: sqlite3.Connection) -> list[Sequence[Values]]:
    if len(questions) == 1:
        return [answered(raw, questions[0])]
    raw.execute("BEGIN")
    try:
        return [answered(raw, question) for question in questions]
    finally:
        raw.execute("ROLLBACK")


def _answers_within(
    questions: Sequence[Question], seconds: float, raw: sqlite3.Connection
) -> list[Sequence[Values]]:
    """Return the answers, or give up after a while; waiting for the thread is not counted."""
    until = _clock.monotonic_us() + round(seconds * 1e6)
    raw.set_progress_handler(lambda: _clock.monotonic_us() > until, _STEPS_BETWEEN_LOOKS)
    try:
        return _answers(questions, raw)
    except sqlite3.OperationalError as exc:
        if exc.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        raise StoreSlow(seconds) from exc
    finally:
        raw.set_progress_handler(None, 0)


def _opened_answers(questions: Sequence[Question], raw: sqlite3.Connection) -> list[LongAnswer]:
    raw.execute("BEGIN")
    return [LongAnswer(raw, question) for question in questions]
