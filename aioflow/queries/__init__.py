"""Replies to queries of children: results of their own run, endings of other runs, named events.

A waiting query is data and occupies no asyncio task. Queries about events wait here, queries about
endings in ``run_completion``. A query is registered *before* the store is read. If a change is
committed between the registration and the read, it triggers another look-up, so no change is
missed.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeAlias

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow.clock import Clock
from aioflow.core.transaction import Transaction
from aioflow.errors import AioflowError, BatchRefused, StoreUnavailable
from aioflow.executors.executor_context import QuerySender, refuse
from aioflow.model.batch import Batch
from aioflow.model.dag import TaskSpec
from aioflow.model.ids import RunNo, StartNo, TaskNo
from aioflow.model.rows import RunRow
from aioflow.protocol.commands import Reply, RunInfo
from aioflow.protocol.reports import CancelQuery, Query
from aioflow.queries.lookups import (
    Reader,
    Refused,
    read_events,
    read_records,
    read_results,
    read_values,
)
from aioflow.queries.run_completion import (
    STORE_RETRY_SECONDS,
    DagSpecs,
    NoSuchTask,
    RunCompletionWaits,
)
from aioflow.redaction import Masks
from aioflow.worker.query.messages import (
    UNDECODABLE,
    EventsPage,
    EventsWanted,
    FilesCopied,
    FilesWanted,
    RecordsPage,
    RecordsWanted,
    ResultsPage,
    ResultsWanted,
    SpoolWanted,
    ValuesFound,
    ValuesWanted,
)

__all__ = ("QueryHandler", "Reader")

CONCURRENT_LOOKUPS = 4
"""Maximum number of concurrent look-ups."""

_logger = logging.getLogger(__name__)

Wanted: TypeAlias = ResultsWanted | RecordsWanted | EventsWanted | ValuesWanted | SpoolWanted

_KINDS: dict[str, type[Wanted]] = {
    "results": ResultsWanted,
    "records": RecordsWanted,
    "events": EventsWanted,
    "values": ValuesWanted,
}


CopyResults: TypeAlias = Callable[
    [RunNo, Collection[tuple[TaskNo, StartNo]], Callable[[AioflowError | None], None]], None
]
"""A function that copies results of a run to this machine.

It calls the function that it is given once they are copied, or with the error if that failed.
"""


ReserveSpool: TypeAlias = Callable[[tuple[TaskNo, StartNo], int, Callable[[], bool]], None]
"""A function that calls another one as soon as a trigger may write a result of a given size.

The function that it calls returns whether the trigger still waits for this.
"""


class _PendingQuery:
    """A query in progress.

    Attributes:
        name: Name of the events that it waits for.
        is_stale: Whether something has changed since the last look-up began.
        is_cancelled: Whether the sender has cancelled it.
    """

    __slots__ = ("is_cancelled", "is_queued", "is_stale", "name", "query", "sender", "wanted")

    def __init__(self, sender: QuerySender, query: Query, wanted: Wanted) -> None:
        self.sender = sender
        self.query = query
        self.wanted = wanted
        self.name: str | None = None
        self.is_queued = False
        self.is_stale = False
        self.is_cancelled = False


class QueryHandler:
    """Replies to queries of children. Executors and triggerers pass the queries to ``submit``.

    Args:
        still_waits: See ``Cycles``.
        masks: Masks secrets in output, from just before they are sent to a child.
        copy_results: Copies stored results to this machine; ``None`` if results are in the home.
        reserve_spool: Limits the size of trigger results that wait to be stored; ``None`` if
            results are in the home.
    """

    def __init__(
        self,
        store: Reader,
        clock: Clock,
        *,
        still_waits: Callable[[RunNo, int, int], bool] = lambda *_: True,
        masks: Masks | None = None,
        copy_results: CopyResults | None = None,
        reserve_spool: ReserveSpool | None = None,
    ) -> None:
        self._store = store
        self._reserve_spool = reserve_spool
        self._copy_results = copy_results
        self._masks = masks or Masks()
        self._specs = DagSpecs(store)
        self._clock = clock
        self._endings = RunCompletionWaits(store, clock, still_waits)
        self._queue: deque[_PendingQuery] = deque()
        self._queued = anyio.Event()
        # In order of arrival, so that a replayed simulation processes them in the same order.
        self._subscribed: dict[str, dict[_PendingQuery, None]] = {}
        self._open: defaultdict[QuerySender, dict[int, _PendingQuery]] = defaultdict(dict)

    @property
    def waiting(self) -> int:
        """Number of runs or tasks that are waited for, plus the queries that wait for events."""
        return len(self._endings) + sum(map(len, self._subscribed.values()))

    def cycle(self, run_no: RunNo, task_index: int, map_index: int) -> str:
        """Return the cycle of waits that a task is part of, as ``a -> b -> a``; empty if none."""
        return self._endings.cycle(run_no, task_index, map_index)

    def submit(self, sender: QuerySender, query: Query | CancelQuery) -> None:
        """Register a query. The reply is sent later, by ``sender.send``. Never blocks."""
        if isinstance(query, CancelQuery):
            self._endings.cancel(sender, query.question, query.numbers)
            self._cancel(sender, query.question)
            return
        try:
            if query.kind == "runs":
                self._endings.submit(sender, query)
                return
            if query.kind == "files" and self._copy_results is not None:
                files = msgspec.msgpack.decode(query.body, type=FilesWanted)
                reply = partial(_reply_copied, sender, query.question)
                self._copy_results(query.run_no, files.keys, reply)
                return
            if query.kind == "spool" and self._reserve_spool is not None:
                self._reserve(sender, query, self._reserve_spool)
                return
            wanted = msgspec.msgpack.decode(query.body, type=_KINDS[query.kind])
        except (KeyError, *UNDECODABLE) as exc:
            refuse(sender, query, f"the query cannot be decoded: {exc}")
            return
        pending = _PendingQuery(sender, query, wanted)
        self._open[sender][query.question] = pending
        self._enqueue(pending)

    def _reserve(self, sender: QuerySender, query: Query, reserve: ReserveSpool) -> None:
        """Reply once a result may be written, unless the query is cancelled first."""
        wanted = msgspec.msgpack.decode(query.body, type=SpoolWanted)
        pending = _PendingQuery(sender, query, wanted)
        self._open[sender][query.question] = pending

        def grant() -> bool:
            self._close(pending)
            if pending.is_cancelled or not sender.is_open:
                return False
            sender.send([Reply(query.question, b"")])
            return True

        reserve((wanted.task_no, wanted.start_no), wanted.size, grant)

    def _cancel(self, sender: QuerySender, number: int) -> None:
        of_sender = self._open.get(sender, {})
        for pending in list(of_sender.values() if number < 0 else ()):
            self._drop(pending)
        if number in of_sender:
            self._drop(of_sender[number])

    def _drop(self, pending: _PendingQuery) -> None:
        pending.is_cancelled = True
        self._close(pending)

    def committed(self, batch: Batch, tx: Transaction) -> None:
        """Look up again the queries that a committed batch may answer.

        Called after each commit, before anything else is committed. Takes no time while no query
        waits.

        Args:
            batch: The committed batch.
            tx: Its transaction, which knows the runs that the batch changed.
        """

        def row(run_no: RunNo) -> RunRow | None:
            run = tx.runs.get(run_no)
            return None if run is None else run.row

        self._endings.on_commit(batch, row)
        if self._subscribed:
            for name in dict.fromkeys(event.name for event in batch.named_events):
                for pending in self._subscribed.get(name, ()):
                    self._enqueue(pending)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Process queries until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._endings.run)
            for _ in range(CONCURRENT_LOOKUPS):
                group.start_soon(self._process_queue)
            task_status.started()

    # ── scheduling of look-ups ──────────────────────────────────────────────────────────

    def _enqueue(self, pending: _PendingQuery) -> None:
        pending.is_stale = True
        if not pending.is_queued:
            pending.is_queued = True
            self._queue.append(pending)
            self._queued.set()

    async def _process_queue(self) -> None:
        while True:
            while not self._queue:
                if self._queued.is_set():  # all waiters share one event
                    self._queued = anyio.Event()
                await self._queued.wait()
            pending = self._queue.popleft()
            try:
                await self._look_up(pending)
            except BatchRefused as exc:  # the query contains values that no database can store
                self._close(pending)
                refuse(pending.sender, pending.query, str(exc))
            except StoreUnavailable as exc:
                _logger.warning("cannot answer now: %s", exc)
                await self._clock.sleep(STORE_RETRY_SECONDS)
                pending.is_stale = True
            pending.is_queued = False
            if pending.is_stale:
                self._enqueue(pending)

    async def _look_up(self, pending: _PendingQuery) -> None:
        pending.is_stale = False
        if pending.is_cancelled or not pending.sender.is_open:
            self._close(pending)
            return
        wanted = pending.wanted
        try:
            answer: ResultsPage | RecordsPage | EventsPage | ValuesFound | None
            if isinstance(wanted, ResultsWanted):
                answer = await read_results(self._store, _info(pending), wanted)
            elif isinstance(wanted, RecordsWanted):
                answer = await read_records(self._store, _info(pending), wanted)
            elif isinstance(wanted, ValuesWanted):
                task = await self._declaring(pending, wanted.task_index)
                answer = await read_values(self._store, task, wanted, self._masks)
            else:
                assert isinstance(wanted, EventsWanted)  # noqa: S101 - no other kind is queued
                if wanted.until is None:
                    self._subscribe(pending, wanted.name)
                answer = await read_events(self._store, wanted)
        except Refused as exc:
            self._close(pending)
            refuse(pending.sender, pending.query, str(exc))
            return
        if pending.is_cancelled:
            self._close(pending)
        elif answer is not None:
            self._close(pending)
            body = msgspec.msgpack.encode(answer)
            pending.sender.send([Reply(pending.query.question, body)])

    def _subscribe(self, pending: _PendingQuery, name: str) -> None:
        """Look up the query again when there is an event with this name."""
        pending.name = name
        self._subscribed.setdefault(name, {})[pending] = None

    def _close(self, pending: _PendingQuery) -> None:
        subscribed = {} if pending.name is None else self._subscribed.get(pending.name, {})
        subscribed.pop(pending, None)
        if pending.name is not None and not subscribed:
            self._subscribed.pop(pending.name, None)
        pending.is_stale = False
        of_sender = self._open.get(pending.sender, {})
        if of_sender.get(pending.query.question) is pending:
            del of_sender[pending.query.question]
        if not of_sender:
            self._open.pop(pending.sender, None)

    async def _declaring(self, pending: _PendingQuery, task_index: int) -> TaskSpec | None:
        """Return the task that sent the query; ``None`` for a trigger, which may read any value."""
        if task_index < 0 and pending.sender.hosts_triggers:
            return None
        try:
            return await self._specs.task(_info(pending), task_index)
        except NoSuchTask:
            why = "only a task that declares a value, or a trigger, may ask for it"
            raise Refused(why) from None


def _reply_copied(sender: QuerySender, question: int, error: AioflowError | None) -> None:
    if sender.is_open:
        sender.send([Reply(question, msgspec.msgpack.encode(FilesCopied.of(error)))])


def _info(pending: _PendingQuery) -> RunInfo:
    info = pending.sender.info(pending.query.run_no)
    if info is None:
        raise Refused("only a process that runs tasks of a run may read their results")
    return info
