"""Counts of the tasks of a run by state, and recomputation of its tallies from the task states.

The counts by state are computed from stored counts, without visiting each task.
"""

from __future__ import annotations

from collections.abc import Iterable

from aioflow.core.scheduling.ready import still_waits
from aioflow.core.state.graph import TALLY
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import MappedTask, Run
from aioflow.core.tasks import one_to_one, stream_expand
from aioflow.core.tasks.readiness import is_cleared, rewind
from aioflow.model.ids import RunNo
from aioflow.model.states import RunState, TaskState

__all__ = (
    "counted",
    "fresh_queued",
    "only_waits",
    "recount",
    "retally",
    "waiting_runs",
)

_BUSY = frozenset({TaskState.QUEUED, TaskState.RUNNING})
_WAITING = frozenset({TaskState.SENSING, TaskState.DEFERRED, TaskState.RETRYING})


def counted(run: Run) -> list[tuple[int, TaskState, int]]:
    """Return the number of tasks by index and state, as ``(task_index, state, count)``.

    Tasks without a row are included. Children that wait only for a slot count as queued even before
    they have a row.
    """
    of_groups = [
        (group.task_index, state, count)
        for group in run.groups.values()
        for state, count in _group_counts(group)
        if count
    ]
    alone = [
        (task_index, _counted_state(run, task_index), 1)
        for task_index in range(len(run.states))
        if task_index not in run.groups
    ]
    return sorted(of_groups + alone)


def only_waits(run: Run) -> bool:
    """Return whether a running run has waiting tasks, and no running or queued task."""
    if run.state is not RunState.RUNNING:
        return False
    found = False
    for group in run.groups.values():
        if any(group.counts[state] for state in _BUSY) or fresh_queued(group):
            return False
        found = found or any(group.counts[state] for state in _WAITING)
    for task_index, number in enumerate(run.states):
        if number == TaskState.PENDING or number >= TaskState.SUCCESS or task_index in run.groups:
            continue
        state = _counted_state(run, task_index)
        if state in _BUSY:
            return False
        found = found or state in _WAITING
    return found


def waiting_runs(memory: Memory, run_nos: Iterable[RunNo]) -> set[RunNo]:
    """Return which of these runs only wait. All tasks of packed runs wait, so they stay packed."""
    runs = memory.runs
    packed, loose = runs.packed_numbers(), runs.objects
    return {
        run_no
        for run_no in run_nos
        if run_no in packed or ((run := loose.get(run_no)) is not None and only_waits(run))
    }


def fresh_queued(group: MappedTask) -> int:
    """Return how many children wait only for a slot for their first start."""
    window = group.spec.window
    if not still_waits(group) or (window is not None and group.unfinished >= window):
        return 0
    return group.fresh


def _group_counts(group: MappedTask) -> list[tuple[TaskState, int]]:
    fresh = fresh_queued(group)
    more = {TaskState.PENDING: -fresh, TaskState.QUEUED: fresh}
    return [(state, group.counts[state] + more.get(state, 0)) for state in TaskState]


def _counted_state(run: Run, task_index: int) -> TaskState:
    state = TaskState(run.states[task_index])
    if state is TaskState.PENDING or not state.is_live:
        return state
    task = run.active_tasks.objects.get(run.task_no(task_index, -1))
    return TaskState.DEFERRED if task is None else task.state  # it is packed, so it only waits


def retally(run: Run) -> None:
    """Recompute the states of mapped tasks, the tallies and the number of unfinished tasks."""
    for task_index, fan_out in run.groups.items():
        run.states[task_index] = fan_out.outcome() if fan_out.is_over else TaskState.RUNNING
    for at in range(len(run.tallies)):
        run.tallies[at] = 0
    for looks in run.graph.evaluated:
        for look in looks:
            run.tallies[look.tally * TALLY] = len(look.parents) - len(look.indexed)
    run.unfinished = 0
    for task_index, number in enumerate(run.states):
        state, group = TaskState(number), run.groups.get(task_index)
        run.unfinished += state.is_live
        if group is None:
            if not state.is_live:
                run.count_ended(task_index, state)
            continue
        for ended in (one for one in TaskState if not one.is_live):
            if group.counts[ended]:
                run.count_child(group, ended, group.counts[ended])
        if group.is_loop and group.is_over:
            run.count_ended(task_index, group.outcome())
        stream_expand.count(group)


def recount(run: Run) -> None:
    """Recompute everything that is derived from the states of the tasks of a run.

    Children that depend on the children of another task one by one are evaluated later by ``step``,
    some of them in each turn.
    """
    retally(run)
    one_to_one.reset_queues(run)
    for group in run.groups.values():
        rewind(group)
    # Children that were cleared, or that were pending when the run was cancelled, must be evaluated
    # again by their trigger rule.
    for task_index, group in run.groups.items():
        if group.is_over or group.unfinished:
            continue
        if stream_expand.source_of(run, task_index) >= 0 and not is_cleared(group):
            continue  # the end of its stream matters only to the tasks after it
        asks_past = task_index in run.graph.past  # the previous run may have changed meanwhile
        continues = group.is_between_rounds or (
            not asks_past and one_to_one.may_continue(run, task_index)
        )
        if run.state is not RunState.RUNNING or not continues:
            run.states[task_index] = TaskState.PENDING
            one_to_one.forget(group)
