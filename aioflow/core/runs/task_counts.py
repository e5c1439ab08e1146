"""Number of tasks of a run by state, computed from counts and not per task."""

from __future__ import annotations

from aioflow.core.scheduling.ready import still_waits
from aioflow.core.state.task_instance import MappedTask, Run
from aioflow.model.states import TaskState

__all__ = ("counted", "fresh_queued")


def counted(run: Run) -> list[tuple[int, TaskState, int]]:
    """Return ``(position, state, count)``, including tasks without a row.

    Children that wait for nothing but a slot count as queued, although they have no row yet.
    """
    of_groups = [
        (group.position, state, count)
        for group in run.groups.values()
        for state, count in _of_group(group)
        if count
    ]
    alone = [
        (position, _state(run, position), 1)
        for position in range(len(run.states))
        if position not in run.groups
    ]
    return sorted(of_groups + alone)


def fresh_queued(group: MappedTask) -> int:
    """Return how many children wait for nothing but a slot for their first start."""
    window = group.spec.window
    if not still_waits(group) or (window is not None and group.unfinished >= window):
        return 0
    return group.fresh


def _of_group(group: MappedTask) -> list[tuple[TaskState, int]]:
    fresh = fresh_queued(group)
    more = {TaskState.PENDING: -fresh, TaskState.QUEUED: fresh}
    return [(state, group.counts[state] + more.get(state, 0)) for state in TaskState]


def _state(run: Run, position: int) -> TaskState:
    state = TaskState(run.states[position])
    if state is TaskState.PENDING or not state.is_live:
        return state
    task = run.active_tasks.objects.get(run.task_no(position, -1))
    return TaskState.DEFERRED if task is None else task.state  # packed, so it only waits
