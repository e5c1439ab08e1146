"""Replies to queries about how runs and their tasks end, for many waits at once.

A wait is registered *before* the store is read. If a change is committed between the registration
and the read, it triggers another look-up, so no change is missed. Hundreds of waits are looked up
together, with a few statements.

The ending of a task is read from its rows. The spec of the DAG says which rows these are.
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
from aioflow.model.dag import DagSpec, MapSpec, TaskSpec
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import RunRow, TaskRow, VersionRow
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import Reply, RunInfo
from aioflow.protocol.reports import Query
from aioflow.queries.lookups import Reader, find_expansion
from aioflow.queries.wait_cycles import Cycles, before
from aioflow.queries.waits import (
    MappedTasks,
    RunsQuery,
    Wait,
    WaitNo,
    Waits,
    dated_run_key,
    next_run_key,
    run_id_key,
)
from aioflow.worker.query.messages import PAGE_BYTES, RunEnded, RunEnding, RunsWanted

__all__ = ("STORE_RETRY_SECONDS", "DagSpecs", "NoSuchTask", "RunCompletionWaits", "task_ending")

VERSIONS_LIMIT = 256

_WORST_FIRST = (
    TaskState.FAILED,
    TaskState.UPSTREAM_FAILED,
    TaskState.CANCELLED,
    TaskState.SUCCESS,
    TaskState.SKIPPED,
)


class NoSuchTask(Exception):
    """The run has no such task."""


class DagSpecs:
    """The specs of the DAGs whose runs are queried, by version."""

    def __init__(self, store: Reader) -> None:
        self._store = store
        self._specs: dict[tuple[str, str], DagSpec] = {}
        self._before: dict[tuple[str, str, int], frozenset[int]] = {}

    async def task_index(self, run: RunRow, task_id: str) -> int:
        """Return the index of a task in its run.

        Raises:
            NoSuchTask: If the run has no such task.
        """
        spec = await self._of(run)
        for task_index, task in enumerate(spec.tasks):
            if task.task_id == task_id:
                return task_index
        raise NoSuchTask(f"DAG {run.dag_id!r} has no task {task_id!r}")

    async def has_task(self, dag_id: str, task_id: str) -> bool:
        """Return whether a current or future run of a DAG may have a task.

        This is so if the task is in the DAG's newest version, or in a version that an active run
        needs.
        """
        dags = await self._store.list_dags()
        newest = next((dag.version for dag in dags if dag.dag_id == dag_id), None)
        row = None if newest is None else await self._store.find_version(newest)
        if row is None or _defines(row, dag_id, task_id):
            return True  # this includes an unknown DAG
        needed = await self._store.list_needed_versions()
        return any(_defines(version, dag_id, task_id) for version in needed)

    async def task(self, run: RunRow | RunInfo, task_index: int) -> TaskSpec:
        """Return the spec of a task.

        Raises:
            NoSuchTask: If the run has no task with this index.
        """
        tasks = (await self._of(run)).tasks
        if not 0 <= task_index < len(tasks):
            raise NoSuchTask(f"DAG {run.dag_id!r} has no task with index {task_index}")
        return tasks[task_index]

    async def before(self, run: RunRow, task_index: int) -> frozenset[int]:
        """Return the indexes of a task and of all tasks that have to end before it."""
        spec, key = await self._of(run), (run.version, run.dag_id, task_index)
        if key not in self._before:
            if len(self._before) >= VERSIONS_LIMIT:
                self._before.clear()
            self._before[key] = before(spec, task_index)
        return self._before[key]

    async def _of(self, run: RunRow | RunInfo) -> DagSpec:
        key = (run.version, run.dag_id)
        if key not in self._specs:
            row = await self._store.find_version(run.version)
            dags = () if row is None else row.dags
            found = next((dag for dag in dags if dag.dag_id == run.dag_id), None)
            if found is None:
                raise NoSuchTask(f"the version of run {run.run_id!r} is not known")
            while len(self._specs) >= VERSIONS_LIMIT:
                del self._specs[next(iter(self._specs))]
            self._specs[key] = found
        return self._specs[key]


def _defines(version: VersionRow, dag_id: str, task_id: str) -> bool:
    tasks = (task for dag in version.dags if dag.dag_id == dag_id for task in dag.tasks)
    return any(task.task_id == task_id for task in tasks)


async def task_ending(
    store: Reader,
    mapped: MappedTasks,
    run: RunRow,
    task_index: int,
    spec: TaskSpec,
    row: TaskRow | None,
) -> tuple[RunEnding | None, bool]:
    """Return how a task ended; ``None`` if it has not ended.

    Args:
        mapped: Counts the ends of children. They are registered there before they are read.
        row: The row of the task itself, if it has one.

    Returns:
        How the task ended, and whether its children ended while they were counted. In that
        case, look up the task again.
    """
    state = None if row is None else row.state
    result, again = None, False
    task_no = run.first_task_no + task_index
    if state is not None and not state.is_live:
        found = await store.list_results(task_no, task_no + 1, 1)
        result = found[0].body if found else None
    elif spec.mapped is not None:
        if run.state.is_live:
            mapped.expect(task_no, run.run_no, task_index)
        state, again = await _state_of_children(store, mapped, run, task_index, spec.mapped)
    if state is None or state.is_live:
        if run.state.is_live:
            return None, again
        # The run ended before it reached the task; a user may have marked the run successful.
        state = TaskState.SUCCESS if run.state is RunState.SUCCESS else TaskState.REMOVED
    return RunEnding(run.run_id, state.label, result), False


async def _state_of_children(
    store: Reader, mapped: MappedTasks, run: RunRow, task_index: int, spec: MapSpec
) -> tuple[TaskState | None, bool]:
    """Return the worst state of a mapped task's children once all have ended.

    For a task in a loop, return the state of the last iteration. The second value says whether to
    look up the task again, because children ended during the count.
    """
    expansion = await find_expansion(store, run.run_no, task_index)
    if expansion is None or expansion.is_open:
        return None, False
    task_no = run.first_task_no + task_index
    count = mapped.count(task_no, expansion.first_task_no, expansion.width)
    counts = {
        state: number
        for at, state, number in await store.count_states(run.run_no)
        if at == task_index and not state.is_live
    }
    count.missing = expansion.width - sum(counts.values())
    if count.missing > 0:
        return None, count.seen >= count.missing  # the missing children ended during the count
    if spec.until >= 0:
        last = expansion.first_task_no + expansion.width - 1
        rows = await store.list_tasks_between(last, last + 1, 1)
        return (rows[0].state if rows else None), False
    made, made_by = None, max((source.task_index for source in spec.sources), default=-1)
    if made_by >= 0:
        first = run.first_task_no + made_by
        rows = await store.list_tasks_between(first, first + 1, 1)
        made = rows[0].state if rows else None
    if made is not None and made not in {TaskState.SUCCESS, TaskState.SKIPPED}:
        counts.setdefault(TaskState.UPSTREAM_FAILED, 1)  # the stream of items ended early
    if not expansion.width:
        counts.setdefault(TaskState.SKIPPED, 1)
    return next((state for state in _WORST_FIRST if counts.get(state)), TaskState.REMOVED), False


AT_ONCE = 500
"""Maximum number of waits looked up together."""

STORE_RETRY_SECONDS = 0.5

TASKS_LIMIT = 10_000
"""Maximum number of tasks whose existence is cached. Further tasks are looked up each time."""

_logger = logging.getLogger(__name__)

_Outcome: TypeAlias = RunEnding | str


class _Lookup:
    """A wait that is being looked up."""

    __slots__ = ("dag_id", "no", "outcome", "run", "task_id", "task_index", "wait")

    def __init__(self, no: WaitNo, wait: Wait, dag_id: str, task_id: str | None) -> None:
        self.no = no
        self.wait = wait
        self.dag_id = dag_id
        self.task_id = task_id
        self.run: RunRow | None = None
        self.task_index = -1
        self.outcome: _Outcome | None = None


class RunCompletionWaits:
    """A registry of waits for runs and tasks to end. It looks the waits up and replies to them.

    Args:
        still_waits: See ``Cycles``.
    """

    def __init__(
        self, store: Reader, clock: Clock, still_waits: Callable[[RunNo, int, int], bool]
    ) -> None:
        self._store = store
        self._clock = clock
        self._waits = Waits()
        self._specs = DagSpecs(store)
        self._cycles = Cycles(self._waits, still_waits)
        self._queue: deque[WaitNo] = deque()
        self._queued: set[WaitNo] = set()
        self._has_work = anyio.Event()
        self._purge_at = 1_000
        self._dags: set[str] = set()
        self._tasks: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._waits)

    def cycle(self, run_no: RunNo, task_index: int, map_index: int) -> str:
        """Return the cycle of waits that a task is part of; see ``Cycles.of_task``."""
        return self._cycles.of_task(run_no, task_index, map_index)

    def submit(self, sender: QuerySender, query: Query) -> None:
        """Register the runs that a query names, in addition to the runs that it named before.

        Raises:
            msgspec.DecodeError: If the query is malformed, or another error of ``UNDECODABLE``.
        """
        wanted = msgspec.msgpack.decode(query.body, type=RunsWanted)
        target = (wanted.dag_id, wanted.task_id)
        self._enqueue(
            [
                self._waits.add(sender, query.question, query.run_no, target, run)
                for run in wanted.runs
            ]
        )
        if len(self._waits) >= self._purge_at:
            # Remove waits of dead processes, each time the number of waits may have doubled.
            self._waits.drop_closed()
            self._purge_at = max(1_000, 2 * len(self._waits))

    def cancel(self, sender: QuerySender, question: int, numbers: tuple[int, ...]) -> None:
        """Remove waits of a query. See ``Waits.cancel``."""
        self._waits.cancel(sender, question, numbers)

    def on_commit(self, batch: Batch, run: Callable[[RunNo], RunRow | None]) -> None:
        """Look up again only those waits that a committed batch may answer."""
        waits = self._waits
        if not waits:
            return
        for new in batch.new_runs:
            self._enqueue(waits.by_name.at(run_id_key(new.run_id)))
            if new.logical_date is not None:
                self._enqueue(waits.by_name.at(dated_run_key(new.dag_id, new.logical_date)))
        for change in batch.run_changes:
            if not change.state.is_live:
                self._enqueue(waits.by_run.at(change.run_no))
                row = run(change.run_no)
                if row is not None:
                    self._enqueue(waits.by_name.at(next_run_key(row.dag_id)))
        for expansion in batch.new_expansions:
            self._expanded(expansion.run_no, expansion.task_index)
        for grown in batch.expansion_changes:
            self._expanded(grown.run_no, grown.task_index)
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
                self._queued = set()  # a set never shrinks, so replace it
                self._has_work = anyio.Event()
                await self._has_work.wait()
            numbers = [self._queue.popleft() for _ in range(min(AT_ONCE, len(self._queue)))]
            self._queued.difference_update(numbers)
            try:
                await self._look_up(numbers)
            except StoreUnavailable as exc:
                _logger.warning("cannot answer now: %s", exc)
                await self._clock.sleep(STORE_RETRY_SECONDS)
                self._enqueue(numbers)

    # ── which waits are looked up ───────────────────────────────────────────────────────

    def _enqueue(self, numbers: Iterable[WaitNo]) -> None:
        for no in numbers:
            if no not in self._queued:
                self._queued.add(no)
                self._queue.append(no)
                self._has_work.set()

    def _expanded(self, run_no: RunNo, task_index: int) -> None:
        task_no = self._waits.mapped.at(run_no, task_index)
        if task_no is not None:
            self._enqueue(self._waits.by_task.at(task_no))

    def _task_moved(self, task_no: TaskNo, state: TaskState) -> None:
        if state.is_live:
            return
        self._enqueue(self._waits.by_task.at(task_no))
        ended = self._waits.mapped.child_ended(task_no)
        if ended is not None:
            self._enqueue(self._waits.by_task.at(ended))

    # ── a look-up ───────────────────────────────────────────────────────────────────────

    async def _look_up(self, numbers: Sequence[WaitNo]) -> None:
        """Look up waits together. If the database refuses one of them, refuse only that wait."""
        try:
            await self._look_up_all(numbers)
        except BatchRefused as exc:
            if len(numbers) > 1:
                for no in numbers:
                    await self._look_up([no])
                return
            lookups = self._open(numbers)
            for lookup in lookups:
                lookup.outcome = str(exc)
            self._reply(lookups)

    async def _look_up_all(self, numbers: Sequence[WaitNo]) -> None:
        lookups = self._open(numbers)
        await self._find(lookups)
        await self._refuse_unknown(lookups)
        found = [lookup for lookup in lookups if lookup.run is not None and lookup.outcome is None]
        fresh = await self._register(found)
        if fresh:
            # These runs may have ended between the first read and the registration.
            await self._find_again(fresh, found)
        await self._resolve(found)
        self._reply(lookups)
        for lookup in fresh:
            if lookup.outcome is None:
                self._warn_of_cycle(lookup.no)

    def _open(self, numbers: Sequence[WaitNo]) -> list[_Lookup]:
        lookups = []
        for no in numbers:
            wait = self._waits.get(no)
            if wait is None:
                continue
            runs_query, _ = self._waits.query_of(no)
            if runs_query.sender.is_open:
                lookups.append(_Lookup(no, wait, *self._waits.target(wait)))
            else:
                self._waits.drop(no)
        return lookups

    async def _find(self, lookups: Sequence[_Lookup]) -> None:
        """Find the run that each wait is for, if that run exists."""
        by_id: dict[str, list[_Lookup]] = defaultdict(list)
        by_date: dict[str, dict[Timestamp, list[_Lookup]]] = defaultdict(lambda: defaultdict(list))
        by_since: dict[str, dict[Timestamp, list[_Lookup]]] = defaultdict(lambda: defaultdict(list))
        for lookup in lookups:
            wait = lookup.wait
            if wait.run_id is not None:
                by_id[wait.run_id].append(lookup)
            elif wait.logical_date is not None:
                by_date[lookup.dag_id][wait.logical_date].append(lookup)
            else:
                by_since[lookup.dag_id][wait.since].append(lookup)
        if by_id:
            for run in await self._store.find_runs(by_id):
                _set_run(by_id[run.run_id], run)
        for dag_id, dates in by_date.items():
            for run in await self._store.find_runs_at(dag_id, dates):
                if run.logical_date is not None:
                    _set_run(dates[run.logical_date], run)
        for dag_id, timestamps in by_since.items():
            await self._find_first_ended(dag_id, timestamps)

    async def _find_first_ended(
        self, dag_id: str, timestamps: dict[Timestamp, list[_Lookup]]
    ) -> None:
        """Find, for each timestamp, the first run that ended at or after it.

        A run is the answer for all timestamps from the previous answer up to its end.
        """
        rest = sorted(timestamps)
        while rest:
            run = await self._store.first_run_ended_since(dag_id, rest[0])
            if run is None:
                return
            reached = max(1, bisect_right(rest, run.ended_at or 0))
            for since in rest[:reached]:
                _set_run(timestamps[since], run)
            del rest[:reached]

    async def _find_again(self, fresh: Sequence[_Lookup], found: Sequence[_Lookup]) -> None:
        ids = {lookup.run.run_id for lookup in fresh if lookup.run is not None}
        runs = {run.run_id: run for run in await self._store.find_runs(ids)}
        for lookup in found:  # other waits may be for the same runs
            if lookup.run is not None:
                lookup.run = runs.get(lookup.run.run_id, lookup.run)

    async def _refuse_unknown(self, lookups: Sequence[_Lookup]) -> None:
        """Refuse waits that no run can satisfy, because the DAG or task does not exist."""
        for lookup in lookups:
            if lookup.run is not None:
                if lookup.run.dag_id != lookup.dag_id:
                    lookup.outcome = (
                        f"run {lookup.run.run_id!r} belongs to DAG {lookup.run.dag_id!r}"
                    )
            elif lookup.dag_id not in self._dags:
                self._dags = {dag.dag_id for dag in await self._store.list_dags()}
                if lookup.dag_id not in self._dags:
                    lookup.outcome = f"there is no DAG {lookup.dag_id!r}"
            if lookup.run is None and lookup.outcome is None and lookup.task_id is not None:
                target = (lookup.dag_id, lookup.task_id)
                if target not in self._tasks and not await self._specs.has_task(*target):
                    lookup.outcome = (
                        f"DAG {lookup.dag_id!r} has no task {lookup.task_id!r}, neither in its "
                        "newest version nor in one that a run still needs"
                    )
                elif len(self._tasks) < TASKS_LIMIT:
                    self._tasks.add(target)

    async def _register(self, found: Sequence[_Lookup]) -> list[_Lookup]:
        """Register waits for changes of their runs, if these are active. Return the new waits."""
        fresh = []
        for lookup in found:
            run = lookup.run
            assert run is not None  # noqa: S101 - for the type checker
            leads_to = None
            if lookup.task_id is not None:
                try:
                    lookup.task_index = await self._specs.task_index(run, lookup.task_id)
                    leads_to = await self._specs.before(run, lookup.task_index)
                except NoSuchTask as exc:
                    lookup.outcome = str(exc)
                    continue
            if run.state.is_live:
                task_no = -1 if lookup.task_index < 0 else run.first_task_no + lookup.task_index
                if self._waits.bind_run(lookup.no, run, task_no, leads_to):
                    fresh.append(lookup)
        return fresh

    async def _resolve(self, found: Sequence[_Lookup]) -> None:
        """Determine the endings of the runs and tasks that have ended."""
        of_tasks: dict[TaskNo, list[_Lookup]] = defaultdict(list)
        for lookup in found:
            run = lookup.run
            assert run is not None  # noqa: S101 - for the type checker
            if lookup.outcome is not None:
                continue
            if lookup.task_index >= 0:
                of_tasks[run.first_task_no + lookup.task_index].append(lookup)
            elif not run.state.is_live:
                lookup.outcome = RunEnding(run.run_id, run.state.label, None)
        if of_tasks:
            await self._resolve_tasks(of_tasks)

    async def _resolve_tasks(self, of_tasks: dict[TaskNo, list[_Lookup]]) -> None:
        rows = {row.task_no: row for row in await self._store.find_tasks(of_tasks)}
        for task_no, lookups in of_tasks.items():
            run, task_index = lookups[0].run, lookups[0].task_index
            assert run is not None  # noqa: S101 - for the type checker
            spec = await self._specs.task(run, task_index)
            ending, again = await task_ending(
                self._store, self._waits.mapped, run, task_index, spec, rows.get(task_no)
            )
            for lookup in lookups:
                lookup.outcome = ending
            if again:
                self._enqueue([lookup.no for lookup in lookups])
            if task_no not in self._waits.by_task:
                self._waits.mapped.forget(task_no)  # no query waits for the task any more

    def _reply(self, lookups: Sequence[_Lookup]) -> None:
        """Send the endings to those queries that were not cancelled, and remove their waits."""
        endings_by_query: dict[RunsQuery, list[RunEnded]] = defaultdict(list)
        sizes: dict[RunsQuery, int] = defaultdict(int)
        for lookup in lookups:
            outcome = lookup.outcome
            if outcome is None or lookup.no not in self._waits:
                continue
            runs_query, number = self._waits.query_of(lookup.no)
            self._waits.drop(lookup.no)
            endings_by_query[runs_query].append(RunEnded(number, outcome))
            sizes[runs_query] += len(outcome if isinstance(outcome, str) else outcome.result or b"")
            if sizes[runs_query] >= PAGE_BYTES:
                _send_endings(runs_query, endings_by_query.pop(runs_query))
                del sizes[runs_query]
        for runs_query, endings in endings_by_query.items():
            _send_endings(runs_query, endings)

    def _warn_of_cycle(self, no: WaitNo) -> None:
        """Log a warning if a wait closes a cycle. The run that it waits for is known by now."""
        cycle = self._cycles.closed_by(no)
        if cycle:
            _logger.warning("runs wait for each other and cannot end: %s", cycle)


def _set_run(lookups: Iterable[_Lookup], run: RunRow) -> None:
    for lookup in lookups:
        lookup.run = run


def _send_endings(runs_query: RunsQuery, endings: list[RunEnded]) -> None:
    runs_query.sender.send([Reply(runs_query.question, msgspec.msgpack.encode(endings))])
