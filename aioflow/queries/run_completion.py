"""Replies to queries about how runs end, for many waits at once.

A wait is registered *before* the store is read. A change committed meanwhile then triggers another
look-up, so no change is missed. Hundreds of waits are looked up together, with a few statements.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import anyio
import msgspec

from aioflow.clock import Clock
from aioflow.errors import BatchRefused, StoreUnavailable
from aioflow.executors.executor_context import QuerySender
from aioflow.model.batch import Batch
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import RunRow
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import Reply
from aioflow.protocol.reports import Query
from aioflow.queries.pages import Reader
from aioflow.queries.tasks import NoSuchTask, Specs, task_ending
from aioflow.queries.wait_cycles import Cycles
from aioflow.queries.waits import RunsQuery, Wait, WaitNo, Waits, dated, named, of_dag
from aioflow.worker.queries import PAGE_BYTES, RunEnded, RunEnding, RunsWanted

__all__ = ("STORE_RETRY_SECONDS", "RunCompletionWaits")

AT_ONCE = 500
"""Maximum number of waits looked up together."""

STORE_RETRY_SECONDS = 0.5

TASKS_LIMIT = 10_000
"""Number of existing tasks of DAGs that are cached; further ones are looked up each time."""

_logger = logging.getLogger(__name__)

_Outcome: TypeAlias = RunEnding | str


class _Lookup:
    """A wait that is being looked up."""

    __slots__ = ("dag_id", "no", "outcome", "position", "run", "task_id", "wait")

    def __init__(self, no: WaitNo, wait: Wait, dag_id: str, task_id: str | None) -> None:
        self.no = no
        self.wait = wait
        self.dag_id = dag_id
        self.task_id = task_id
        self.run: RunRow | None = None
        self.position = -1
        self.outcome: _Outcome | None = None


class RunCompletionWaits:
    """Waits for the endings of runs and tasks.

    Args:
        still_waits: See ``Cycles``.
    """

    def __init__(
        self, store: Reader, clock: Clock, still_waits: Callable[[RunNo, int, int], bool]
    ) -> None:
        self._store = store
        self._clock = clock
        self._waits = Waits()
        self._specs = Specs(store)
        self._cycles = Cycles(self._waits, still_waits)
        self._queue: deque[WaitNo] = deque()
        self._queued: set[WaitNo] = set()
        self._stirred = anyio.Event()
        self._purge_at = 1_000
        self._dags: set[str] = set()
        self._tasks: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._waits)

    def cycle(self, run_no: RunNo, position: int, map_index: int) -> str:
        """See ``Cycles.of_task``."""
        return self._cycles.of_task(run_no, position, map_index)

    def ask(self, asker: QuerySender, ask: Query) -> None:
        """Register the runs that a query names, adding to earlier ones of the same query.

        Raises:
            msgspec.DecodeError: If the query is malformed.
        """
        wanted = msgspec.msgpack.decode(ask.body, type=RunsWanted)
        target = (wanted.dag_id, wanted.task_id)
        self._look_soon(
            [self._waits.add(asker, ask.question, ask.run_no, target, run) for run in wanted.runs]
        )
        if len(self._waits) >= self._purge_at:
            # Remove waits of dead processes, each time the total may have doubled.
            self._waits.drop_closed()
            self._purge_at = max(1_000, 2 * len(self._waits))

    def withdraw(self, asker: QuerySender, question: int, numbers: tuple[int, ...]) -> None:
        """See ``Waits``."""
        self._waits.withdraw(asker, question, numbers)

    def on_commit(self, batch: Batch, run: Callable[[RunNo], RunRow | None]) -> None:
        """Look up only those waits again that a committed batch may answer."""
        waits = self._waits
        if not waits:
            return
        for new in batch.new_runs:
            self._look_soon(waits.by_name.at(named(new.run_id)))
            if new.logical_date is not None:
                self._look_soon(waits.by_name.at(dated(new.dag_id, new.logical_date)))
        for change in batch.run_changes:
            if not change.state.is_live:
                self._look_soon(waits.by_run.at(change.run_no))
                row = run(change.run_no)
                if row is not None:
                    self._look_soon(waits.by_name.at(of_dag(row.dag_id)))
        for expansion in batch.new_expansions:
            self._expanded(expansion.run_no, expansion.position)
        for grown in batch.expansion_changes:
            self._expanded(grown.run_no, grown.position)
        if not waits.by_task:
            return
        for task in batch.task_changes:
            self._task_moved(task.task_no, task.state)
        for new_task in batch.new_tasks:
            self._task_moved(new_task.task_no, new_task.state)

    async def run(self) -> None:
        """Process waits until cancelled."""
        while True:
            while not self._queue:
                self._queued = set()  # a set that has been large keeps its size
                self._stirred = anyio.Event()
                await self._stirred.wait()
            numbers = [self._queue.popleft() for _ in range(min(AT_ONCE, len(self._queue)))]
            self._queued.difference_update(numbers)
            try:
                await self._look_at(numbers)
            except StoreUnavailable as exc:
                _logger.warning("cannot answer now: %s", exc)
                await self._clock.sleep(STORE_RETRY_SECONDS)
                self._look_soon(numbers)

    # ── which waits are looked up ───────────────────────────────────────────────────────

    def _look_soon(self, numbers: Iterable[WaitNo]) -> None:
        for no in numbers:
            if no not in self._queued:
                self._queued.add(no)
                self._queue.append(no)
                self._stirred.set()

    def _expanded(self, run_no: RunNo, position: int) -> None:
        task_no = self._waits.mapped.at(run_no, position)
        if task_no is not None:
            self._look_soon(self._waits.by_task.at(task_no))

    def _task_moved(self, task_no: TaskNo, state: TaskState) -> None:
        if state.is_live:
            return
        self._look_soon(self._waits.by_task.at(task_no))
        ended = self._waits.mapped.child_ended(task_no)
        if ended is not None:
            self._look_soon(self._waits.by_task.at(ended))

    # ── a look-up ───────────────────────────────────────────────────────────────────────

    async def _look_at(self, numbers: Sequence[WaitNo]) -> None:
        """Look up waits together. If the database refuses one of them, refuse only that one."""
        try:
            await self._look(numbers)
        except BatchRefused as exc:
            if len(numbers) > 1:
                for no in numbers:
                    await self._look_at([no])
                return
            looks = self._open(numbers)
            for look in looks:
                look.outcome = str(exc)
            self._answer(looks)

    async def _look(self, numbers: Sequence[WaitNo]) -> None:
        looks = self._open(numbers)
        await self._find(looks)
        await self._refuse_unknown(looks)
        found = [look for look in looks if look.run is not None and look.outcome is None]
        fresh = await self._enter(found)
        if fresh:
            # They may have ended between the first read and their registration.
            await self._find_again(fresh, found)
        await self._judge(found)
        self._answer(looks)
        for look in fresh:
            if look.outcome is None:
                self._say_if_cycle(look.no)

    def _open(self, numbers: Sequence[WaitNo]) -> list[_Lookup]:
        looks = []
        for no in numbers:
            wait = self._waits.get(no)
            if wait is None:
                continue
            asked, _ = self._waits.asked(no)
            if asked.asker.is_open:
                looks.append(_Lookup(no, wait, *self._waits.target(wait)))
            else:
                self._waits.drop(no)
        return looks

    async def _find(self, looks: Sequence[_Lookup]) -> None:
        """Find the run that each wait is for, if there is one."""
        by_id: dict[str, list[_Lookup]] = defaultdict(list)
        by_date: dict[str, dict[Timestamp, list[_Lookup]]] = defaultdict(lambda: defaultdict(list))
        by_since: dict[str, dict[Timestamp, list[_Lookup]]] = defaultdict(lambda: defaultdict(list))
        for look in looks:
            wait = look.wait
            if wait.run_id is not None:
                by_id[wait.run_id].append(look)
            elif wait.logical_date is not None:
                by_date[look.dag_id][wait.logical_date].append(look)
            else:
                by_since[look.dag_id][wait.since].append(look)
        if by_id:
            for run in await self._store.find_runs(by_id):
                _found(by_id[run.run_id], run)
        for dag_id, dates in by_date.items():
            for run in await self._store.find_runs_at(dag_id, dates):
                if run.logical_date is not None:
                    _found(dates[run.logical_date], run)
        for dag_id, instants in by_since.items():
            await self._find_first_ended(dag_id, instants)

    async def _find_first_ended(
        self, dag_id: str, instants: dict[Timestamp, list[_Lookup]]
    ) -> None:
        """Find the first ended run for each timestamp.

        One run serves all timestamps up to its end.
        """
        rest = sorted(instants)
        while rest:
            run = await self._store.latest_ended_run(dag_id, rest[0])
            if run is None:
                return
            reached = max(1, bisect_right(rest, run.ended_at or 0))
            for since in rest[:reached]:
                _found(instants[since], run)
            del rest[:reached]

    async def _find_again(self, fresh: Sequence[_Lookup], found: Sequence[_Lookup]) -> None:
        ids = {look.run.run_id for look in fresh if look.run is not None}
        runs = {run.run_id: run for run in await self._store.find_runs(ids)}
        for look in found:  # other waits may be for the same runs
            if look.run is not None:
                look.run = runs.get(look.run.run_id, look.run)

    async def _refuse_unknown(self, looks: Sequence[_Lookup]) -> None:
        """Refuse waits that no run can satisfy: for a DAG or task that does not exist."""
        for look in looks:
            if look.run is not None:
                if look.run.dag_id != look.dag_id:
                    look.outcome = f"run {look.run.run_id!r} belongs to DAG {look.run.dag_id!r}"
            elif look.dag_id not in self._dags:
                self._dags = {dag.dag_id for dag in await self._store.list_dags()}
                if look.dag_id not in self._dags:
                    look.outcome = f"there is no DAG {look.dag_id!r}"
            if look.run is None and look.outcome is None and look.task_id is not None:
                target = (look.dag_id, look.task_id)
                if target not in self._tasks and not await self._specs.has_task(*target):
                    look.outcome = (
                        f"DAG {look.dag_id!r} has no task {look.task_id!r}, neither in its newest "
                        "version nor in one that a run still needs"
                    )
                elif len(self._tasks) < TASKS_LIMIT:
                    self._tasks.add(target)

    async def _enter(self, found: Sequence[_Lookup]) -> list[_Lookup]:
        """Register waits for changes of their run, if it is active; return the new ones."""
        fresh = []
        for look in found:
            run = look.run
            assert run is not None  # noqa: S101 - for the type checker
            leads_to = None
            if look.task_id is not None:
                try:
                    look.position = await self._specs.position(run, look.task_id)
                    leads_to = await self._specs.before(run, look.position)
                except NoSuchTask as exc:
                    look.outcome = str(exc)
                    continue
            if run.state.is_live:
                task_no = -1 if look.position < 0 else run.first_task_no + look.position
                if self._waits.point(look.no, run, task_no, leads_to):
                    fresh.append(look)
        return fresh

    async def _judge(self, found: Sequence[_Lookup]) -> None:
        """Determine the endings of the runs and tasks that have ended."""
        of_tasks: dict[TaskNo, list[_Lookup]] = defaultdict(list)
        for look in found:
            run = look.run
            assert run is not None  # noqa: S101 - for the type checker
            if look.outcome is not None:
                continue
            if look.position >= 0:
                of_tasks[run.first_task_no + look.position].append(look)
            elif not run.state.is_live:
                look.outcome = RunEnding(run.run_id, run.state.label, None)
        if of_tasks:
            await self._judge_tasks(of_tasks)

    async def _judge_tasks(self, of_tasks: dict[TaskNo, list[_Lookup]]) -> None:
        rows = {row.task_no: row for row in await self._store.find_tasks(of_tasks)}
        for task_no, looks in of_tasks.items():
            run, position = looks[0].run, looks[0].position
            assert run is not None  # noqa: S101 - for the type checker
            spec = await self._specs.task(run, position)
            ending, again = await task_ending(
                self._store, self._waits.mapped, run, position, spec, rows.get(task_no)
            )
            for look in looks:
                look.outcome = ending
            if again:
                self._look_soon([look.no for look in looks])
            if task_no not in self._waits.by_task:
                self._waits.mapped.forget(task_no)  # no query waits for it any more

    def _answer(self, looks: Sequence[_Lookup]) -> None:
        """Send the endings to queries that were not cancelled, and remove their waits."""
        told: dict[RunsQuery, list[RunEnded]] = defaultdict(list)
        sizes: dict[RunsQuery, int] = defaultdict(int)
        for look in looks:
            outcome = look.outcome
            if outcome is None or look.no not in self._waits:
                continue
            asked, number = self._waits.asked(look.no)
            self._waits.drop(look.no)
            told[asked].append(RunEnded(number, outcome))
            sizes[asked] += len(outcome if isinstance(outcome, str) else outcome.result or b"")
            if sizes[asked] >= PAGE_BYTES:
                _send(asked, told.pop(asked))
                del sizes[asked]
        for asked, endings in told.items():
            _send(asked, endings)

    def _say_if_cycle(self, no: WaitNo) -> None:
        """Log a warning if the wait, which now has a run, closes a cycle."""
        cycle = self._cycles.closed_by(no)
        if cycle:
            _logger.warning("runs wait for each other and will not end by themselves: %s", cycle)


def _found(looks: Iterable[_Lookup], run: RunRow) -> None:
    for look in looks:
        look.run = run


def _send(asked: RunsQuery, endings: list[RunEnded]) -> None:
    asked.asker.send([Reply(asked.question, msgspec.msgpack.encode(endings))])
