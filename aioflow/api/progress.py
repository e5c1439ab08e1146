"""State counts of runs, however many children their tasks have.

For a live run they come from memory. The rows of an ended run are counted once, in slices, so
that other readers do not wait for long; the result is cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from aioflow.api.layout import Layout, absent_state
from aioflow.api.page_schemas import Cell, GridRunView, GridView, RunGraphView, RunTaskView
from aioflow.api.queries import RunReader
from aioflow.api.schemas import iso, summary
from aioflow.clock import Clock
from aioflow.model.damage import Damage
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import RunRow
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp

__all__ = ("GRID_RUNS", "Progress")

GRID_RUNS = 100
"""Maximum number of columns in a grid."""

_SLICE = 20_000
"""Rows counted per statement, which takes a reader's thread some milliseconds."""

_CACHED_RUNS = 1_000
_GRID_US = 1_000_000
"""After this time a grid omits runs that have not been counted; the next one continues there."""

_Key: TypeAlias = tuple[RunNo, Timestamp | None]


class TaskCounts(NamedTuple):
    """State counts and times of all instances of one task."""

    counts: dict[str, int]
    started_at: Timestamp | None
    ended_at: Timestamp | None


class Progress:
    """Counts the tasks of runs by state.

    Args:
        reader: Reads the database, or also the memory of a daemon.
        clock: Limits the time for counting a grid.
    """

    def __init__(self, reader: RunReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._cache: OrderedDict[_Key, list[TaskCounts]] = OrderedDict()

    async def graph(self, run_id: str) -> RunGraphView:
        """Return the state counts of each task of a run."""
        run = await self._reader.run(run_id)
        layout = await self._reader.layout(run)
        tallies = await self._tallies(run, layout)
        return RunGraphView(
            run=summary(run, self._reader.store.damages.of_run(run.run_no)),
            version=run.version,
            tasks=[
                RunTaskView(
                    task_id=task.task_id,
                    counts=tally.counts,
                    width=layout.width(position) if layout.is_expanded(position) else None,
                    is_open=layout.is_open(position),
                    started_at=iso(tally.started_at),
                    ended_at=iso(tally.ended_at),
                )
                for position, (task, tally) in enumerate(
                    zip(layout.spec.tasks, tallies, strict=True)
                )
            ],
        )

    async def grid(self, dag_id: str, *, limit: int, before: str | None) -> GridView:
        """Return tasks by runs, the newest first; ``before`` is the last run of the page before."""
        reader = self._reader
        row = await reader.shown_row(dag_id)
        newest = await reader.known_spec(row.version, dag_id)
        cursor = None if before is None else (await reader.run(before)).run_no
        runs = await reader.store.list_runs(dag_id=dag_id, limit=limit, before=cursor)
        places = {task.task_id: place for place, task in enumerate(newest.tasks)}
        until = self._clock.monotonic_us() + _GRID_US
        columns = []
        for run in runs:
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
            damage = reader.store.damages.of_run(run.run_no)
            columns.append(_column(run, damage, cells))
        return GridView(tasks=list(places), runs=columns)

    def _is_cached(self, run: RunRow) -> bool:
        return (run.run_no, run.ended_at) in self._cache

    async def _tallies(self, run: RunRow, layout: Layout) -> list[TaskCounts]:
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
        self, run: RunRow, layout: Layout, counted: Sequence[tuple[int, TaskState, int]]
    ) -> list[TaskCounts]:
        """Return the tallies of a live run.

        A mapped task's times are those of its first and its last child.
        """
        size = len(layout.spec.tasks)
        counts = _by_position(counted, size)
        first = run.first_task_no
        rows = await self._reader.store.list_tasks_between(first, first + size, limit=size)
        began: list[Timestamp | None] = [None] * size
        ended: list[Timestamp | None] = [None] * size
        for row in rows:
            if row.position >= size:
                continue  # a damaged row
            began[row.position], ended[row.position] = row.started_at, row.ended_at
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
                _shown(counts[at], layout.width(at), run),
                began[at],
                None if any(state.is_live for state in counts[at]) else ended[at],
            )
            for at in range(size)
        ]

    async def _of_rows(self, run: RunRow, layout: Layout) -> tuple[list[TaskCounts], bool]:
        """Count the rows of a run. Also return whether all of its tasks have ended."""
        size = len(layout.spec.tasks)
        counts: list[dict[TaskState, int]] = [{} for _ in range(size)]
        began: list[Timestamp | None] = [None] * size
        ended: list[Timestamp | None] = [None] * size
        is_over = True
        for first, end in _slices(run, layout):
            found = await self._reader.store.count_states_between(first, end)
            for position, state, count, started_at, ended_at in found:
                is_over = is_over and not state.is_live
                if position >= size:
                    continue  # a damaged row
                counts[position][state] = counts[position].get(state, 0) + count
                began[position] = _least(began[position], started_at)
                ended[position] = _most(ended[position], ended_at)
        tallies = [
            TaskCounts(_shown(counts[at], layout.width(at), run), began[at], ended[at])
            for at in range(size)
        ]
        return tallies, is_over


def _column(run: RunRow, damage: Damage | None, cells: list[Cell] | None) -> GridRunView:
    return GridRunView(**msgspec.structs.asdict(summary(run, damage)), cells=cells)


def _slices(run: RunRow, layout: Layout) -> Iterable[tuple[TaskNo, TaskNo]]:
    size = len(layout.spec.tasks)
    yield run.first_task_no, run.first_task_no + size
    for position in range(size):
        first = layout.task_no(position, 0)
        if first is None:
            continue
        end = first + layout.width(position)
        for start in range(first, end, _SLICE):
            yield start, min(start + _SLICE, end)


def _by_position(
    counted: Sequence[tuple[int, TaskState, int]], size: int
) -> list[dict[TaskState, int]]:
    counts: list[dict[TaskState, int]] = [{} for _ in range(size)]
    for position, state, count in counted:
        if position >= size:
            continue  # a damaged row
        counts[position][state] = counts[position].get(state, 0) + count
    return counts


def _shown(counts: dict[TaskState, int], width: int, run: RunRow) -> dict[str, int]:
    absent = width - sum(counts.values())
    if absent > 0:
        state = absent_state(run.state)
        counts = counts | {state: counts.get(state, 0) + absent}
    return {state.label: count for state, count in sorted(counts.items())}


def _least(one: Timestamp | None, other: Timestamp | None) -> Timestamp | None:
    return other if one is None else one if other is None else min(one, other)


def _most(one: Timestamp | None, other: Timestamp | None) -> Timestamp | None:
    return other if one is None else one if other is None else max(one, other)
