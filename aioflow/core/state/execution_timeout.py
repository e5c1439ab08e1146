"""The ``execution_timeout`` of a try, which counts running and deferred time together.

It is measured in steady time from the start of the try. The row stores its end in ``due_at``,
which is otherwise unused during a try.
"""

from __future__ import annotations

from aioflow.core.state.task_instance import TaskInstance
from aioflow.model.dag import TaskSpec
from aioflow.model.rows import TaskRow
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp

__all__ = ("stored_due", "stored_instants", "time_left", "time_limit", "try_ends_at")

_DUE = frozenset({TaskState.RETRYING, TaskState.SENSING})
"""States in which ``due_at`` of the row means when the task is due."""


def time_left(task: TaskInstance, steady: Timestamp) -> int | None:
    """Return the microseconds left to the try, at least 1, or ``None`` without a limit.

    The time of a try continues while it is deferred. The 1 lets an expired try report its timeout.
    A sensor has the full ``execution_timeout`` for each poke; the wait between pokes is limited by
    its own ``timeout``.
    """
    if task.ends_at is None:  # true of nearly every task: this is called for each start
        return task.spec.execution_timeout_us
    ends = try_ends_at(task, steady)
    return task.spec.execution_timeout_us if ends is None else max(1, ends - steady)


def try_ends_at(task: TaskInstance, steady: Timestamp) -> Timestamp | None:
    """Return when the try times out, at most its full timeout from now; ``None`` for never."""
    limit = time_limit(task.spec)
    return None if task.ends_at is None or limit is None else min(task.ends_at, steady + limit)


def time_limit(spec: TaskSpec) -> int | None:
    """Return the limit of a try, running and deferred together; ``None`` without one.

    A sensor's ``execution_timeout`` limits one poke, so its waits have no such limit.
    """
    return None if spec.sensor is not None else spec.execution_timeout_us


def stored_due(task: TaskInstance) -> Timestamp | None:
    """Return the value of ``due_at`` in the row of a task."""
    return task.ends_at if task.due_at is None else task.due_at


def stored_instants(
    spec: TaskSpec, row: TaskRow, shift: int
) -> tuple[Timestamp | None, Timestamp | None]:
    """Return when a restored task is due and when its try times out, as its row says.

    Args:
        shift: Offset of the wall clock from steady time.
    """
    limit = time_limit(spec)
    if row.state in _DUE or limit is None or row.started_at is None:
        return row.due_at, None
    # Rows of an earlier program version hold the start of the try and no end.
    return None, row.started_at - shift + limit if row.due_at is None else row.due_at
