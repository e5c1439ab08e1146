"""The history that a turn adds: which runs and tasks ended in which state, and how long they took.

Each end counts once, in the hour in which it happened. A run that is cleared and ends again counts
again, and so do its tasks: a failure stays in the history after it was repaired. The counts are
part of the batch that contains the ends, so they are exact after a crash.
"""

from __future__ import annotations

from aioflow.core.state.task_instance import TaskInstance, TriggerInstance
from aioflow.model.history import (
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

_Key = tuple[str, str, int, Timestamp, int]


class HistoryUpdates:
    """What a turn adds to the history, one entry for each bucket."""

    def __init__(self) -> None:
        self._counts: dict[_Key, int] = {}
        self._totals: dict[_Key, int] = {}

    def run_changed(self, row: RunRow, before: RunRow | None) -> None:
        """Count the first start or an end of a run.

        Args:
            before: The row as stored; ``None`` for a new run.
        """
        is_new = before is None
        if row.started_at is not None and (before is None or before.started_at is None):
            self._spent(row.dag_id, OF_RUN, _QUEUE, row.started_at, row.started_at - row.created_at)
        ended_at = row.ended_at
        if ended_at is None or not (is_new or (before is not None and before.ended_at is None)):
            return
        self._ended(row.dag_id, OF_RUN, ended_at, int(row.state))
        if row.state is RunState.SUCCESS and row.started_at is not None:
            self._spent(row.dag_id, OF_RUN, _DURATION, ended_at, ended_at - row.started_at)

    def task_changed(self, task: TaskInstance, now: Timestamp) -> None:
        """Count the end of a task, if its row now gets a final state and had none."""
        state = task.state
        if state < _SUCCESS or task.stored_state >= _SUCCESS or state is _REMOVED:
            return
        dag_id, task_id = task.run.row.dag_id, task.spec.task_id
        ended_at, started_at = task.ended_at, task.started_at
        if ended_at is None:
            ended_at = now
        self._ended(dag_id, task_id, ended_at, int(state))
        if started_at is None:
            return
        if state is _SUCCESS:
            self._spent(dag_id, task_id, _DURATION, ended_at, ended_at - started_at)
        if task.queued_at is not None:
            self._spent(dag_id, task_id, _QUEUE, ended_at, started_at - task.queued_at)

    def trigger_fired(self, wait: TriggerInstance, now: Timestamp) -> None:
        """Count a wait that ends with its event. The events of a stream are no waits."""
        task = wait.task
        if task is not None and not wait.row.window:
            dag_id, task_id = wait.run.row.dag_id, task.spec.task_id
            self._spent(dag_id, task_id, _WAIT, now, now - wait.row.since)

    def add(self, row: HistoryRow) -> None:
        """Add what a row counts, such as an hour to its day."""
        key = (row.dag_id, row.task_id, row.measure, row.start, row.bucket)
        self._counts[key] = self._counts.get(key, 0) + row.occurrences
        self._totals[key] = self._totals.get(key, 0) + row.total_ms

    def rows(self) -> list[HistoryRow]:
        """Return what to add, each bucket once."""
        totals = self._totals
        return [HistoryRow(*key, count, totals.get(key, 0)) for key, count in self._counts.items()]

    def _ended(self, dag_id: str, task_id: str, at: Timestamp, state: int) -> None:
        key = (dag_id, task_id, _STATE, hour_of(at), state)
        counts = self._counts
        counts[key] = counts.get(key, 0) + 1

    def _spent(
        self, dag_id: str, task_id: str, measure: int, at: Timestamp, duration: Timestamp
    ) -> None:
        spent = milliseconds_of(duration)
        key = (dag_id, task_id, measure, hour_of(at), bucket_of(spent))
        counts, totals = self._counts, self._totals
        counts[key] = counts.get(key, 0) + 1
        totals[key] = totals.get(key, 0) + spent
