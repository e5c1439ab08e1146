"""Selection of the callback for a state change or a missed deadline of a task or run.

No callback is called for a task that a trigger rule or a branch skipped before it started, or for a
task that a person cancelled or marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from aioflow.core.state.task_instance import Run, TaskInstance
from aioflow.model.dag import CallbackSpec
from aioflow.model.states import MARKED, RunState, TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.outbox import Callback

__all__ = (
    "deadline_callback",
    "run_callback",
    "task_callback",
)

_TASK_EVENTS: Mapping[TaskState, str] = MappingProxyType(
    {
        TaskState.SUCCESS: "success",
        TaskState.FAILED: "failure",
        TaskState.RETRYING: "retry",
        TaskState.SKIPPED: "skip",
    }
)


_RUN_EVENTS: Mapping[RunState, str] = MappingProxyType(
    {RunState.SUCCESS: "success", RunState.FAILED: "failure", RunState.PARTIAL: "failure"}
)


def task_callback(task: TaskInstance, callbacks: CallbackSpec, now: Timestamp) -> Callback | None:
    """Return the callback for the state that a task has just entered; ``None`` if there is none."""
    event = _TASK_EVENTS.get(task.state)
    is_unstarted = task.state is TaskState.SKIPPED and not task.try_number
    if event not in callbacks.events or is_unstarted or _is_marked(task):
        return None
    return Callback(
        event=event,
        run_no=task.run.run_no,
        task_index=task.task_index,
        state=task.state.label,
        at=now,
        task_no=task.task_no,
        map_index=task.map_index,
        try_number=task.try_number,
        start_no=task.start_no,
        failure=None if task.state is TaskState.SUCCESS else task.failure,
    )


def _is_marked(task: TaskInstance) -> bool:
    return task.failure is not None and task.failure.reason == MARKED


def run_callback(run: Run, state: RunState, now: Timestamp) -> Callback | None:
    """Return the callback for the state that a run enters; ``None`` if there is none."""
    callbacks, event = run.spec.callbacks, _RUN_EVENTS.get(state)
    if callbacks is None or event not in callbacks.events:
        return None
    return Callback(event=event, run_no=run.run_no, task_index=-1, state=state.label, at=now)


def deadline_callback(run: Run, task_index: int, now: Timestamp) -> Callback | None:
    """Return the callback for a task that missed its deadline; ``None`` if there is none.

    Args:
        task_index: Index of the task; -1 if the run itself missed its deadline.
    """
    spec = run.spec if task_index < 0 else run.spec.tasks[task_index]
    if spec.callbacks is None or "deadline" not in spec.callbacks.events:
        return None
    label = run.state.label if task_index < 0 else TaskState(run.states[task_index]).label
    number = -1 if task_index < 0 else run.task_no(task_index, -1)
    return Callback(
        event="deadline",
        run_no=run.run_no,
        task_index=task_index,
        state=label,
        at=now,
        task_no=number,
    )
