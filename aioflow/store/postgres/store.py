"""The store on PostgreSQL: one connection for writing and several for reading.

A connection is discarded after any error. The server rolls back its open transaction, and the fence
shows whether a commit was applied.

The server checks the encoding of a text only when the text is written, so a damaged page may
contain texts that are not UTF-8. If a result contains such a text, the driver raises for the whole
result. The statement is then repeated with a slower decoder, a Python call for each text. This
decoder returns such texts as bytes, so that the damage can be reported. The connection keeps it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from typing import Any, Self

import asyncpg
from sqlalchemy.engine import URL

from aioflow.crypto import Vault
from aioflow.errors import BatchRefused, Fenced, StoreSlow
from aioflow.model.batch import Batch
from aioflow.model.ids import StartNo, TaskNo
from aioflow.model.rows import NodeFacts
from aioflow.model.states import NodeState
from aioflow.model.timestamps import Timestamp
from aioflow.store import Claim, Durability, Finding, Store, journal
from aioflow.store.changes import (
    DELETE_CHUNKS,
    FENCE,
    INSERT_JOURNAL,
    LEASE_NUMBERS,
    MARK_STORAGE,
    POSTGRES,
    PUT_CHUNK,
    READ_NODE,
    Changes,
    bind_batch,
    compiled,
    named_by,
    written,
)
from aioflow.store.ownership import (
    HEARTBEAT,
    LEAVE,
    commit_times,
    confirm_applied,
)
from aioflow.store.postgres import claims
from aioflow.store.postgres.claims import session_name
from aioflow.store.postgres.membership import PostgresMembership
from aioflow.store.postgres.node_messages import PostgresNodeMessages
from aioflow.store.postgres.schema import (
    CONNECT_SECONDS,
    check_schema,
    prepare_database,
    translated_errors,
)
from aioflow.store.postgres.writer import Limits, Writer, execute, row_count
from aioflow.store.query_protocol import Fetch, Question
from aioflow.store.reading import Reading
from aioflow.store.rows import Values

__all__ = (
    "PagedResult",
    "PostgresStore",
    "fetch_rows",
    "open_postgres",
)

_Question = tuple[str, tuple[Any, ...]]


async def fetch_rows(
    connection: Any, question: _Question, seconds: float | None
) -> Sequence[Values]:
    """Return all rows of a result.

    Raises:
        TimeoutError: If a statement takes longer than ``seconds``.
    """
    sql, values = question
    try:
        found: Sequence[Values] = await connection.fetch(sql, *values, timeout=seconds)
    except UnicodeDecodeError:
        await _keep_bytes(connection)
        found = await connection.fetch(sql, *values, timeout=seconds)
    return found


class PagedResult:
    """A result that is fetched page by page.

    Args:
        connection: A connection in a transaction in which a repeated statement has the same result.
        cursor: A cursor before the first row.
    """

    def __init__(self, connection: Any, question: _Question, cursor: Any) -> None:
        self._connection = connection
        self._question = question
        self._cursor = cursor
        self._fetched = 0

    @classmethod
    async def of(cls, connection: Any, question: _Question) -> Self:
        """Return the result of a statement."""
        return cls(connection, question, await _cursor(connection, question))

    async def fetch(self, count: int) -> Sequence[Values]:
        """Return the next ``count`` rows, fewer at the end of the result."""
        page: Sequence[Values]
        try:
            page = await self._cursor.fetch(count)
        except UnicodeDecodeError:
            await _keep_bytes(self._connection)
            self._cursor = await _cursor(self._connection, self._question)
            if self._fetched:
                await self._cursor.forward(self._fetched)
            page = await self._cursor.fetch(count)
        self._fetched += len(page)
        return page


async def _cursor(connection: Any, question: _Question) -> Any:
    sql, values = question
    return await connection.cursor(sql, *values)


async def _keep_bytes(connection: Any) -> None:
    await connection.set_type_codec(
        "text", schema="pg_catalog", encoder=str.encode, decoder=_text, format="binary"
    )


def _text(raw: bytes) -> str | tuple[bytes]:
    """Return the text, or its bytes in a tuple if it is not UTF-8.

    The tuple differs from the value of a bytes column, which would accept plain bytes.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return (raw,)


_COMMAND_SECONDS = 30

_READING_SECONDS = 300
"""Time limit for the statements of a reader and for its idle transactions, which lock nothing."""

_READERS = 4
_QUERY_CONNECTIONS = 3
"""Number of further connections for reads with a time limit. They are opened when needed."""


@asynccontextmanager
async def open_postgres(
    url: URL,
    vault: Vault,
    *,
    durability: Durability,
    exclusive: bool,
    migrate: bool,
    lease_seconds: float | None = None,
) -> AsyncIterator[Store]:
    """Open a database; see ``open_store``."""
    dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
    where = url.render_as_string(hide_password=True)
    with translated_errors(where):
        if exclusive:
            await prepare_database(url, migrate=migrate)
        else:
            await check_schema(url)
    async with AsyncExitStack() as stack:
        writer = membership = messages = None
        if exclusive:
            limits = None if lease_seconds is None else Limits.of_lease(lease_seconds)
            writer = Writer(dsn, where, durability, limits)
            stack.push_async_callback(writer.close)
            if lease_seconds is not None:
                membership = PostgresMembership(dsn, where, writer, limit_seconds=lease_seconds)
                stack.push_async_callback(membership.close)
                messages = PostgresNodeMessages(dsn, where, limit_seconds=lease_seconds / 3)
                stack.push_async_callback(messages.close)
        with translated_errors(where):
            readers = await _open_readers(dsn, least=1, most=_READERS)
        stack.push_async_callback(_close_readers, readers)
        asked = await _open_readers(dsn, least=0, most=_QUERY_CONNECTIONS)
        stack.push_async_callback(_close_readers, asked)
        store = PostgresStore(where, vault, writer, readers, asked)
        store.membership = membership
        store.node_messages = messages
        yield store


async def _open_readers(dsn: str, *, least: int, most: int) -> asyncpg.Pool:
    return await asyncpg.create_pool(
        dsn,
        min_size=least,
        max_size=most,
        timeout=CONNECT_SECONDS,
        command_timeout=_COMMAND_SECONDS,
        reset=_keep_session,
        server_settings={
            "application_name": "aioflow",
            "default_transaction_read_only": "on",
            "statement_timeout": f"{_READING_SECONDS}s",
            "idle_in_transaction_session_timeout": f"{_READING_SECONDS}s",
        },
    )


async def _keep_session(connection: Any) -> None:
    """Skip the reset of a session, which would take a round trip.

    Reads change nothing in a session.
    """


async def _close_readers(readers: asyncpg.Pool) -> None:
    # Not close(), which would wait for running reads even if the server does not answer.
    readers.terminate()


class PostgresStore(Reading):
    """See ``Store``.

    Args:
        readers: Connections for reads without a time limit, such as those of the engine.
        asked: Connections for reads with a time limit.
    """

    def __init__(
        self,
        where: str,
        vault: Vault,
        writer: Writer | None,
        readers: asyncpg.Pool,
        asked: asyncpg.Pool,
    ) -> None:
        super().__init__(POSTGRES, vault)
        self._where = where
        self._writer = writer
        self._readers = readers
        self._asked = asked
        self._node_no = 0
        self._epoch: int | None = None
        self._seconds: float | None = None

    def limited(self, seconds: float) -> Store:
        """See ``Store``."""
        reader = copy(self)
        reader._seconds = seconds  # noqa: SLF001 - an instance of this class
        reader._readers = self._asked  # noqa: SLF001
        return reader

    async def claim(self, about: NodeFacts | None = None) -> Claim:
        """See ``Store``."""
        async with self._writing().transaction() as connection:
            made = await claims.claim(connection, about, self._where)
        self._node_no, self._epoch = made.node_no, made.epoch
        self._writing().rename(session_name(made.node_no, made.epoch))
        return made

    async def heartbeat(self, at: Timestamp) -> None:
        """See ``Store``."""
        values = {"of_state": int(NodeState.ACTIVE), "heartbeat_at": at, **self._own_row()}
        if not await self._writing().execute(HEARTBEAT, values):
            raise Fenced(f"this node writes under epoch {self._epoch}, but is no longer active")

    def _own_row(self) -> dict[str, Any]:
        return {"node_no": self._node_no, "of_epoch": self._epoch}

    async def leave(self) -> None:
        """See ``Store``."""
        await self._writing().execute(LEAVE, self._own_row())

    async def lease_numbers(self, count: int) -> int:
        """See ``Store``."""
        if count < 1:
            raise ValueError(f"at least one number must be leased, not {count}")
        lease = {"name": "row", "count": count}
        (end,) = await self._writing().one_row(LEASE_NUMBERS[POSTGRES], lease)
        return int(end) - count

    async def mark_storage(self, proposal: str) -> str:
        """See ``Store``."""
        (mark,) = await self._writing().one_row(MARK_STORAGE[POSTGRES], {"value": proposal})
        return str(mark)

    async def put_result_chunk(
        self, task_no: TaskNo, start_no: StartNo, chunk_no: int, body: bytes, at: Timestamp
    ) -> None:
        """See ``Store``."""
        values = {
            "task_no": task_no,
            "start_no": start_no,
            "chunk_no": chunk_no,
            "stored_at": at,
            "body": body,
        }
        await self._writing().execute(PUT_CHUNK[POSTGRES], values)

    async def delete_result_chunks(self, task_no: TaskNo, start_no: StartNo) -> None:
        """See ``Store``."""
        values = {"task_no": task_no, "start_no": start_no}
        await self._writing().execute(DELETE_CHUNKS, values)

    async def commit(self, batch: Batch) -> None:
        """See ``Store``."""
        if self._epoch is None:
            raise RuntimeError("claim() comes before the first commit()")
        changes = bind_batch(batch, self._vault)
        body = journal.encode(batch, changes)
        async with self._writing().transaction() as connection:
            if not await _advanced(connection, self._node_no, self._epoch, batch):
                return
            await _run(connection, changes)
            number = {"node_no": self._node_no, "commit_no": batch.number}
            values = {**number, "at": batch.at, "body": body}
            await execute(connection, INSERT_JOURNAL[POSTGRES], values)

    async def find_refused(self, batch: Batch) -> dict[str, int]:
        """See ``Store``."""
        refused: dict[str, int] = {}
        try:
            changes = bind_batch(batch, self._vault)
            async with self._writing().transaction() as connection:
                for kind, rows in changes:
                    for row in rows:
                        refused = named_by(kind, row)
                        await _run(connection, [(kind, [row])])
                raise _NothingRefusedError  # roll back the trial
        except BatchRefused:
            return refused
        except _NothingRefusedError:
            return {}

    def verify(self) -> None:
        """See ``Store``. The server guards its own files; the fence detects another writer."""

    @property
    def is_damaged(self) -> bool:
        """See ``Store``. The server checks its own files."""
        return False

    async def examine(self) -> list[Finding]:
        """See ``Store``."""
        return []

    async def size_bytes(self) -> int:
        """See ``Store``."""
        question = ("SELECT pg_database_size(current_database())", ())
        ((row,),) = await self._fetch([question])
        return int(row[0])

    async def checkpoint(self) -> None:
        """See ``Store``. The server checkpoints by itself."""

    async def _fetch(self, questions: Sequence[Question]) -> list[Sequence[Values]]:
        with translated_errors(self._where):
            async with self._readers.acquire(timeout=CONNECT_SECONDS) as connection:
                seconds = self._seconds
                if len(questions) == 1:
                    return [await _fetch_within(connection, questions[0], seconds)]
                async with connection.transaction(isolation="repeatable_read", readonly=True):
                    return [
                        await _fetch_within(connection, question, seconds) for question in questions
                    ]

    @asynccontextmanager
    async def _streaming(self, questions: Sequence[Question]) -> AsyncIterator[list[Fetch]]:
        with translated_errors(self._where):
            async with (
                self._readers.acquire(timeout=CONNECT_SECONDS) as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                answers = [await PagedResult.of(connection, question) for question in questions]
                yield [answer.fetch for answer in answers]

    def _writing(self) -> Writer:
        if self._writer is None:
            raise RuntimeError("this store was opened for reading")
        return self._writer


class _NothingRefusedError(Exception):
    """Raised to roll back the transaction of a trial in which the database rejected nothing."""


async def _fetch_within(
    connection: Any, question: Question, seconds: float | None
) -> Sequence[Values]:
    try:
        return await fetch_rows(connection, question, seconds)
    except TimeoutError as exc:
        if seconds is None:
            raise
        raise StoreSlow(seconds) from exc  # the driver has cancelled the statement


async def _advanced(connection: asyncpg.Connection, node_no: int, epoch: int, batch: Batch) -> bool:
    """Advance the commit number. Return ``False`` if the batch has been applied already."""
    number = batch.number
    moved = {"before": number - 1, "number": number, **commit_times(batch)}
    values = {"node_no": node_no, "epoch": epoch, **moved}
    if await execute(connection, FENCE, values) == 1:
        return True
    read = compiled(READ_NODE, POSTGRES)
    node = await connection.fetchrow(read.sql, *read.placed(values))
    confirm_applied(None if node is None else tuple(node), epoch=epoch, number=number)
    return False


async def _run(connection: asyncpg.Connection, changes: Changes) -> None:
    for kind, rows in changes:
        columns = zip(*rows, strict=True)
        status = await connection.execute(written(kind, POSTGRES).sql, *map(list, columns))
        count = row_count(status)
        if kind.is_counted and count != len(rows):
            raise BatchRefused(f"{kind.name}: {count} of {len(rows)} rows were as expected")
