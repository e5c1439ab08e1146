"""The history that a turn adds: which runs and tasks ended in which state, and how long they took.

Each end counts once, in the hour in which it happened. A run that is cleared and ends again counts
again, and so do its tasks: a failure stays in the history after it was repaired. The counts are
part of the batch that contains the ends, so they are exact after a crash.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from aioflow.core.state.task_instance import TaskInstance, TriggerInstance
from aioflow.model.history import (
    HOUR_US,
    OF_RUN,
    HistoryRow,
    Measure,
    bucket_of,
    hour_of,
    milliseconds_of,
)
from aioflow.model.rows import RunRow
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp

__all__ = ("HistoryUpdates",)

_STATE, _DURATION, _QUEUE, _WAIT = (int(measure) for measure in Measure)
_SUCCESS, _REMOVED = TaskState.SUCCESS, TaskState.REMOVED

_Key: TypeAlias = tuple[str, str, Timestamp]
"""DAG, task or ``OF_RUN``, and hour."""

_SHORT_MS = 4_096
_BUCKETS = bytes(bucket_of(milliseconds) for milliseconds in range(_SHORT_MS))
"""Buckets of short durations: looking them up is much faster than computing them."""


class _Group:
    """What is added to one DAG or task in one hour.

    Attributes:
        counts: Occurrences by bucket, for each measure.
        totals: Milliseconds by bucket, for each measure.
    """

    __slots__ = ("counts", "totals")

    def __init__(self) -> None:
        self.counts: tuple[dict[int, int], ...] = ({}, {}, {}, {})
        self.totals: tuple[dict[int, int], ...] = ({}, {}, {}, {})

    def ended(self, state: int, times: int = 1) -> None:
        counts = self.counts[_STATE]
        counts[state] = counts.get(state, 0) + times

    def spent(self, measure: int, duration_us: int) -> None:
        self._spent(measure, duration_us // 1000, 1)

    def _spent(self, measure: int, spent: int, times: int) -> None:
        if 0 <= spent < _SHORT_MS:
            bucket = _BUCKETS[spent]
        else:
            spent = milliseconds_of(spent * 1000)
            bucket = bucket_of(spent)
        counts, totals = self.counts[measure], self.totals[measure]
        counts[bucket] = counts.get(bucket, 0) + times
        totals[bucket] = totals.get(bucket, 0) + spent * times

    def add_tasks(self, states: list[int], durations: list[int], queued: list[int]) -> None:
        """Count tasks that ended, and empty the lists. Equal values are counted together."""
        for state, times in Counter(states).items():
            self.ended(state, times)
        for measure, spent in ((_DURATION, durations), (_QUEUE, queued)):
            for milliseconds, times in Counter([one // 1000 for one in spent]).items():
                self._spent(measure, milliseconds, times)
            spent.clear()
        states.clear()


class HistoryUpdates:
    """What a turn adds to the history, one entry for each bucket."""

    def __init__(self) -> None:
        self._groups: dict[_Key, _Group] = {}
        self._ended: list[TaskInstance] = []

    def run_changed(self, row: RunRow, before: RunRow | None) -> None:
        """Count the first start or an end of a run.

        Args:
            before: The row as stored; ``None`` for a new run.
        """
        if row.started_at is not None and (before is None or before.started_at is None):
            group = self._group(row.dag_id, OF_RUN, row.started_at)
            group.spent(_QUEUE, row.started_at - row.created_at)
        if row.ended_at is None or (before is not None and before.ended_at is not None):
            return
        group = self._group(row.dag_id, OF_RUN, row.ended_at)
        group.ended(row.state)
        if row.state is RunState.SUCCESS and row.started_at is not None:
            group.spent(_DURATION, row.ended_at - row.started_at)

    def task_ended(self, task: TaskInstance) -> None:
        """Count the end of a task, whose row now gets a final state and had none."""
        if task.state is not _REMOVED:
            self._ended.append(task)

    def trigger_fired(self, wait: TriggerInstance, now: Timestamp) -> None:
        """Count a wait that ends with its event. The events of a stream are no waits."""
        task = wait.task
        if task is not None and not wait.row.window:
            group = self._group(wait.run.row.dag_id, task.spec.task_id, now)
            group.spent(_WAIT, now - wait.row.since)

    def add(self, row: HistoryRow) -> None:
        """Add what a row counts, such as an hour to its day."""
        group = self._group(row.dag_id, row.task_id, row.start)
        counts, totals = group.counts[row.measure], group.totals[row.measure]
        counts[row.bucket] = counts.get(row.bucket, 0) + row.occurrences
        totals[row.bucket] = totals.get(row.bucket, 0) + row.total_ms

    def rows(self, now: Timestamp) -> list[HistoryRow]:
        """Return what to add, each bucket once.

        Args:
            now: The end of tasks that have none.
        """
        self._count_tasks(now)
        return [
            HistoryRow(dag_id, task_id, measure, start, int(bucket), count, totals.get(bucket, 0))
            for (dag_id, task_id, start), group in self._groups.items()
            for measure, (counts, totals) in enumerate(zip(group.counts, group.totals, strict=True))
            for bucket, count in counts.items()
        ]

    def _count_tasks(self, now: Timestamp) -> None:
        """Count the tasks that ended. Those of one fan-out follow each other, and share a group.

        For one task, only ``list.append`` is called: this is on the path of each task.
        """
        group = None
        run, spec, hour, next_hour = None, None, 0, 0
        states: list[int] = []
        durations: list[int] = []
        queued: list[int] = []
        for task in self._ended:
            ended_at, started_at, state = task.ended_at, task.started_at, task.state
            if ended_at is None:
                ended_at = now
            if task.spec is not spec or task.run is not run or not hour <= ended_at < next_hour:
                if group is not None:
                    group.add_tasks(states, durations, queued)
                run, spec, hour = task.run, task.spec, hour_of(ended_at)
                next_hour = hour + HOUR_US
                group = self._group(run.row.dag_id, spec.task_id, hour)
            states.append(state)
            if started_at is not None:
                if state is _SUCCESS:
                    durations.append(ended_at - started_at)
                if task.queued_at is not None:
                    queued.append(started_at - task.queued_at)
        if group is not None:
            group.add_tasks(states, durations, queued)
        self._ended.clear()

    def _group(self, dag_id: str, task_id: str, at: Timestamp) -> _Group:
        key = (dag_id, task_id, hour_of(at))
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        return group
