"""Queries of workers on other machines for data in the home: code versions, large results.

Results are transferred in chunks. A worker requests a chunk after it has received the previous one,
and gets one response at a time. So at most one chunk waits for a worker with a slow channel. The
memory of all waiting responses is limited. So is the memory of results on their way to the home: a
worker reserves memory for each chunk before it sends the chunk.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import msgspec

from aioflow._threads import in_thread
from aioflow.errors import AioflowError, StoreUnavailable
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.worker_process import Process
from aioflow.filesystem import make_folder, require_space, sync_folder
from aioflow.model.ids import RunNo, TaskNo
from aioflow.protocol.commands import Reply
from aioflow.protocol.reports import Query
from aioflow.results import RESULT_LIMIT, result_path
from aioflow.storage.memory_budget import MemoryBudget
from aioflow.worker.code.fetch import CODE_QUERY, read_version
from aioflow.worker.link import MESSAGE_LIMIT
from aioflow.worker.query.messages import UNDECODABLE
from aioflow.worker.query.result_transfer import (
    FETCH_QUERY,
    PIECE_BYTES,
    RESERVE_QUERY,
    STORE_QUERY,
    UNRESERVED_BYTES,
    ResultPiece,
    ResultWanted,
)

__all__ = (
    "OWN_QUERIES",
    "Asker",
    "HomeQueries",
    "Reservation",
    "answer_result_query",
    "reply_to",
    "wanted_of",
)

OWN_QUERIES = frozenset({CODE_QUERY, FETCH_QUERY, RESERVE_QUERY, STORE_QUERY})
"""Kinds of queries that ``HomeQueries`` answers, because their data is in the home directory."""

ANSWER_BYTES = 128 * 1024 * 1024
"""Maximum total size of the answers that are being read or sent, for all workers."""

INFLOW_BYTES = 96 * 1024 * 1024
"""Maximum total size of the chunks that are on their way or being written, for all workers."""

_INFLOW_TIMES = 3
"""Number of copies of an arriving chunk: bytes of the channel, the query, and its content."""

RESERVED_SECONDS = 60.0
"""Time within which a chunk with reserved memory must arrive. A later chunk must be sent again."""

_RESERVED_LOOK_SECONDS = 1.0

ASKED_BYTES = 16 * 1024 * 1024
"""Maximum size of the waiting queries of one worker. A worker that sends more is killed."""

_QUERY_BYTES = 1_024
"""Memory used by a query without its body."""

_STORE_AGAIN_SECONDS = 0.5
_SENT_LOOK_SECONDS = 0.02
"""Retry intervals for a database outage (the first) and for a slow channel (the second)."""

_OVERHEAD = 2
"""How many times as large as its items a file with an index may be."""


class Reservation:
    """Memory reserved for one chunk, until the chunk has been written.

    Attributes:
        size: Size of the query with the chunk.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._over = anyio.Event()

    def end(self) -> None:
        """Release the memory."""
        self._over.set()

    async def ended(self, worker: Asker) -> None:
        """Wait for the release, but no longer than the worker may need the memory."""
        with anyio.move_on_after(RESERVED_SECONDS):
            while worker.is_open and not worker.is_lost:
                with anyio.move_on_after(_RESERVED_LOOK_SECONDS):
                    await self._over.wait()
                    return


class Asker(Protocol):
    """The part of a worker that is needed to answer its queries."""

    process: Process
    asked_bytes: int
    """Size of the worker's waiting queries."""

    answering: anyio.Lock
    """Held while one of the worker's queries is answered."""

    reserved: Reservation | None
    """Memory reserved for the chunk that the worker sends next."""

    @property
    def number(self) -> int:
        """The worker's number."""

    @property
    def is_open(self) -> bool:
        """Whether the worker is alive."""

    @property
    def is_lost(self) -> bool:
        """Whether contact with the worker is lost."""

    @property
    def backlog(self) -> int:
        """Number of bytes that wait to be sent to the worker, if its backend knows it."""

    def send(self, messages: list[object]) -> None:
        """Send messages to the worker."""


class HomeQueries:
    """Answers the queries of all workers for data of the home."""

    def __init__(self, context: ExecutorContext) -> None:
        self._context = context
        self._budget = MemoryBudget(ANSWER_BYTES)
        self._inflow = MemoryBudget(INFLOW_BYTES)

    def admits(self, worker: Asker, query: Query) -> bool:
        """Count a query to be answered. Return whether the worker is within its limit."""
        worker.asked_bytes += _size(query)
        return worker.asked_bytes <= ASKED_BYTES

    async def answer(self, worker: Asker, query: Query) -> None:
        """Answer a query, after the earlier queries of the same worker."""
        try:
            if query.kind == RESERVE_QUERY:
                await self._reserve(worker, query)
                return
            async with worker.answering, AsyncExitStack() as held:
                body = self._code_of if query.kind == CODE_QUERY else self._result_of
                worker.send([await reply_to(query, body(worker, query, held))])
                await self._sent(worker)
        finally:
            worker.asked_bytes -= _size(query)

    async def _reserve(self, worker: Asker, query: Query) -> None:
        """Answer once there is memory for a chunk. Hold the memory until the chunk is written."""
        async with AsyncExitStack() as held:
            async with worker.answering:
                worker.send([await reply_to(query, self._reservation_of(worker, query, held))])
            reserved = worker.reserved
            if reserved is not None:
                await reserved.ended(worker)
                if worker.reserved is reserved:
                    worker.reserved = None

    async def _reservation_of(self, worker: Asker, query: Query, held: AsyncExitStack) -> bytes:
        if worker.reserved is not None:  # a reservation for a piece that was not sent
            worker.reserved.end()
            worker.reserved = None
        size = msgspec.msgpack.decode(query.body, type=int)
        if not UNRESERVED_BYTES < size <= PIECE_BYTES + _QUERY_BYTES:
            raise ValueError(f"a piece has {PIECE_BYTES} bytes at most")
        await held.enter_async_context(self._inflow.held(_INFLOW_TIMES * size))
        worker.reserved = Reservation(size)
        return b""

    async def _sent(self, worker: Asker) -> None:
        """Wait until at most one chunk is unsent, or the worker can no longer be reached."""
        while worker.is_open and not worker.is_lost and worker.backlog > PIECE_BYTES:
            await self._context.clock.sleep(_SENT_LOOK_SECONDS)

    async def _code_of(self, worker: Asker, query: Query, held: AsyncExitStack) -> bytes:
        """Return the code of a worker's version. Any other version is refused."""
        version = worker.process.version
        if msgspec.msgpack.decode(query.body, type=str) != version or not version:
            raise ValueError("it is not the version of this worker")
        await held.enter_async_context(self._budget.held(PIECE_BYTES))
        body = await in_thread(partial(read_version, self._context.code / version))
        if len(body) > MESSAGE_LIMIT:
            raise ValueError(f"it has {len(body)} bytes, {MESSAGE_LIMIT} are allowed")
        return body

    async def _result_of(self, worker: Asker, query: Query, held: AsyncExitStack) -> bytes:
        """Return a chunk of a large result, or store one. Only runs of the worker are allowed."""
        if not worker.process.serves(query.run_no):
            raise ValueError(f"run number {query.run_no} does not belong to this worker")
        folder, wanted = self._context.results, wanted_of(query)
        key = (wanted.task_no, wanted.start_no)
        is_own = worker.process.runs(key)
        if isinstance(wanted, ResultWanted):
            if not is_own:
                await self._check_run(worker, query.run_no, wanted.task_no)
            if self._context.copied_result is not None:
                folder = await self._context.copied_result(query.run_no, key)
            # Reserve the memory only now, because the database or the storage may be unavailable
            # for long.
            await held.enter_async_context(self._budget.held(PIECE_BYTES))
        elif not is_own:
            raise ValueError("only the result of a try that this worker runs can be stored")
        else:
            _use_reservation(worker, len(query.body), held)
        return await answer_result_query(folder, wanted, worker.number)

    async def _check_run(self, worker: Asker, run_no: RunNo, task_no: TaskNo) -> None:
        """Refuse the result of a task of another run. If the database is unavailable, wait for it.

        The run is read from the row of the task, because the row remains when the task is cleared.
        Tries that took the task's earlier result as an argument still read that result.
        """
        while True:
            try:
                found = await self._context.run_of_task(task_no)
            except StoreUnavailable:
                if not worker.is_open:
                    raise
                await self._context.clock.sleep(_STORE_AGAIN_SECONDS)
                continue
            if found != run_no:
                raise ValueError(f"task number {task_no} does not belong to run number {run_no}")
            return


def _use_reservation(worker: Asker, size: int, held: AsyncExitStack) -> None:
    """Release the reserved memory once the chunk is written.

    Refuse a chunk without a reservation.
    """
    reserved, worker.reserved = worker.reserved, None
    if reserved is not None:
        held.callback(reserved.end)
    if size > (UNRESERVED_BYTES if reserved is None else reserved.size):
        raise ValueError("no memory is reserved for it; it was sent too late, or is too large")


def _size(query: Query) -> int:
    return len(query.body) + _QUERY_BYTES


async def reply_to(query: Query, body: Awaitable[bytes]) -> Reply:
    """Return the reply to a query. An invalid query, or one that fails, is refused."""
    try:
        return Reply(query.question, await body)
    except (AioflowError, OSError, OverflowError, *UNDECODABLE) as exc:
        return Reply(query.question, b"", str(exc) or type(exc).__name__)


def wanted_of(query: Query) -> ResultWanted | ResultPiece:
    """Return the requested chunk of a result, or the chunk to be stored.

    Raises:
        msgspec.DecodeError: If the query is malformed.
    """
    if query.kind == FETCH_QUERY:
        return msgspec.msgpack.decode(query.body, type=ResultWanted)
    return msgspec.msgpack.decode(query.body, type=ResultPiece)


async def answer_result_query(
    folder: Path, wanted: ResultWanted | ResultPiece, worker_no: int
) -> bytes:
    """Return the body of the reply; for errors see ``reply_to``.

    Args:
        folder: Folder of the daemon's results.
        worker_no: The worker that queries. Each worker has its own unfinished files.
    """
    if isinstance(wanted, ResultWanted):
        return await in_thread(partial(_read, folder, wanted))
    await in_thread(partial(_write, folder, wanted, worker_no))
    return b""


def _read(folder: Path, wanted: ResultWanted) -> bytes:
    with result_path(folder, wanted.task_no, wanted.start_no).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = os.pread(file.fileno(), PIECE_BYTES, wanted.offset)
    piece = ResultPiece(wanted.task_no, wanted.start_no, wanted.offset, size, data)
    return msgspec.msgpack.encode(piece)


def _write(folder: Path, piece: ResultPiece, worker_no: int) -> None:
    """Write a chunk. The last one makes the whole result durable, and visible under its name."""
    if not piece.offset + len(piece.data) <= piece.size <= _OVERHEAD * RESULT_LIMIT:
        raise ValueError(f"a result of {piece.size} bytes is too large, or a piece does not fit")
    path = result_path(folder, piece.task_no, piece.start_no)
    part = path.with_name(f"{path.name}.{os.getpid()}-{worker_no}.part")
    make_folder(path.parent)
    if piece.offset == 0:
        part.unlink(missing_ok=True)  # left by an attempt that failed
        require_space(path.parent, piece.size)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if os.fstat(descriptor).st_size != piece.offset:
            raise ValueError("a piece of the result is missing")
        file.seek(piece.offset)
        file.write(piece.data)
        if piece.offset + len(piece.data) < piece.size:
            return
        file.flush()
        os.fsync(descriptor)
    part.rename(path)
    sync_folder(path.parent)
