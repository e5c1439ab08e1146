"""The store on a SQLite file, with one writer in its own thread, called once per batch.

aiosqlite owns the threads. A batch, a claim or a page of rows is handled by *one* function, which
does all its work in such a thread on the raw connection. Awaiting each statement would cost five
times as much. If the caller is cancelled, the function still runs to its end, so that no
transaction stays open.

If a result contains a text that is not UTF-8, the driver raises for the whole result. The statement
is then repeated with a slower decoder, a Python call for each text. This decoder returns such texts
as bytes, so that the damage can be reported.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
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
from typing import Any, TypeVar

import aiosqlite
import anyio

from aioflow._threads import in_thread
from aioflow.clock import SystemClock
from aioflow.crypto import Vault
from aioflow.errors import BatchRefused, StoreError, StoreSlow
from aioflow.model.batch import Batch
from aioflow.model.ids import StartNo, TaskNo
from aioflow.model.rows import NodeFacts
from aioflow.model.timestamps import Timestamp
from aioflow.store import Claim, Durability, Finding, Owner, Store, journal
from aioflow.store.changes import (
    CLAIM_NODE,
    DELETE_CHUNKS,
    FENCE,
    INSERT_JOURNAL,
    LEASE_NUMBERS,
    MARK_STORAGE,
    PUT_CHUNK,
    READ_NODE,
    SQLITE,
    Changes,
    bind_batch,
    compiled,
    named_by,
    written,
)
from aioflow.store.ownership import (
    LEAVE,
    READ_NODES,
    TERM,
    claim_parameters,
    commit_times,
    confirm_applied,
    known_nodes,
    plan_claim,
)
from aioflow.store.query_protocol import Fetch, Question
from aioflow.store.reading import Reading
from aioflow.store.rows import Values
from aioflow.store.sqlite.database_file import (
    check_reader,
    damaged_file,
    open_reader,
    quick_check,
    translated_errors,
)
from aioflow.store.sqlite.writer import Writer, open_threaded, open_to_write, run_in_its_thread

__all__ = (
    "PagedResult",
    "SqliteStore",
    "fetch_rows",
    "open_sqlite",
)

_Question = tuple[str, tuple[Any, ...]]


def fetch_rows(raw: sqlite3.Connection, question: _Question) -> list[Values]:
    """Return all rows of a result."""
    try:
        return raw.execute(*question).fetchall()
    except sqlite3.OperationalError as exc:
        if not _is_no_text(exc):
            raise
    before = raw.text_factory
    raw.text_factory = _text
    try:
        return raw.execute(*question).fetchall()
    finally:
        raw.text_factory = before


class PagedResult:
    """A result that is fetched page by page, within one transaction.

    Args:
        raw: A connection used only for this result.
    """

    def __init__(self, raw: sqlite3.Connection, question: _Question) -> None:
        self._raw = raw
        self._question = question
        self._cursor = raw.execute(*question)
        self._fetched = 0

    def fetch(self, count: int) -> Sequence[Values]:
        """Return the next ``count`` rows, fewer at the end of the result."""
        try:
            page = self._cursor.fetchmany(count)
        except sqlite3.OperationalError as exc:
            if not _is_no_text(exc):
                raise
            page = self._fetch_again(count)
        self._fetched += len(page)
        return page

    def _fetch_again(self, count: int) -> list[Any]:
        self._raw.text_factory = _text
        self._cursor = self._raw.execute(*self._question)
        for _ in range(self._fetched):
            self._cursor.fetchone()
        return self._cursor.fetchmany(count)


def _text(raw: bytes) -> str | tuple[bytes]:
    """Return the text, or its bytes in a tuple if it is not UTF-8.

    The tuple differs from the value of a bytes column, which would accept plain bytes.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return (raw,)


def _is_no_text(exc: sqlite3.OperationalError) -> bool:
    return str(exc).startswith("Could not decode to UTF-8")


_NODE_NO = 1
"""The number of the only node that a file has."""

_READERS = 2
_QUERY_CONNECTIONS = 2
"""Number of further connections for reads with a time limit."""

_STEPS_BETWEEN_LOOKS = 20_000
"""Steps of SQLite's virtual machine between two checks of a time limit, some hundred µs apart."""

_clock = SystemClock()

T = TypeVar("T")


@asynccontextmanager
async def open_sqlite(
    path: Path,
    vault: Vault,
    *,
    durability: Durability,
    exclusive: bool,
    home: Path | None,
) -> AsyncIterator[Store]:
    """Open a file; see ``open_store``."""
    async with AsyncExitStack() as stack:
        writer = None
        if exclusive:
            writer = await stack.enter_async_context(open_to_write(path, durability, home))
        readers = [await stack.enter_async_context(_reader(path)) for _ in range(_READERS)]
        asked = [
            await stack.enter_async_context(_reader(path))
            for _ in range(_QUERY_CONNECTIONS if exclusive else 0)
        ]
        yield SqliteStore(path, vault, writer, readers, asked=asked)


@asynccontextmanager
async def _reader(path: Path) -> AsyncIterator[aiosqlite.Connection]:
    connection = await open_threaded(partial(open_reader, path), path)
    try:
        with translated_errors(path):
            await run_in_its_thread(connection, partial(check_reader, path))
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await connection.close()


class SqliteStore(Reading):
    """See ``Store``.

    Args:
        open_another: Opens the connection for a streamed result. The default is a connection like
            ``readers``.
        asked: Connections for reads with a time limit. If it is empty, ``readers`` are used.
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
        self._admitted = anyio.Semaphore(len(self._free), fast_acquire=True)
        self._open_another = open_another
        self._epoch: int | None = None
        self._seconds: float | None = None
        self._damage: list[str] = []

    def limited(self, seconds: float) -> Store:
        """See ``Store``."""
        reader = copy(self)
        reader._seconds = seconds  # noqa: SLF001 - an instance of this class
        return reader

    async def claim(self, about: NodeFacts | None = None) -> Claim:
        """See ``Store``."""
        await self._writing().checked()
        claim = await self._writing().run(partial(self._claim, about))
        self._epoch = claim.epoch
        return claim

    def _claim(self, about: NodeFacts | None, raw: sqlite3.Connection) -> Claim:
        writer = self._writing()
        writer.verify()
        with writer.transaction(raw):
            lease = compiled(LEASE_NUMBERS[SQLITE], SQLITE)
            (end,) = raw.execute(lease.sql, lease.placed({"name": TERM, "count": 1})).fetchone()
            nodes = known_nodes(raw.execute(compiled(READ_NODES, SQLITE).sql).fetchall())
            plan = plan_claim(nodes, about, term=end - 1, where=str(self._path), is_alone=True)
            values = claim_parameters(about, node_no=plan.node_no, epoch=end - 1)
            for node in nodes:  # other rows come from a copied database
                if node.node_no != plan.node_no:
                    left = {"node_no": node.node_no, "of_epoch": node.epoch}
                    leave = compiled(LEAVE, SQLITE)
                    raw.execute(leave.sql, leave.placed(left))
            statement = compiled(CLAIM_NODE[SQLITE], SQLITE)
            row = raw.execute(statement.sql, statement.placed(values)).fetchone()
        return plan.claim(*row, after_crash=writer.follows_crash)

    async def find_owner(self) -> Owner | None:
        """See ``Store``."""
        return None

    async def lease_numbers(self, count: int) -> int:
        """See ``Store``."""
        if count < 1:
            raise ValueError(f"at least one number must be leased, not {count}")
        statement = compiled(LEASE_NUMBERS[SQLITE], SQLITE)
        values = statement.placed({"name": "row", "count": count})
        (end,) = await self._write_one(statement.sql, values)
        return int(end) - count

    async def mark_storage(self, proposal: str) -> str:
        """See ``Store``."""
        statement = compiled(MARK_STORAGE[SQLITE], SQLITE)
        (mark,) = await self._write_one(statement.sql, statement.placed({"value": proposal}))
        return str(mark)

    async def put_result_chunk(
        self, task_no: TaskNo, start_no: StartNo, chunk_no: int, body: bytes, at: Timestamp
    ) -> None:
        """See ``Store``."""
        statement = compiled(PUT_CHUNK[SQLITE], SQLITE)
        values = {
            "task_no": task_no,
            "start_no": start_no,
            "chunk_no": chunk_no,
            "stored_at": at,
            "body": body,
        }
        await self._write_one(statement.sql, statement.placed(values))

    async def delete_result_chunks(self, task_no: TaskNo, start_no: StartNo) -> None:
        """See ``Store``."""
        statement = compiled(DELETE_CHUNKS, SQLITE)
        values = {"task_no": task_no, "start_no": start_no}
        await self._write_one(statement.sql, statement.placed(values))

    async def commit(self, batch: Batch) -> None:
        """See ``Store``."""
        if self._epoch is None:
            raise RuntimeError("claim() comes before the first commit()")
        await self._writing().run(partial(self._apply, batch, self._epoch))

    async def find_refused(self, batch: Batch) -> dict[str, int]:
        """See ``Store``."""
        try:
            changes = bind_batch(batch, self._vault)
        except BatchRefused:
            return {}
        return await self._writing().run(partial(_first_refused, changes))

    async def size_bytes(self) -> int:
        """See ``Store``."""
        return await in_thread(self._measure)

    async def checkpoint(self) -> None:
        """See ``Store``."""
        with self._translated_errors():
            await in_thread(self._writing().checkpointer.run)

    def verify(self) -> None:
        """See ``Store``."""
        self._writing().verify()

    @property
    def is_damaged(self) -> bool:
        """See ``Store``."""
        return bool(self._damage)

    async def examine(self) -> list[Finding]:
        """See ``Store``."""
        writer = self._writing()
        found = []
        if writer.last_shutdown.sync_failed:
            found.append(Finding(reason="sync", message=writer.last_shutdown.sync_failed))
        if not await writer.checked():
            self._damage += await self._damage_found()
        if self._damage:
            message = str(damaged_file(self._path, "; ".join(self._damage)))
            found.append(Finding(reason="damaged", message=message))
        return found

    async def _damage_found(self) -> list[str]:
        async with self._open_another(self._path) as connection:
            try:
                with self._translated_errors():
                    return await run_in_its_thread(connection, quick_check) or []
            finally:
                await connection.interrupt()  # the check may have been cancelled

    async def _fetch(self, questions: Sequence[Question]) -> list[Sequence[Values]]:
        if self._writer is not None:
            self._writer.verify()
        with self._translated_errors():
            if self._seconds is None:
                return await run_in_its_thread(next(self._readers), partial(_fetch_all, questions))
            answers = partial(_fetch_within, questions, self._seconds)
            async with self._admitted:
                connection = self._free.pop(0)
                try:
                    return await run_in_its_thread(connection, answers)
                finally:
                    self._free.append(connection)

    @asynccontextmanager
    async def _streaming(self, questions: Sequence[Question]) -> AsyncIterator[list[Fetch]]:
        if self._writer is not None:
            self._writer.verify()
        # Use a separate connection, because its transaction stays open and its cache is freed with
        # it.
        async with self._open_another(self._path) as connection:
            with self._translated_errors():
                answers = await run_in_its_thread(connection, partial(_opened_answers, questions))

            async def fetch(answer: PagedResult, count: int) -> Sequence[Values]:
                with self._translated_errors():
                    return await run_in_its_thread(connection, lambda _: answer.fetch(count))

            yield [partial(fetch, answer) for answer in answers]

    async def _write_one(self, sql: str, values: tuple[object, ...]) -> tuple[int, ...]:
        writer = self._writing()

        def write(raw: sqlite3.Connection) -> tuple[int, ...]:
            writer.verify()
            with writer.transaction(raw):
                row: tuple[int, ...] = raw.execute(sql, values).fetchone()
            return row

        return await writer.run(write)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate errors of SQLite. Once a sync has failed, raise ``SyncFailed`` instead."""
        try:
            with translated_errors(self._path):
                yield
        except StoreError:
            if self._writer is not None:
                self._writer.raise_sync_failure()
            raise

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
        changes = bind_batch(batch, self._vault)
        body = journal.encode(batch, changes)
        with writer.transaction(raw):
            if not _advanced(raw, epoch, batch):
                return
            _run(raw, changes)
            insert = compiled(INSERT_JOURNAL[SQLITE], SQLITE)
            values = {"node_no": _NODE_NO, "commit_no": batch.number, "at": batch.at, "body": body}
            raw.execute(insert.sql, insert.placed(values))
        writer.verify()  # a commit to a deleted file does not count
        writer.after_commit(raw)


# ── in the thread of a connection ───────────────────────────────────────────────────────


def _advanced(raw: sqlite3.Connection, epoch: int, batch: Batch) -> bool:
    """Advance the commit number. Return ``False`` if the batch has been applied already."""
    fence = compiled(FENCE, SQLITE)
    number = batch.number
    moved = {"before": number - 1, "number": number, **commit_times(batch)}
    values = {"node_no": _NODE_NO, "epoch": epoch, **moved}
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
            raise BatchRefused(f"{kind.name}: {count} of {len(rows)} rows were as expected")


def _first_refused(changes: Changes, raw: sqlite3.Connection) -> dict[str, int]:
    """Return the ids of the first row that a trial rejects. The trial is rolled back."""
    raw.execute("BEGIN IMMEDIATE")
    try:
        for kind, rows in changes:
            sql = written(kind, SQLITE).sql
            for row in rows:
                if not _is_accepted(raw, sql, row, is_counted=kind.is_counted):
                    return named_by(kind, row)
        return {}
    finally:
        raw.execute("ROLLBACK")


def _is_accepted(
    raw: sqlite3.Connection, sql: str, row: tuple[object, ...], *, is_counted: bool
) -> bool:
    try:
        count = raw.execute(sql, row).rowcount
    except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, UnicodeError):
        return False
    return count == 1 or not is_counted


def _fetch_all(questions: Sequence[Question], raw: sqlite3.Connection) -> list[Sequence[Values]]:
    if len(questions) == 1:
        return [fetch_rows(raw, questions[0])]
    raw.execute("BEGIN")
    try:
        return [fetch_rows(raw, question) for question in questions]
    finally:
        raw.execute("ROLLBACK")


def _fetch_within(
    questions: Sequence[Question], seconds: float, raw: sqlite3.Connection
) -> list[Sequence[Values]]:
    """Return the results, or raise after a time limit. Waiting for the thread does not count."""
    until = _clock.monotonic_us() + round(seconds * 1e6)
    raw.set_progress_handler(lambda: _clock.monotonic_us() > until, _STEPS_BETWEEN_LOOKS)
    try:
        return _fetch_all(questions, raw)
    except sqlite3.OperationalError as exc:
        if exc.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        raise StoreSlow(seconds) from exc
    finally:
        raw.set_progress_handler(None, 0)


def _opened_answers(questions: Sequence[Question], raw: sqlite3.Connection) -> list[PagedResult]:
    raw.execute("BEGIN")
    return [PagedResult(raw, question) for question in questions]
