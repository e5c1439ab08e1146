"""Recomputation of a run's tallies, mapped tasks and unfinished count from its task states."""

from __future__ import annotations

from aioflow.core.state.state_counts import TALLY
from aioflow.core.state.task_instance import Run
from aioflow.core.tasks import one_to_one, stream_expand
from aioflow.core.tasks.readiness import is_cleared, rewind
from aioflow.model.states import RunState, TaskState

__all__ = ("recount", "retally")


def retally(run: Run) -> None:
    """Recompute the states of mapped tasks, the tallies and the number of unfinished tasks."""
    for position, fan_out in run.groups.items():
        run.states[position] = fan_out.outcome() if fan_out.is_over else TaskState.RUNNING
    for at in range(len(run.tallies)):
        run.tallies[at] = 0
    for looks in run.graph.judged:
        for look in looks:
            run.tallies[look.tally * TALLY] = len(look.parents) - len(look.indexed)
    run.unfinished = 0
    for position, number in enumerate(run.states):
        state, group = TaskState(number), run.groups.get(position)
        run.unfinished += state.is_live
        if group is None:
            if not state.is_live:
                run.count_ended(position, state)
            continue
        for ended in (one for one in TaskState if not one.is_live):
            if group.counts[ended]:
                run.count_child(group, ended, group.counts[ended])
        if group.is_loop and group.is_over:
            run.count_ended(position, group.outcome())
        stream_expand.count(group)


def recount(run: Run) -> None:
    """Recompute everything that follows from the states of the tasks of a run.

    Children that follow others are evaluated afterwards by steps, some in each turn.
    """
    retally(run)
    one_to_one.begin_anew(run)
    for group in run.groups.values():
        rewind(group)
    # Children that were cleared, or left when the run was cancelled, wait for their rule again.
    for position, group in run.groups.items():
        if group.is_over or group.unfinished:
            continue
        if stream_expand.source_of(run, position) >= 0 and not is_cleared(group):
            continue  # the end of its stream matters only to the tasks after it
        asks_past = position in run.graph.past  # the previous run may have changed since
        goes_on = group.is_between_rounds or (not asks_past and one_to_one.may_go_on(run, position))
        if run.state is not RunState.RUNNING or not goes_on:
            run.states[position] = TaskState.PENDING
            one_to_one.forget(group)
