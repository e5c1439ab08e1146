"""Graphs and grids: the nodes and edges of a DAG's versions, their code, and state counts of runs.

The state counts of a live run come from memory. The rows of an ended run are counted once, and the
result is cached. They are counted in slices, so that other readers do not wait for long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from aioflow._threads import in_thread
from aioflow.api.page.schemas import (
    Cell,
    CodeFileView,
    CodeView,
    EdgeView,
    GraphView,
    GridRunView,
    GridView,
    GroupView,
    RunGraphView,
    RunTaskView,
    TaskNodeView,
    VersionView,
)
from aioflow.api.page.usual import UsualTimes, usual_seconds
from aioflow.api.paging import number_after, page_of
from aioflow.api.queries import RunReader
from aioflow.api.schemas import iso
from aioflow.api.task_instances import RunLayout, absent_state
from aioflow.clock import Clock
from aioflow.core.state.graph import children_of, topological_order
from aioflow.errors import UnknownDag, UnknownVersion
from aioflow.model.dag import Chooses, DagSpec, TaskSpec
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import RunRow
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp

__all__ = (
    "CODE_BYTES",
    "GRID_RUNS",
    "Graphs",
    "RunStateCounts",
)

CODE_BYTES = 1024 * 1024
"""Maximum total size of the files of a version."""

_VERSIONS = 100


class Graphs:
    """Reads the versions of DAGs.

    Args:
        reader: Reads the database.
    """

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader

    async def graph(self, dag_id: str, version: str | None = None) -> GraphView:
        """Return the nodes, edges and groups of a version, by default the newest.

        Raises:
            UnknownDag: If there is no such DAG.
            UnknownVersion: If the DAG has no such version.
        """
        wanted, spec = await self._spec(dag_id, version)
        return GraphView(
            version=wanted,
            nodes=[_node(task) for task in spec.tasks],
            edges=[edge for task in spec.tasks for edge in _edges(task, spec)],
            groups=_groups(task.group for task in spec.tasks),
        )

    async def code(self, dag_id: str, version: str | None = None) -> CodeView:
        """Return the files of a version, the DAG's own file first.

        Raises:
            UnknownDag: If there is no such DAG.
            UnknownVersion: If the DAG has no such version.
        """
        wanted, spec = await self._spec(dag_id, version)
        row = await self._reader.store.find_version(wanted)
        if row is None:
            raise UnknownVersion(dag_id, wanted)
        return CodeView(
            version=wanted,
            files=await in_thread(_code_files, row.sources, spec.file),
            made_at=iso(row.created_at),
        )

    async def versions(self, dag_id: str) -> list[VersionView]:
        """Return a DAG's current version and the versions of its newest runs, newest first."""
        row = await self._reader.shown_row(dag_id)
        store = self._reader.store
        runs = {row.version: 0} | dict(await store.count_versions_of_dag(dag_id))
        made_at = await store.find_made_at(runs)
        newest = sorted(runs, key=lambda version: (made_at.get(version, 0), version), reverse=True)
        return [
            VersionView(version=version, made_at=iso(made_at.get(version)), runs=runs[version])
            for version in newest[:_VERSIONS]
        ]

    async def _spec(self, dag_id: str, version: str | None) -> tuple[str, DagSpec]:
        if version is None:
            version = (await self._reader.shown_row(dag_id)).version
        try:
            return version, await self._reader.spec(version, dag_id)
        except UnknownDag:
            raise UnknownVersion(dag_id, version) from None


def _code_files(sources: Mapping[str, bytes], first: str) -> list[CodeFileView]:
    found, left = [], CODE_BYTES
    for name in sorted(sources, key=lambda name: (name != first, name)):
        text = sources[name][:left].decode(errors="replace")
        left -= len(sources[name][:left])
        found.append(CodeFileView(name=name, text=text))
    return found


def _node(task: TaskSpec) -> TaskNodeView:
    rule = task.rule.value if task.min_success is None else f"min_success={task.min_success:g}"
    return TaskNodeView(
        task_id=task.task_id,
        body=task.body.value,
        group=task.group or None,
        is_mapped=task.mapped is not None,
        is_sensor=task.sensor is not None,
        trigger_rule=rule,
        kind=_kind(task),
        doc=task.doc,
        line=task.line,
    )


def _kind(task: TaskSpec) -> str:
    if task.is_setup or task.is_teardown:
        return "setup" if task.is_setup else "teardown"
    if task.chooses is Chooses.ROUNDS:
        return "until"
    if task.chooses is not Chooses.NOTHING:
        return "branch"
    return "task" if task.sensor is None else "sensor"


def _edges(task: TaskSpec, spec: DagSpec) -> list[EdgeView]:
    rules = {parent: group.rule.value for group in task.groups for parent in group.parents}
    own = task.rule.value if task.min_success is None else f"min_success={task.min_success:g}"
    return [
        EdgeView(
            source=spec.tasks[parent].task_id, target=task.task_id, rule=rules.get(parent, own)
        )
        for parent in task.parents
    ]


def _groups(names: Iterable[str]) -> list[GroupView]:
    """Return the groups of tasks and their enclosing groups, derived from the dotted ids."""
    known: dict[str, str | None] = {}
    for name in filter(None, names):
        parts = name.split(".")
        around: str | None = None
        for end in range(1, len(parts) + 1):
            group_id = ".".join(parts[:end])
            known.setdefault(group_id, around)
            around = group_id
    return [GroupView(group_id=group_id, parent=parent) for group_id, parent in known.items()]


def _execution_order(tasks: Sequence[TaskSpec]) -> tuple[int, ...]:
    return topological_order(tasks, children_of(tasks))


GRID_RUNS = 100
"""Maximum number of columns in a grid."""

_ROWS_PER_SLICE = 20_000
"""Number of rows counted per statement, which takes a reader's thread a few milliseconds."""

_CACHED_RUNS = 1_000
_GRID_US = 1_000_000
"""Time limit for counting the runs of a grid. Runs that are not counted in time have no cells; the
next request counts more of them.
"""

_CountsKey: TypeAlias = tuple[RunNo, Timestamp | None]


class TaskCounts(NamedTuple):
    """The state counts and times of all instances of one task."""

    counts: dict[str, int]
    started_at: Timestamp | None
    ended_at: Timestamp | None


class RunStateCounts:
    """Counts the tasks of runs by state.

    Args:
        reader: Reads the database and, in a daemon, the memory of the engine.
        clock: Limits the time for counting a grid.
        usual: The median durations of tasks.
    """

    def __init__(self, reader: RunReader, clock: Clock, usual: UsualTimes) -> None:
        self._reader = reader
        self._usual = usual
        self._clock = clock
        self._cache: OrderedDict[_CountsKey, list[TaskCounts]] = OrderedDict()

    async def graph(self, run_id: str) -> RunGraphView:
        """Return the state counts of each task of a run."""
        run = await self._reader.run(run_id)
        layout = await self._reader.layout(run)
        tallies = await self._tallies(run, layout)
        tasks = layout.spec.tasks
        (shown,) = await self._reader.summaries([run])
        usual = await self._usual.of_tasks([(run.dag_id, task.task_id) for task in tasks])
        return RunGraphView(
            run=shown,
            version=run.version,
            tasks=[
                RunTaskView(
                    task_id=tasks[task_index].task_id,
                    counts=tallies[task_index].counts,
                    width=layout.width(task_index) if layout.is_expanded(task_index) else None,
                    is_open=layout.is_open(task_index),
                    started_at=iso(tallies[task_index].started_at),
                    ended_at=iso(tallies[task_index].ended_at),
                    usual_seconds=usual_seconds(
                        usual.get((run.dag_id, tasks[task_index].task_id)), TaskState.RUNNING
                    ),
                )
                for task_index in _execution_order(tasks)
            ],
        )

    async def grid(self, dag_id: str, *, limit: int, cursor: str | None = None) -> GridView:
        """Return the grid of a DAG's tasks and runs, the newest run first."""
        reader = self._reader
        row = await reader.shown_row(dag_id)
        newest = await reader.known_spec(row.version, dag_id)
        before = number_after("grid", cursor)
        found = await reader.store.list_runs(dag_id=dag_id, limit=limit + 1, before=before)
        page = page_of("grid", found, limit, lambda run: (run.run_no,))
        order = _execution_order(newest.tasks)
        places = {newest.tasks[index].task_id: place for place, index in enumerate(order)}
        until = self._clock.monotonic_us() + _GRID_US
        columns = []
        for run, shown in zip(page.items, await reader.summaries(page.items), strict=True):
            layout = await reader.layout(run)
            names = [task.task_id for task in layout.spec.tasks]
            for name in names:
                places.setdefault(name, len(places))
            cells: list[Cell] | None = None
            if self._clock.monotonic_us() < until or self._is_cached(run):
                tallies = await self._tallies(run, layout)
                cells = [
                    (places[name], tally.counts, iso(tally.started_at), iso(tally.ended_at))
                    for name, tally in zip(names, tallies, strict=True)
                ]
            columns.append(GridRunView(**msgspec.structs.asdict(shown), cells=cells))
        return GridView(tasks=list(places), runs=columns, next=page.next)

    def _is_cached(self, run: RunRow) -> bool:
        return (run.run_no, run.ended_at) in self._cache

    async def _tallies(self, run: RunRow, layout: RunLayout) -> list[TaskCounts]:
        key = run.run_no, run.ended_at
        known = self._cache.get(key)
        if known is not None:
            self._cache.move_to_end(key)
            return known
        if run.state.is_live:
            (counted,) = await self._reader.states([run])
            return await self._of_live(run, layout, counted)
        tallies, is_over = await self._of_rows(run, layout)
        if run.ended_at is not None and is_over:
            self._cache[key] = tallies
            if len(self._cache) > _CACHED_RUNS:
                self._cache.popitem(last=False)
        return tallies

    async def _of_live(
        self, run: RunRow, layout: RunLayout, counted: Sequence[tuple[int, TaskState, int]]
    ) -> list[TaskCounts]:
        """Return the state counts and times of each task of a live run.

        A mapped task starts with its first child and ends with its last child.
        """
        size = len(layout.spec.tasks)
        counts = _counts_by_task_index(counted, size)
        first = run.first_task_no
        rows = await self._reader.store.list_tasks_between(first, first + size, limit=size)
        began: list[Timestamp | None] = [None] * size
        ended: list[Timestamp | None] = [None] * size
        for row in rows:
            if row.task_index >= size:
                continue  # a damaged row
            began[row.task_index], ended[row.task_index] = row.started_at, row.ended_at
        expanded = [at for at in range(size) if layout.is_expanded(at) and layout.width(at)]
        edges: dict[TaskNo, tuple[int, bool]] = {}
        for at in expanded:
            edges[layout.task_no(at, layout.width(at) - 1) or 0] = (at, True)
            edges.setdefault(layout.task_no(at, 0) or 0, (at, False))
        for row in await self._reader.store.find_tasks(list(edges)) if edges else ():
            at, is_last = edges[row.task_no]
            if row.map_index == 0:
                began[at] = row.started_at
            if is_last:
                ended[at] = row.ended_at
        return [
            TaskCounts(
                _shown_counts(counts[at], layout.width(at), run),
                began[at],
                None if any(state.is_live for state in counts[at]) else ended[at],
            )
            for at in range(size)
        ]

    async def _of_rows(self, run: RunRow, layout: RunLayout) -> tuple[list[TaskCounts], bool]:
        """Count the rows of a run by task. Also return whether all tasks of the run have ended."""
        size = len(layout.spec.tasks)
        counts: list[dict[TaskState, int]] = [{} for _ in range(size)]
        began: list[Timestamp | None] = [None] * size
        ended: list[Timestamp | None] = [None] * size
        is_over = True
        for first, end in _row_slices(run, layout):
            found = await self._reader.store.count_states_between(first, end)
            for task_index, state, count, started_at, ended_at in found:
                is_over = is_over and not state.is_live
                if task_index >= size:
                    continue  # a damaged row
                counts[task_index][state] = counts[task_index].get(state, 0) + count
                began[task_index] = _least(began[task_index], started_at)
                ended[task_index] = _most(ended[task_index], ended_at)
        tallies = [
            TaskCounts(_shown_counts(counts[at], layout.width(at), run), began[at], ended[at])
            for at in range(size)
        ]
        return tallies, is_over


def _row_slices(run: RunRow, layout: RunLayout) -> Iterable[tuple[TaskNo, TaskNo]]:
    size = len(layout.spec.tasks)
    yield run.first_task_no, run.first_task_no + size
    for task_index in range(size):
        first = layout.task_no(task_index, 0)
        if first is None:
            continue
        end = first + layout.width(task_index)
        for start in range(first, end, _ROWS_PER_SLICE):
            yield start, min(start + _ROWS_PER_SLICE, end)


def _counts_by_task_index(
    counted: Sequence[tuple[int, TaskState, int]], size: int
) -> list[dict[TaskState, int]]:
    counts: list[dict[TaskState, int]] = [{} for _ in range(size)]
    for task_index, state, count in counted:
        if task_index >= size:
            continue  # a damaged row
        counts[task_index][state] = counts[task_index].get(state, 0) + count
    return counts


def _shown_counts(counts: dict[TaskState, int], width: int, run: RunRow) -> dict[str, int]:
    absent = width - sum(counts.values())
    if absent > 0:
        state = absent_state(run.state)
        counts = counts | {state: counts.get(state, 0) + absent}
    return {state.label: count for state, count in sorted(counts.items())}


def _least(one: Timestamp | None, other: Timestamp | None) -> Timestamp | None:
    return other if one is None else one if other is None else min(one, other)


def _most(one: Timestamp | None, other: Timestamp | None) -> Timestamp | None:
    return other if one is None else one if other is None else max(one, other)
