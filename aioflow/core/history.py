"""History updates of a turn: which runs and tasks ended in which state, and how long they took.

Each end counts once, in the hour in which it happened. If a cleared run ends again, it counts
again, and so do its tasks. So a failure stays in the history after it was repaired. The counts are
written in the same batch as the ends, so they are exact even after a crash.
"""

from __future__ import annotations

from collections import defaultdict
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

_Bucket: TypeAlias = tuple[str, str, int, Timestamp, int]
"""The key of a ``HistoryRow``: DAG, task or ``OF_RUN``, measure, hour, and bucket."""

_Counts: TypeAlias = defaultdict[int, int]
_Tasks: TypeAlias = tuple[_Counts, _Counts, _Counts]
"""Number of ended tasks by state, by duration, and by queue time; both times in milliseconds."""

_SHORT_MS = 4_096
_BUCKETS = bytes(bucket_of(milliseconds) for milliseconds in range(_SHORT_MS))
"""Buckets of short durations. A lookup is much faster than computing the bucket."""


def _tasks() -> _Tasks:
    return defaultdict(int), defaultdict(int), defaultdict(int)


class HistoryUpdates:
    """The history updates of a turn, one entry per bucket."""

    def __init__(self) -> None:
        self._sums: dict[_Bucket, tuple[int, int]] = {}
        self._ended: list[TaskInstance] = []

    @property
    def is_pending(self) -> bool:
        """Whether there is anything to add."""
        return bool(self._ended or self._sums)

    def run_changed(self, row: RunRow, before: RunRow | None) -> None:
        """Count the first start of a run, or its end.

        Args:
            before: The row as stored; ``None`` for a new run.
        """
        if row.started_at is not None and (before is None or before.started_at is None):
            hour = hour_of(row.started_at)
            self._add_spent(row.dag_id, OF_RUN, _QUEUE, hour, row.started_at - row.created_at)
        if row.ended_at is None or (before is not None and before.ended_at is not None):
            return
        hour = hour_of(row.ended_at)
        self._add((row.dag_id, OF_RUN, _STATE, hour, int(row.state)), 1, 0)
        if row.state is RunState.SUCCESS and row.started_at is not None:
            self._add_spent(row.dag_id, OF_RUN, _DURATION, hour, row.ended_at - row.started_at)

    def task_ended(self, task: TaskInstance) -> None:
        """Count the end of a task whose row changes to a final state in this turn."""
        if task.state is not _REMOVED:
            self._ended.append(task)

    def trigger_fired(self, wait: TriggerInstance, now: Timestamp) -> None:
        """Record the duration of a wait that ended. Events of a stream do not count as waits."""
        task = wait.task
        if task is not None and not wait.row.window:
            dag_id, task_id = wait.run.row.dag_id, task.spec.task_id
            self._add_spent(dag_id, task_id, _WAIT, hour_of(now), now - wait.row.since)

    def add(self, row: HistoryRow) -> None:
        """Add the counts of an existing row, for example to merge hourly rows into daily ones."""
        bucket = (row.dag_id, row.task_id, row.measure, row.start, row.bucket)
        self._add(bucket, row.occurrences, row.total_ms)

    def rows(self, now: Timestamp) -> list[HistoryRow]:
        """Return the rows to add, one per bucket.

        Args:
            now: The end time for tasks without one.
        """
        self._count_tasks(now)
        return [HistoryRow(*bucket, *sums) for bucket, sums in self._sums.items()]

    def _count_tasks(self, now: Timestamp) -> None:
        """Count the ended tasks. Equal values of a task within an hour are counted together.

        The children of one mapped task follow each other in the list. The loop makes no function
        call per child, because it runs for every task that ends.
        """
        found: dict[tuple[str, str, Timestamp], _Tasks] = {}
        run, spec, hour, next_hour = None, None, 0, 0
        states: _Counts
        durations: _Counts
        queued: _Counts
        for task in self._ended:
            ended_at, started_at, state = task.ended_at, task.started_at, task.state
            if ended_at is None:
                ended_at = now
            if task.spec is not spec or task.run is not run or not hour <= ended_at < next_hour:
                run, spec, hour = task.run, task.spec, hour_of(ended_at)
                next_hour = hour + HOUR_US
                key = (run.row.dag_id, spec.task_id, hour)
                states, durations, queued = found.setdefault(key, _tasks())
            states[state] += 1
            if started_at is not None:
                if state is _SUCCESS:
                    durations[(ended_at - started_at) // 1000] += 1
                if task.queued_at is not None:
                    queued[(started_at - task.queued_at) // 1000] += 1
        self._ended.clear()
        for (dag_id, task_id, start), (states, durations, queued) in found.items():
            for number, times in states.items():
                self._add((dag_id, task_id, _STATE, start, int(number)), times, 0)
            for measure, spent in ((_DURATION, durations), (_QUEUE, queued)):
                for milliseconds, times in spent.items():
                    self._add_spent(dag_id, task_id, measure, start, milliseconds * 1000, times)

    def _add_spent(
        self,
        dag_id: str,
        task_id: str,
        measure: int,
        hour: Timestamp,
        duration_us: int,
        times: int = 1,
    ) -> None:
        spent = duration_us // 1000
        if 0 <= spent < _SHORT_MS:
            bucket = _BUCKETS[spent]
        else:
            spent = milliseconds_of(duration_us)
            bucket = bucket_of(spent)
        self._add((dag_id, task_id, measure, hour, bucket), times, spent * times)

    def _add(self, bucket: _Bucket, occurrences: int, total_ms: int) -> None:
        counted, total = self._sums.get(bucket, (0, 0))
        self._sums[bucket] = (counted + occurrences, total + total_ms)
