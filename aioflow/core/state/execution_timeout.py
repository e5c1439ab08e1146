"""How long a try may take, running and deferred together: its ``execution_timeout``.

It is measured in steady time from its beginning. Its row has its end in ``due_at``, which is free
while a try is under way.
"""

from __future__ import annotations

from aioflow.core.state.task_instance import TaskInstance
from aioflow.model.dag import TaskSpec
from aioflow.model.rows import TaskRow
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp

__all__ = ("stored_due", "stored_instants", "time_left", "time_limit", "try_ends_at")

_DUE = frozenset({TaskState.RETRYING, TaskState.SENSING})
"""States in which the row of a task says when it is due."""


def time_left(task: TaskInstance, steady: Timestamp) -> int | None:
    """The try's time runs on while it is deferred; a microsecond is left to say so.

    A sensor has it anew for each look: between two of them it waits, as long as its own
    ``timeout`` allows.
    """
    if task.ends_at is None:  # as of nearly every task: this is called for each start
        return task.spec.execution_timeout_us
    ends = try_ends_at(task, steady)
    return task.spec.execution_timeout_us if ends is None else max(1, ends - steady)


def try_ends_at(task: TaskInstance, steady: Timestamp) -> Timestamp | None:
    """Return when the time of a try is over; at most all of its time is left."""
    limit = time_limit(task.spec)
    return None if task.ends_at is None or limit is None else min(task.ends_at, steady + limit)


def time_limit(spec: TaskSpec) -> int | None:
    """Return how long a try may take, running and deferred together.

    A sensor's ``execution_timeout`` is that of one look, so no wait of it ends by that.
    """
    return None if spec.sensor is not None else spec.execution_timeout_us


def stored_due(task: TaskInstance) -> Timestamp | None:
    """Return what the row of a task says in ``due_at``."""
    return task.ends_at if task.due_at is None else task.due_at


def stored_instants(
    spec: TaskSpec, row: TaskRow, shift: int
) -> tuple[Timestamp | None, Timestamp | None]:
    """Return what the row of a task that goes on says: when it is due, and when its try ends.

    Args:
        shift: By how much the wall clock is ahead of steady time.
    """
    limit = time_limit(spec)
    if row.state in _DUE or limit is None or row.started_at is None:
        return row.due_at, None
    # An earlier version of the program has stored when it began, and no end.
    return None, row.started_at - shift + limit if row.due_at is None else row.due_at
