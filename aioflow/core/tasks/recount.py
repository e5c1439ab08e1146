"""What the states of a run's tasks come to: its tallies, its fan-outs, and what has not ended."""

from __future__ import annotations

from aioflow.core.state.state_counts import TALLY
from aioflow.core.state.task_instance import Run
from aioflow.core.tasks import one_to_one, stream_expand
from aioflow.core.tasks.readiness import is_cleared, rewind
from aioflow.model.states import RunState, TaskState

__all__ = ("recount", "retally")


def retally(run: Run) -> None:
    """Tell the tallies what the states of the tasks say, whole ones too, and what has not ended.

    How a fan-out stands is what its children come to.
    """
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
    """Learn from the states of the tasks alone how a run stands.

    Children that follow others have yet to be judged: steps do that, some of them in each turn.
    """
    retally(run)
    one_to_one.begin_anew(run)
    for group in run.groups.values():
        rewind(group)
    # Cleared, or left behind when the run was cancelled, children wait for their rule again.
    for position, group in run.groups.items():
        if group.is_over or group.unfinished:
            continue
        if stream_expand.source_of(run, position) >= 0 and not is_cleared(group):
            continue  # how its stream ended matters to what comes after it alone
        asks_past = position in run.graph.past  # which may say otherwise by now
        goes_on = group.is_between_rounds or (not asks_past and one_to_one.may_go_on(run, position))
        if run.state is not RunState.RUNNING or not goes_on:
            run.states[position] = TaskState.PENDING
            one_to_one.forget(group)
