"""A task that lets its children run only in the latest scheduled run."""

from __future__ import annotations

import time
from datetime import datetime

from aioflow.author.context import current
from aioflow.author.dag import open_dag
from aioflow.author.event_schedule import clock_schedule
from aioflow.author.node import Part
from aioflow.author.ref import Ref
from aioflow.author.schedule import Schedule, schedule_spec
from aioflow.author.task import TaskFunction
from aioflow.model.timestamps import Timestamp, to_timestamp

__all__ = ("latest_only",)


def latest_only(task_id: str = "latest_only") -> Ref[bool]:
    """Add a task that skips its children if a later run of the schedule is already due.

    This is checked when the task runs, so a catch-up run, or a run that is cleared much later,
    skips them. A run that was started manually or by another run never does.

    Raises:
        DagError: If no DAG is being defined.
    """
    dag = open_dag("latest_only()")
    options = {"task_id": task_id}
    part = Part.GENTLE_SHORT_CIRCUIT
    task: TaskFunction[..., bool] = TaskFunction(is_latest, options, is_sensor=False, part=part)
    return task(
        clock_schedule(dag.schedule),
        dag.timezone,
        first=dag.start_date,
        last=dag.end_date,
        cause=current.cause,
        slot=current.logical_date,
    )


def is_latest(
    schedule: Schedule,
    timezone: str,
    *,
    first: Timestamp | None,
    last: Timestamp | None,
    cause: str,
    slot: datetime,
) -> bool:
    """Return whether the following tasks should run: no later fire time has passed."""
    # Imported late, as most processes never need the timetable.
    from aioflow.core.scheduling.timetable import next_slot

    spec = schedule_spec(schedule, timezone=timezone, anchor=first or 0)
    if spec is None or cause != "schedule":
        return True
    following = next_slot(spec, timezone, after=to_timestamp(slot))
    if following is None or (last is not None and following > last):
        return True
    return following > time.time_ns() // 1_000  # noqa: TID251 - in a process of user code
