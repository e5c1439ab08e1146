"""A task of a run as shown to scripts and users, built from its row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aioflow.api.damage import task_state
from aioflow.api.layout import Layout, TaskLocation, absent_state
from aioflow.api.schemas import TaskView, iso
from aioflow.api.wait_views import error_view, shown_state, wait_view
from aioflow.model.damage import DAMAGED
from aioflow.model.ids import TaskNo
from aioflow.model.rows import TaskRow
from aioflow.model.states import RunState, TaskState, Wait

__all__ = ("task_view",)


def task_view(
    layout: Layout,
    place: TaskLocation,
    row: TaskRow | None,
    run_state: RunState,
    waits: Mapping[tuple[int, int], Wait | None],
    results: Mapping[TaskNo, Any],
    labels: Mapping[TaskNo, str],
) -> TaskView:
    """Return one task as JSON shows it.

    Args:
        run_state: Determines the state of a task without a row.
        waits: What tasks wait for, by position and map index.
        results, labels: By the row number of the task.
    """
    task = layout.spec.tasks[place.position]
    map_index, round_number = layout.shown(place)
    wait = waits.get((place.position, place.map_index))
    state = absent_state(run_state) if row is None else row.state
    shown = shown_state(state, run_state, wait)
    failed = None if row is None else row.failure
    if failed is not None and state is TaskState.SUCCESS and failed.reason != DAMAGED:
        failed = None
    return TaskView(
        task_id=task.task_id,
        map_index=map_index,
        round=round_number,
        map_label=labels.get(place.task_no),
        state=shown.label if row is None or shown is not state else task_state(row),
        try_number=0 if row is None else row.try_number,
        max_tries=task.retry.tries,
        interruptions=0 if row is None else row.interruptions,
        started_at=None if row is None else iso(row.started_at),
        ended_at=None if row is None else iso(row.ended_at),
        waiting_on=wait_view(wait, state),
        error=error_view(failed),
        result=results.get(place.task_no) if state is TaskState.SUCCESS else None,
    )
