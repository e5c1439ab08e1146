"""Answers what children ask: results of their own run, how other runs end, named events.

A question about an ending or an event waits here as data, an entry under each key whose change
may answer it. It is entered *before* the store is read, so that what is committed meanwhile
leads to another look and nothing slips in between. No task stands behind a waiting question.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TypeAlias

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow.answers.cycles import Cycles, Waiting, before
from aioflow.answers.events import read_events
from aioflow.answers.pages import Reader, find_expansion, read_page, read_records
from aioflow.clock import Clock
from aioflow.errors import StoreUnavailable
from aioflow.executors.wiring import Asker, refuse
from aioflow.host.questions import (
    EventsPage,
    EventsWanted,
    RecordsPage,
    RecordsWanted,
    ResultsPage,
    ResultsWanted,
    RunEnding,
    RunWanted,
)
from aioflow.messages import Ask, Withdraw
from aioflow.model import DagSpec, RunNo, TaskNo, TaskSpec, TaskState
from aioflow.orders import Answer, RunInfo
from aioflow.rows import Batch, RunRow

__all__ = ("Answers", "Reader")

LOOKERS = 4
"""Questions looked into at once."""

VERSIONS_KEPT = 256
AWAY_SECONDS = 0.5

_WORST_FIRST = (
    TaskState.FAILED,
    TaskState.UPSTREAM_FAILED,
    TaskState.CANCELLED,
    TaskState.SUCCESS,
    TaskState.SKIPPED,
)

_logger = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, object] | tuple[str, object, object]
Wanted: TypeAlias = RunWanted | ResultsWanted | RecordsWanted | EventsWanted

_KINDS: dict[str, type[Wanted]] = {
    "run": RunWanted,
    "results": ResultsWanted,
    "records": RecordsWanted,
    "events": EventsWanted,
}


class _Refused(Exception):
    """There is no answer, and there never will be."""


class _Question:
    """A question under way.

    Attributes:
        keys: Under which it is entered.
        children: ``(first, end)`` of the mapped children it waits for, if it does.
        missing: How many of them had not ended at the last look; fewer endings than that
            cannot answer it, so they lead to no look.
        is_stale: Something changed since the last look began.
        waiting: What is awaited, once that exists.
        is_withdrawn: Whoever asked wants no answer any more.
    """

    __slots__ = (
        "ask",
        "asker",
        "children",
        "is_queued",
        "is_stale",
        "is_withdrawn",
        "keys",
        "missing",
        "seen",
        "waiting",
        "wanted",
    )

    def __init__(self, asker: Asker, ask: Ask, wanted: Wanted) -> None:
        self.asker = asker
        self.ask = ask
        self.wanted = wanted
        self.keys: set[Key] = set()
        self.children: tuple[TaskNo, TaskNo] | None = None
        self.missing = 0
        self.seen = 0
        self.is_queued = False
        self.is_stale = False
        self.waiting: Waiting | None = None
        self.is_withdrawn = False


class Answers:
    """Answers what children ask. ``ask`` is what executors and triggerer are given.

    Args:
        still_waits: See ``Cycles``.
    """

    def __init__(
        self,
        store: Reader,
        clock: Clock,
        *,
        still_waits: Callable[[RunNo, int, int], bool] = lambda *_: True,
    ) -> None:
        self._store = store
        self._clock = clock
        self._queue: deque[_Question] = deque()
        self._queued = anyio.Event()
        # In the order of their coming: so a life that is played again is the same.
        self._entered: dict[Key, dict[_Question, None]] = {}
        self._waiting: set[_Question] = set()
        self._open: defaultdict[Asker, dict[int, _Question]] = defaultdict(dict)
        self._counting: set[_Question] = set()
        self._purge_at = 1_000
        self._dags: set[str] = set()
        self._specs: dict[tuple[str, str], DagSpec] = {}
        self._cycles = Cycles(still_waits)

    @property
    def waiting(self) -> int:
        """How many questions wait for something to end."""
        return len(self._waiting)

    def cycle(self, run_no: RunNo, position: int, map_index: int) -> str:
        """Say in which cycle of waits a task stands, as ``a -> b -> a``; empty if in none."""
        return self._cycles.of_task(run_no, position, map_index)

    def ask(self, asker: Asker, ask: Ask | Withdraw) -> None:
        """Take a question; it is answered by ``asker.send``, some time. Never blocks."""
        if isinstance(ask, Withdraw):
            self._withdraw(asker, ask.question)
            return
        try:
            wanted = msgspec.msgpack.decode(ask.body, type=_KINDS[ask.kind])
        except (KeyError, msgspec.DecodeError) as exc:
            refuse(asker, ask, f"the question cannot be understood: {exc}")
            return
        question = _Question(asker, ask, wanted)
        self._open[asker][ask.question] = question
        self._look_soon(question)

    def _withdraw(self, asker: Asker, number: int) -> None:
        of_asker = self._open.get(asker, {})
        for question in list(of_asker.values() if number < 0 else ()):
            self._drop(question)
        if number in of_asker:
            self._drop(of_asker[number])

    def _drop(self, question: _Question) -> None:
        question.is_withdrawn = True
        self._leave(question)

    def on_commit(self, batch: Batch, run: Callable[[RunNo], RunRow | None]) -> None:
        """A batch is durable: look again where it may answer a question.

        Called by whoever acts for the engine, after each commit and before anything else is
        committed. Costs nothing while nobody waits.

        Args:
            batch: What was committed.
            run: Finds a run the batch changed; ``None`` leads to no wrong answer, only to a
                question without a run that waits for the next ending of its DAG.
        """
        if not self._waiting:
            return
        for new in batch.new_runs:
            self._wake(("id", new.run_id))
            self._wake(("at", new.dag_id, new.logical_date))
        for change in batch.run_changes:
            if not change.state.is_live:
                self._wake(("run", change.run_no))
                row = run(change.run_no)
                if row is not None:
                    self._wake(("end", row.dag_id))
        for name in dict.fromkeys(event.name for event in batch.named_events):
            self._wake(("event", name))
        for expansion in batch.new_expansions:
            self._wake(("expanded", expansion.run_no, expansion.position))
        for grown in batch.expansion_changes:
            self._wake(("expanded", grown.run_no, grown.position))
        for task in batch.task_changes:
            self._task_moved(task.task_no, task.state)
        for new_task in batch.new_tasks:
            self._task_moved(new_task.task_no, new_task.state)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Look into questions until cancelled."""
        async with anyio.create_task_group() as group:
            for _ in range(LOOKERS):
                group.start_soon(self._look_on)
            task_status.started()

    # ── who looks when ──────────────────────────────────────────────────────────────────

    def _look_soon(self, question: _Question) -> None:
        question.is_stale = True
        if not question.is_queued:
            question.is_queued = True
            self._queue.append(question)
            self._queued.set()

    def _wake(self, key: Key) -> None:
        for question in self._entered.get(key, ()):
            self._look_soon(question)

    def _task_moved(self, task_no: TaskNo, state: TaskState) -> None:
        if state.is_live:
            return
        self._wake(("task", task_no))
        for question in self._counting:
            if question.children and question.children[0] <= task_no < question.children[1]:
                question.seen += 1
                if question.seen >= question.missing:
                    self._look_soon(question)

    async def _look_on(self) -> None:
        while True:
            while not self._queue:
                self._queued = anyio.Event()
                await self._queued.wait()
            question = self._queue.popleft()
            try:
                await self._look(question)
            except StoreUnavailable as exc:
                _logger.warning("cannot answer now: %s", exc)
                await self._clock.sleep(AWAY_SECONDS)
                question.is_stale = True
            question.is_queued = False
            if question.is_stale:
                self._look_soon(question)

    async def _look(self, question: _Question) -> None:
        question.is_stale = False
        question.seen = 0
        if question.is_withdrawn or not question.asker.is_open:
            self._leave(question)
            return
        wanted = question.wanted
        try:
            answer: ResultsPage | RecordsPage | RunEnding | EventsPage | None
            if isinstance(wanted, ResultsWanted):
                answer = await read_page(self._store, _info(question), wanted)
            elif isinstance(wanted, RecordsWanted):
                answer = await read_records(self._store, _info(question), wanted)
            elif isinstance(wanted, EventsWanted):
                if wanted.until is None:
                    self._enter(question, ("event", wanted.name))
                answer = await read_events(self._store, wanted)
            else:
                answer = await self._ending(question, wanted)
        except _Refused as exc:
            self._leave(question)
            refuse(question.asker, question.ask, str(exc))
            return
        if question.is_withdrawn:
            self._leave(question)
        elif answer is not None:
            self._leave(question)
            body = msgspec.msgpack.encode(answer)
            question.asker.send([Answer(question.ask.question, body)])

    def _enter(self, question: _Question, key: Key) -> None:
        """Have the question looked into again when this changes."""
        if key not in question.keys:
            question.keys.add(key)
            self._entered.setdefault(key, {})[question] = None
            self._waiting.add(question)
            self._purge_if_due()

    def _leave(self, question: _Question) -> None:
        for key in question.keys:
            entered = self._entered[key]
            entered.pop(question, None)
            if not entered:
                del self._entered[key]
        if question.waiting is not None:
            self._cycles.remove(question.waiting)
            question.waiting = None
        question.keys.clear()
        question.is_stale = False
        of_asker = self._open[question.asker]
        of_asker.pop(question.ask.question, None)
        if not of_asker:
            del self._open[question.asker]
        self._waiting.discard(question)
        self._counting.discard(question)

    def _purge_if_due(self) -> None:
        """Drop the questions of dead processes, whenever they may have doubled the number."""
        if len(self._waiting) >= self._purge_at:
            for question in [q for q in self._waiting if not q.asker.is_open]:
                self._leave(question)
            self._purge_at = max(1_000, 2 * len(self._waiting))

    # ── how a run or task ends ──────────────────────────────────────────────────────────

    async def _ending(self, question: _Question, wanted: RunWanted) -> RunEnding | None:
        run = await self._find(question, wanted)
        if run is None:
            await self._require_dag(wanted.dag_id)
            return None
        if run.dag_id != wanted.dag_id:
            raise _Refused(f"run {run.run_id!r} belongs to DAG {run.dag_id!r}")
        if run.state.is_live:
            self._enter(question, ("run", run.run_no))
            # It may have ended between that look and this entry.
            run = await self._store.find_run(run.run_id) or run
        ending = None
        if wanted.task_id is not None:
            ending = await self._task_ending(question, run, wanted.task_id)
        elif not run.state.is_live:
            ending = RunEnding(run.run_id, run.state.label, None)
        if ending is None:
            await self._say_if_cycle(question, run, wanted)
        return ending

    async def _say_if_cycle(self, question: _Question, run: RunRow, wanted: RunWanted) -> None:
        """It waits from now on: it may be the one that closes a cycle."""
        if question.waiting is not None:
            return
        leads_to = None
        if wanted.task_id is not None:
            position, _ = await self._position(run, wanted.task_id)
            leads_to = before(await self._spec(run), position)
        if question not in self._waiting:
            return  # its process died meanwhile
        question.waiting = Waiting(
            question.ask.run_no,
            wanted.position,
            wanted.map_index,
            run.run_no,
            run.run_id,
            leads_to,
        )
        cycle = self._cycles.add(question.waiting)
        if cycle:
            _logger.warning("runs wait for each other and will not end by themselves: %s", cycle)

    async def _find(self, question: _Question, wanted: RunWanted) -> RunRow | None:
        if wanted.run_id is not None:
            self._enter(question, ("id", wanted.run_id))
            return await self._store.find_run(wanted.run_id)
        if wanted.logical_date is not None:
            self._enter(question, ("at", wanted.dag_id, wanted.logical_date))
            return await self._store.find_run_at(wanted.dag_id, wanted.logical_date)
        self._enter(question, ("end", wanted.dag_id))
        return await self._store.latest_ended_run(wanted.dag_id, wanted.since)

    async def _require_dag(self, dag_id: str) -> None:
        if dag_id not in self._dags:
            self._dags = {dag.dag_id for dag in await self._store.list_dags()}
            if dag_id not in self._dags:
                raise _Refused(f"there is no DAG {dag_id!r}")

    async def _task_ending(
        self, question: _Question, run: RunRow, task_id: str
    ) -> RunEnding | None:
        position, spec = await self._position(run, task_id)
        task_no = run.first_task_no + position
        self._enter(question, ("task", task_no))
        state = await self._state_of(task_no)
        result = None
        if state is not None and not state.is_live:
            found = await self._store.list_results(task_no, task_no + 1, 1)
            result = found[0].body if found else None
        elif spec.mapped is not None:
            made_by = max((source.position for source in spec.mapped.sources), default=-1)
            state = await self._state_of_children(question, run, position, made_by)
        if state is None or state.is_live:
            if run.state.is_live:
                return None
            state = TaskState.REMOVED  # the run ended and never came to it
        return RunEnding(run.run_id, state.label, result)

    async def _state_of(self, task_no: TaskNo) -> TaskState | None:
        rows = await self._store.list_tasks_between(task_no, task_no + 1, 1)
        return rows[0].state if rows else None

    async def _state_of_children(
        self, question: _Question, run: RunRow, position: int, made_by: int
    ) -> TaskState | None:
        """Return the worst state of a mapped task's children once all have ended.

        Args:
            made_by: Whose list, or stream, it expands over; -1 for none.
        """
        self._enter(question, ("expanded", run.run_no, position))
        expansion = await find_expansion(self._store, run.run_no, position)
        if expansion is None or expansion.is_open:
            return None
        question.children = (expansion.first_task_no, expansion.first_task_no + expansion.width)
        self._counting.add(question)
        question.seen = 0
        counts = {
            state: count
            for at, state, count in await self._store.count_states(run.run_no)
            if at == position and not state.is_live
        }
        question.missing = expansion.width - sum(counts.values())
        if question.missing > 0:
            if question.seen >= question.missing:
                question.is_stale = True  # the rest ended while we counted
            return None
        made = await self._state_of(run.first_task_no + made_by) if made_by >= 0 else None
        if made is not None and made not in {TaskState.SUCCESS, TaskState.SKIPPED}:
            counts.setdefault(TaskState.UPSTREAM_FAILED, 1)  # its stream was cut short
        if not expansion.width:
            counts.setdefault(TaskState.SKIPPED, 1)
        return next((state for state in _WORST_FIRST if counts.get(state)), TaskState.REMOVED)

    async def _position(self, run: RunRow, task_id: str) -> tuple[int, TaskSpec]:
        spec = await self._spec(run)
        for position, task in enumerate(spec.tasks):
            if task.task_id == task_id:
                return position, task
        raise _Refused(f"DAG {run.dag_id!r} has no task {task_id!r}")

    async def _spec(self, run: RunRow) -> DagSpec:
        key = (run.version, run.dag_id)
        if key not in self._specs:
            row = await self._store.find_version(run.version)
            dags = () if row is None else row.dags
            found = next((dag for dag in dags if dag.dag_id == run.dag_id), None)
            if found is None:
                raise _Refused(f"the version of run {run.run_id!r} is not known")
            while len(self._specs) >= VERSIONS_KEPT:
                del self._specs[next(iter(self._specs))]
            self._specs[key] = found
        return self._specs[key]


def _info(question: _Question) -> RunInfo:
    info = question.asker.info(question.ask.run_no)
    if info is None:
        raise _Refused("only a process that runs tasks of a run may read their results")
    return info
