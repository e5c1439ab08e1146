"""Ending a run before its tasks have: a person cancels it, or it took too long.

Its own state comes first, so that nothing starts in between, then its tasks.
"""

from __future__ import annotations

from aioflow.core import child_runs, dag, deadlines, handling, waits
from aioflow.core.draft import Draft
from aioflow.core.fresh import cleared_places, fresh
from aioflow.core.live import Run
from aioflow.core.run import alert, end
from aioflow.core.slots import Slots
from aioflow.model import Failure, Instant, RunNo, RunState, TaskState
from aioflow.orders import ForgetRun

__all__ = ("cancel", "cancel_tasks", "run_due")


def cancel(run: Run, draft: Draft, slots: Slots) -> RunState:
    """Cancel a run; a second time changes nothing.

    It has ended when the last of its tasks has, which may take several turns.
    """
    if run.state.is_live:
        _cut_short(run, RunState.CANCELLED, draft, slots)
    return run.state


def run_due(run_no: RunNo, at: Instant, draft: Draft, slots: Slots) -> None:
    """An instant of a run has come: a deadline, or the end of the time it may take."""
    deadlines.told(run_no, at, draft)
    run = draft.memory.runs.get(run_no)
    if run is None or not deadlines.is_timed_out(run, at):
        return
    alert(run, -1, _timed_out(run), draft)
    _cut_short(run, RunState.FAILED, draft, slots)


def _cut_short(run: Run, state: RunState, draft: Draft, slots: Slots) -> None:
    was = run.state
    draft.change_run(run, state=state)
    dag.run_ended(run, was=was, draft=draft, slots=slots)
    child_runs.ended(run, draft, slots)
    cancel_tasks(run, draft, slots)


def _timed_out(run: Run) -> Failure:
    seconds = (run.spec.run_timeout_us or 0) / 1e6
    message = f"the run took longer than {seconds:g} s"
    return Failure(type="RunTimeout", message=message, reason="run_timeout")


def cancel_tasks(run: Run, draft: Draft, slots: Slots) -> None:
    """Cancel what is live; a task without a row is cancelled with its run.

    Only a person's word undoes what triggers have started; time that is over lets go of them.
    """
    for live in run.live.values():
        if draft.is_full:
            draft.put_off(run)
            return
        if run.state is RunState.FAILED:
            waits.stop(live, "timeout", draft, slots)
            live.failure = _timed_out(run)
        else:
            waits.stop(live, "cancelled", draft, slots)
            handling.cancel(live, draft)  # what its streams started is to be undone
        end(live, TaskState.CANCELLED, draft, slots)
    for position, map_index in cleared_places(run):
        if draft.is_full:
            draft.put_off(run)
            return
        live = fresh(run, position, map_index)
        live.try_number, live.ended_at = 0, draft.now
        draft.move(live, TaskState.CANCELLED)
    draft.change_run(run, ended_at=draft.now)
    draft.memory.drop_run(run)
    draft.held_dags.add(run.row.dag_id)  # another run may be the first of its line now
    draft.effects.append(ForgetRun(run.run_no))
