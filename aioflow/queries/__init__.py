"""Replies to queries of children: results of their own run, endings of other runs, named events.

A query about an event waits here as data, one about endings in ``endings``. It is registered
*before* the store is read. A change committed meanwhile then triggers another look-up, so no change
is missed. A waiting query occupies no asyncio task.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TypeAlias

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow.clock import Clock
from aioflow.errors import BatchRefused, StoreUnavailable
from aioflow.executors.executor_context import QuerySender, refuse
from aioflow.model.batch import Batch
from aioflow.model.dag import TaskSpec
from aioflow.model.ids import RunNo
from aioflow.model.rows import RunRow
from aioflow.protocol.commands import Reply, RunInfo
from aioflow.protocol.reports import CancelQuery, Query
from aioflow.queries.events import read_events
from aioflow.queries.pages import Reader, Refused, read_page, read_records
from aioflow.queries.run_completion import STORE_RETRY_SECONDS, RunCompletionWaits
from aioflow.queries.tasks import NoSuchTask, Specs
from aioflow.queries.values import read_values
from aioflow.redaction import Masks
from aioflow.worker.queries import (
    EventsPage,
    EventsWanted,
    RecordsPage,
    RecordsWanted,
    ResultsPage,
    ResultsWanted,
    ValuesFound,
    ValuesWanted,
)

__all__ = ("QueryHandler", "Reader")

CONCURRENT_LOOKUPS = 4
"""Number of queries looked up concurrently."""

_logger = logging.getLogger(__name__)

Wanted: TypeAlias = ResultsWanted | RecordsWanted | EventsWanted | ValuesWanted

_KINDS: dict[str, type[Wanted]] = {
    "results": ResultsWanted,
    "records": RecordsWanted,
    "events": EventsWanted,
    "values": ValuesWanted,
}


class _PendingQuery:
    """A query in progress.

    Attributes:
        name: Name of the events it is registered for.
        is_stale: Something changed since the last look-up began.
        is_withdrawn: The sender has cancelled it.
    """

    __slots__ = ("ask", "asker", "is_queued", "is_stale", "is_withdrawn", "name", "wanted")

    def __init__(self, asker: QuerySender, ask: Query, wanted: Wanted) -> None:
        self.asker = asker
        self.ask = ask
        self.wanted = wanted
        self.name: str | None = None
        self.is_queued = False
        self.is_stale = False
        self.is_withdrawn = False


class QueryHandler:
    """Replies to queries of children. Executors and triggerers pass them to ``ask``.

    Args:
        still_waits: See ``Cycles``.
        masks: Masks secrets in output, starting just before they are sent to a child.
    """

    def __init__(
        self,
        store: Reader,
        clock: Clock,
        *,
        still_waits: Callable[[RunNo, int, int], bool] = lambda *_: True,
        masks: Masks | None = None,
    ) -> None:
        self._store = store
        self._masks = masks or Masks()
        self._specs = Specs(store)
        self._clock = clock
        self._endings = RunCompletionWaits(store, clock, still_waits)
        self._queue: deque[_PendingQuery] = deque()
        self._queued = anyio.Event()
        # In order of arrival, so that a replayed simulation behaves the same.
        self._entered: dict[str, dict[_PendingQuery, None]] = {}
        self._open: defaultdict[QuerySender, dict[int, _PendingQuery]] = defaultdict(dict)

    @property
    def waiting(self) -> int:
        """Number of runs or tasks that are waited for, plus the queries that wait for events."""
        return len(self._endings) + sum(map(len, self._entered.values()))

    def cycle(self, run_no: RunNo, position: int, map_index: int) -> str:
        """Return the cycle of waits that a task is part of, as ``a -> b -> a``; empty if none."""
        return self._endings.cycle(run_no, position, map_index)

    def ask(self, asker: QuerySender, ask: Query | CancelQuery) -> None:
        """Register a query, to be answered later by ``asker.send``. Never blocks."""
        if isinstance(ask, CancelQuery):
            self._endings.withdraw(asker, ask.question, ask.numbers)
            self._withdraw(asker, ask.question)
            return
        try:
            if ask.kind == "runs":
                self._endings.ask(asker, ask)
                return
            wanted = msgspec.msgpack.decode(ask.body, type=_KINDS[ask.kind])
        except (KeyError, msgspec.DecodeError) as exc:
            refuse(asker, ask, f"the question cannot be understood: {exc}")
            return
        question = _PendingQuery(asker, ask, wanted)
        self._open[asker][ask.question] = question
        self._look_soon(question)

    def _withdraw(self, asker: QuerySender, number: int) -> None:
        of_asker = self._open.get(asker, {})
        for question in list(of_asker.values() if number < 0 else ()):
            self._drop(question)
        if number in of_asker:
            self._drop(of_asker[number])

    def _drop(self, question: _PendingQuery) -> None:
        question.is_withdrawn = True
        self._leave(question)

    def on_commit(self, batch: Batch, run: Callable[[RunNo], RunRow | None]) -> None:
        """Look up the queries again that a committed batch may answer.

        Called after each commit and before anything else is committed. Costs nothing while no query
        waits.

        Args:
            batch: The committed batch.
            run: Finds a run the batch changed; ``None`` leads to no wrong reply, but a query that
                names no run then waits for the next ending of its DAG.
        """
        self._endings.on_commit(batch, run)
        if self._entered:
            for name in dict.fromkeys(event.name for event in batch.named_events):
                for question in self._entered.get(name, ()):
                    self._look_soon(question)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Process queries until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._endings.run)
            for _ in range(CONCURRENT_LOOKUPS):
                group.start_soon(self._look_on)
            task_status.started()

    # ── scheduling of look-ups ──────────────────────────────────────────────────────────

    def _look_soon(self, question: _PendingQuery) -> None:
        question.is_stale = True
        if not question.is_queued:
            question.is_queued = True
            self._queue.append(question)
            self._queued.set()

    async def _look_on(self) -> None:
        while True:
            while not self._queue:
                self._queued = anyio.Event()
                await self._queued.wait()
            question = self._queue.popleft()
            try:
                await self._look(question)
            except BatchRefused as exc:  # it contains values that no database can store
                self._leave(question)
                refuse(question.asker, question.ask, str(exc))
            except StoreUnavailable as exc:
                _logger.warning("cannot answer now: %s", exc)
                await self._clock.sleep(STORE_RETRY_SECONDS)
                question.is_stale = True
            question.is_queued = False
            if question.is_stale:
                self._look_soon(question)

    async def _look(self, question: _PendingQuery) -> None:
        question.is_stale = False
        if question.is_withdrawn or not question.asker.is_open:
            self._leave(question)
            return
        wanted = question.wanted
        try:
            answer: ResultsPage | RecordsPage | EventsPage | ValuesFound | None
            if isinstance(wanted, ResultsWanted):
                answer = await read_page(self._store, _info(question), wanted)
            elif isinstance(wanted, RecordsWanted):
                answer = await read_records(self._store, _info(question), wanted)
            elif isinstance(wanted, ValuesWanted):
                task = await self._declaring(question, wanted.position)
                answer = await read_values(self._store, task, wanted, self._masks)
            else:
                if wanted.until is None:
                    self._enter(question, wanted.name)
                answer = await read_events(self._store, wanted)
        except Refused as exc:
            self._leave(question)
            refuse(question.asker, question.ask, str(exc))
            return
        if question.is_withdrawn:
            self._leave(question)
        elif answer is not None:
            self._leave(question)
            body = msgspec.msgpack.encode(answer)
            question.asker.send([Reply(question.ask.question, body)])

    def _enter(self, question: _PendingQuery, name: str) -> None:
        """Look up the query again when there is an event of that name."""
        question.name = name
        self._entered.setdefault(name, {})[question] = None

    def _leave(self, question: _PendingQuery) -> None:
        entered = {} if question.name is None else self._entered.get(question.name, {})
        entered.pop(question, None)
        if question.name is not None and not entered:
            self._entered.pop(question.name, None)
        question.is_stale = False
        of_asker = self._open.get(question.asker, {})
        if of_asker.get(question.ask.question) is question:
            del of_asker[question.ask.question]
        if not of_asker:
            self._open.pop(question.asker, None)

    async def _declaring(self, question: _PendingQuery, position: int) -> TaskSpec | None:
        """Return the task that asks; ``None`` for a trigger, which may read any value it names."""
        if position < 0 and question.asker.hosts_triggers:
            return None
        try:
            return await self._specs.task(_info(question), position)
        except NoSuchTask:
            why = "only a task that declares a value, or a trigger, may ask for it"
            raise Refused(why) from None


def _info(question: _PendingQuery) -> RunInfo:
    info = question.asker.info(question.ask.run_no)
    if info is None:
        raise Refused("only a process that runs tasks of a run may read their results")
    return info
