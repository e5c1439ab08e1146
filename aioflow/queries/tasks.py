"""The ending of one task of a run, read from the rows, and the DAG specs that locate the task."""

from __future__ import annotations

from aioflow.model.dag import DagSpec, MapSpec, TaskSpec
from aioflow.model.rows import RunRow, TaskRow, VersionRow
from aioflow.model.states import RunState, TaskState
from aioflow.protocol.commands import RunInfo
from aioflow.queries.mapped_tasks import Mapped
from aioflow.queries.pages import Reader, find_expansion
from aioflow.queries.wait_cycles import before
from aioflow.worker.queries import RunEnding

__all__ = ("NoSuchTask", "Specs", "task_ending")

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


class Specs:
    """The DAGs of the runs in queries, by version."""

    def __init__(self, store: Reader) -> None:
        self._store = store
        self._specs: dict[tuple[str, str], DagSpec] = {}
        self._before: dict[tuple[str, str, int], frozenset[int]] = {}

    async def position(self, run: RunRow, task_id: str) -> int:
        """Return the position of a task in its run.

        Raises:
            NoSuchTask: If the run has no such task.
        """
        spec = await self._of(run)
        for position, task in enumerate(spec.tasks):
            if task.task_id == task_id:
                return position
        raise NoSuchTask(f"DAG {run.dag_id!r} has no task {task_id!r}")

    async def has_task(self, dag_id: str, task_id: str) -> bool:
        """Return whether a present or future run of a DAG may have a task.

        It may if the DAG's newest version has the task, or a version that an active run needs.
        """
        dags = await self._store.list_dags()
        newest = next((dag.version for dag in dags if dag.dag_id == dag_id), None)
        row = None if newest is None else await self._store.find_version(newest)
        if row is None or _defines(row, dag_id, task_id):
            return True  # also if the DAG is unknown
        needed = await self._store.list_needed_versions()
        return any(_defines(version, dag_id, task_id) for version in needed)

    async def task(self, run: RunRow | RunInfo, position: int) -> TaskSpec:
        """Return the spec of a task.

        Raises:
            NoSuchTask: If the run has no task at this position.
        """
        tasks = (await self._of(run)).tasks
        if not 0 <= position < len(tasks):
            raise NoSuchTask(f"DAG {run.dag_id!r} has no task at position {position}")
        return tasks[position]

    async def before(self, run: RunRow, position: int) -> frozenset[int]:
        """Return a task and all that have to end before it."""
        spec, key = await self._of(run), (run.version, run.dag_id, position)
        if key not in self._before:
            if len(self._before) >= VERSIONS_LIMIT:
                self._before.clear()
            self._before[key] = before(spec, position)
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
    mapped: Mapped,
    run: RunRow,
    position: int,
    spec: TaskSpec,
    row: TaskRow | None,
) -> tuple[RunEnding | None, bool]:
    """Return how a task ended; ``None`` if it has not.

    Args:
        mapped: Registers what to count before any children are read.
        row: The task's own, if it has one.

    Returns:
        Also whether its children ended while they were counted, which requires another look-up.
    """
    state = None if row is None else row.state
    result, again = None, False
    task_no = run.first_task_no + position
    if state is not None and not state.is_live:
        found = await store.list_results(task_no, task_no + 1, 1)
        result = found[0].body if found else None
    elif spec.mapped is not None:
        if run.state.is_live:
            mapped.expect(task_no, run.run_no, position)
        state, again = await _state_of_children(store, mapped, run, position, spec.mapped)
    if state is None or state.is_live:
        if run.state.is_live:
            return None, again
        # The run ended before it reached the task; a user may have marked the run successful.
        state = TaskState.SUCCESS if run.state is RunState.SUCCESS else TaskState.REMOVED
    return RunEnding(run.run_id, state.label, result), False


async def _state_of_children(
    store: Reader, mapped: Mapped, run: RunRow, position: int, spec: MapSpec
) -> tuple[TaskState | None, bool]:
    """Return the worst state of a mapped task's children once all have ended.

    For a task in a loop, return the state of the last iteration.
    """
    expansion = await find_expansion(store, run.run_no, position)
    if expansion is None or expansion.is_open:
        return None, False
    task_no = run.first_task_no + position
    count = mapped.count(task_no, expansion.first_task_no, expansion.width)
    counts = {
        state: number
        for at, state, number in await store.count_states(run.run_no)
        if at == position and not state.is_live
    }
    count.missing = expansion.width - sum(counts.values())
    if count.missing > 0:
        return None, count.seen >= count.missing  # the rest ended during the count
    if spec.until >= 0:
        last = expansion.first_task_no + expansion.width - 1
        rows = await store.list_tasks_between(last, last + 1, 1)
        return (rows[0].state if rows else None), False
    made, made_by = None, max((source.position for source in spec.sources), default=-1)
    if made_by >= 0:
        first = run.first_task_no + made_by
        rows = await store.list_tasks_between(first, first + 1, 1)
        made = rows[0].state if rows else None
    if made is not None and made not in {TaskState.SUCCESS, TaskState.SKIPPED}:
        counts.setdefault(TaskState.UPSTREAM_FAILED, 1)  # its stream ended early
    if not expansion.width:
        counts.setdefault(TaskState.SKIPPED, 1)
    return next((state for state in _WORST_FIRST if counts.get(state)), TaskState.REMOVED), False
