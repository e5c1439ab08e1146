"""The longest waits, grouped by task, and the last failures, for the overview.

A mapped task with thousands of waiting children is a single entry, so it does not hide other waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aioflow.api.metrics import WAITING_STATES, MemoryStats
from aioflow.api.page.schemas import WaitingView
from aioflow.api.page.usual import TaskKey, UsualTimes, usual_seconds
from aioflow.api.queries import RunReader
from aioflow.api.schemas import iso, wait_view
from aioflow.api.task_instances import RunLayout, TaskLocation
from aioflow.api.waits.sentences import Waiter, cause_sentence, task_name
from aioflow.clock import Clock
from aioflow.model.ids import TaskNo
from aioflow.model.rows import RunRow
from aioflow.model.states import RunState, TaskState, Wait
from aioflow.model.timestamps import Timestamp
from aioflow.store import Store

__all__ = ("LongestWaits", "newest_failures")

_GROUPS = 10
"""Maximum number of tasks that are shown, and of the queries that search for them."""

_ROWS = 100
"""Number of triggers that are read by one query."""

_FRESH_US = 1_000_000
_RESTS = 50
"""The triggers that were found are cached for this multiple of the time that the search took."""


class _Oldest(NamedTuple):
    """The wait of a task, or the longest wait of the children of a mapped task."""

    since: Timestamp
    run: RunRow
    layout: RunLayout
    location: TaskLocation
    state: TaskState

    @property
    def key(self) -> TaskKey:
        """The ids of the DAG and the task."""
        return self.run.dag_id, self.layout.spec.tasks[self.location.task_index].task_id


class LongestWaits:
    """Finds the longest waits of deferred tasks, queued tasks and polling sensors.

    Deferred tasks are read with at most ``_GROUPS`` queries. Each query leaves out the tasks that
    have already been found.
    """

    def __init__(self, reader: RunReader, clock: Clock, usual: UsualTimes) -> None:
        self._reader = reader
        self._usual = usual
        self._clock = clock
        self._deferred: list[_Oldest] = []
        self._good_until_us = -1

    async def find(self, stats: MemoryStats, shift: int) -> list[WaitingView]:
        """Return the tasks that have waited longest, without duplicates.

        Args:
            stats: Statistics with the oldest queued tasks and polling sensors.
            shift: Offset of the wall clock from the steady clock, whose times are in trigger rows.
        """
        if self._clock.monotonic_us() > self._good_until_us:
            began = self._clock.monotonic_us()
            self._deferred = await self._find_deferred(shift)
            took = self._clock.monotonic_us() - began
            self._good_until_us = began + max(_FRESH_US, _RESTS * took)
        found = sorted([*self._deferred, *await self._others(stats)], key=lambda one: one.since)
        return await self._views(_one_per_task(found)[:_GROUPS])

    async def _find_deferred(self, shift: int) -> list[_Oldest]:
        found: list[_Oldest] = []
        known: list[tuple[TaskNo, TaskNo]] = []
        for _ in range(_GROUPS):
            rows = await self._reader.store.list_oldest_waits(known, limit=_ROWS)
            layouts = await self._reader.layouts(row.run_no for row in rows)
            for row in rows:
                run, layout = layouts.get(row.run_no, (None, None))
                location = None if layout is None else layout.find(row.task_no)
                if any(first <= row.task_no < end for first, end in known):
                    continue
                if run is None or layout is None or location is None:
                    known.append((row.task_no, row.task_no + 1))
                    continue
                known.append(_numbers(layout, location))
                since, state = row.since + shift, TaskState.DEFERRED
                found.append(_Oldest(since, run, layout, location, state))
                if len(found) >= _GROUPS:
                    break
            if len(found) >= _GROUPS or len(rows) < _ROWS:
                break
        return found

    async def _others(self, stats: MemoryStats) -> Sequence[_Oldest]:
        others = [one for one in stats.oldest if one[2].state in WAITING_STATES]
        layouts = await self._reader.layouts(task.run.run_no for _, _, task in others)
        return [
            _Oldest(
                since,
                *layouts[task.run.run_no],
                TaskLocation(task.task_index, task.map_index, task.task_no),
                task.state,
            )
            for since, _, task in others
            if task.run.run_no in layouts
        ]

    async def _views(self, oldest: Sequence[_Oldest]) -> list[WaitingView]:
        runs = {one.run.run_no: one.run for one in oldest}
        states = await self._reader.states(list(runs.values()))
        counts = {
            (run_no, task_index, state): count
            for run_no, counted in zip(runs, states, strict=True)
            for task_index, state, count in counted
        }
        waits: dict[TaskNo, Wait | None] = {}
        for run_no, run in runs.items():
            locations = [one.location for one in oldest if one.run.run_no == run_no]
            found = await self._reader.waits(
                run, [(at.task_index, at.map_index) for at in locations]
            )
            waits |= {at.task_no: found.get((at.task_index, at.map_index)) for at in locations}
        labels = await self._reader.store.find_labels([one.location.task_no for one in oldest])
        shown = [one for one in oldest if one.location.task_index < len(one.layout.spec.tasks)]
        usual = await self._usual.of_tasks([one.key for one in shown])
        return [
            _view(
                one,
                counts.get((one.run.run_no, one.location.task_index, one.state), 1),
                waits.get(one.location.task_no),
                labels.get(one.location.task_no),
                usual_seconds(usual.get(one.key), one.state),
            )
            for one in shown
        ]


def _one_per_task(oldest: Sequence[_Oldest]) -> list[_Oldest]:
    """Return the first wait of each task and state."""
    found: dict[tuple[int, int, TaskState], _Oldest] = {}
    for one in oldest:
        found.setdefault((one.run.run_no, one.location.task_index, one.state), one)
    return list(found.values())


def _numbers(layout: RunLayout, location: TaskLocation) -> tuple[TaskNo, TaskNo]:
    """Return the range of the row numbers of a task, or of all children of a mapped task."""
    first = layout.task_no(location.task_index, 0) if location.map_index >= 0 else None
    if first is None:
        return location.task_no, location.task_no + 1
    return first, first + max(layout.width(location.task_index), location.map_index + 1)


def _view(
    one: _Oldest, count: int, wait: Wait | None, label: str | None, usual: float | None
) -> WaitingView:
    map_index, round_number = one.layout.shown(one.location)
    task_id = one.layout.spec.tasks[one.location.task_index].task_id
    is_mapped = map_index >= 0 and not round_number
    who = Waiter(
        name=task_name(task_id, map_index, round_number, label),
        task_id=task_id,
        count=count if is_mapped else 1,
        width=one.layout.width(one.location.task_index) if is_mapped else None,
        doc=one.layout.spec.tasks[one.location.task_index].doc,
    )
    return WaitingView(
        run_id=one.run.run_id,
        dag_id=one.run.dag_id,
        task_id=task_id,
        map_index=map_index,
        round=round_number,
        map_label=label,
        state=one.state.label,
        count=who.count,
        since=iso(one.since),
        text=cause_sentence(who, one.state, wait),
        waiting_on=wait_view(wait),
        usual_seconds=usual,
    )


async def newest_failures(store: Store, *, per_state: int) -> list[RunRow]:
    """Return the newest ``failed`` or ``partial`` runs, the one that ended last first.

    Args:
        per_state: Maximum number of runs in each of the two states.
    """
    rows = [
        row
        for state in (RunState.FAILED, RunState.PARTIAL)
        for row in await store.list_runs(state=state, limit=per_state)
    ]
    return sorted(rows, key=lambda row: (-(row.ended_at or 0), -row.run_no))
