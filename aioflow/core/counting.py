"""How many tasks of a run stand where: read off what is kept of them, however many there are."""

from __future__ import annotations

from aioflow.core.live import Run
from aioflow.model import TaskState

__all__ = ("counted",)


def counted(run: Run) -> list[tuple[int, TaskState, int]]:
    """Return ``(position, state, count)`` as the rows say it, and what is pending without one."""
    of_groups = [
        (group.position, state, group.counts[state])
        for group in run.groups.values()
        for state in TaskState
        if group.counts[state]
    ]
    alone = [
        (position, _state(run, position), 1)
        for position in range(len(run.states))
        if position not in run.groups
    ]
    return sorted(of_groups + alone)


def _state(run: Run, position: int) -> TaskState:
    state = TaskState(run.states[position])
    if state is TaskState.PENDING or not state.is_live:
        return state
    live = run.live.objects.get(run.task_no(position, -1))
    return TaskState.DEFERRED if live is None else live.state  # folded, it only waits
