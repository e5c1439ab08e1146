"""Cancelling a run: its own state first, so that nothing starts in between, then its tasks."""

from __future__ import annotations

from aioflow.core import child_runs, dag, handling, waits
from aioflow.core.draft import Draft
from aioflow.core.live import Run
from aioflow.core.run import end
from aioflow.core.slots import Slots
from aioflow.model import RunState, TaskState
from aioflow.orders import ForgetRun

__all__ = ("cancel", "cancel_tasks")


def cancel(run: Run, draft: Draft, slots: Slots) -> RunState:
    """Cancel a run; a second time changes nothing.

    It has ended when the last of its tasks has, which may take several turns.
    """
    was = run.state
    if was.is_live:
        draft.change_run(run, state=RunState.CANCELLED)
        dag.run_ended(run, was=was, draft=draft, slots=slots)
        child_runs.ended(run, draft, slots)
        cancel_tasks(run, draft, slots)
    return RunState.CANCELLED


def cancel_tasks(run: Run, draft: Draft, slots: Slots) -> None:
    """Cancel what is live; a task without a row is cancelled with its run."""
    for live in run.live.values():
        if draft.is_full:
            draft.put_off(run)
            return
        waits.stop(live, "cancelled", draft, slots)
        handling.cancel(live, draft)  # what its streams started is to be undone
        end(live, TaskState.CANCELLED, draft, slots)
    draft.change_run(run, ended_at=draft.now)
    draft.memory.drop_run(run)
    draft.effects.append(ForgetRun(run.run_no))
