"""Ending of a run before its tasks have ended, because it is cancelled, marked or timed out.

The run changes state first, so that no task starts in between. Then its tasks are ended.
"""

from __future__ import annotations

from itertools import islice

from aioflow.core.repair import execution
from aioflow.core.repair.mark_apply import marked
from aioflow.core.runs import create, deadlines
from aioflow.core.runs.progress import alert, end
from aioflow.core.state.task_instance import Run, TaskInstance
from aioflow.core.tasks import durable_calls, streams
from aioflow.core.tasks.readiness import cleared_tasks, fresh
from aioflow.core.transaction import BATCH_ROWS, Transaction
from aioflow.core.triggers import lifecycle
from aioflow.model.ids import RunNo
from aioflow.model.states import Failure, RunState, TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import ForgetRun

__all__ = ("cancel", "cancel_tasks", "mark_ended", "mark_live", "run_due")


def cancel(run: Run, tx: Transaction) -> RunState:
    """Cancel a run. Idempotent.

    The cancellation is complete when its last task has ended, which may take several turns.
    """
    if run.state.is_live:
        _cut_short(run, RunState.CANCELLED, tx)
    return run.state


def mark_live(run: Run, state: RunState, tx: Transaction) -> RunState:
    """End a live run in this state. Do nothing if the run is already being ended."""
    if run.state.is_live:
        _cut_short(run, state, tx)
    return run.state


def mark_ended(run: Run, state: RunState, tx: Transaction, *, is_reported: bool) -> None:
    """Change the final state of an ended run. Its tasks are not changed.

    Args:
        is_reported: Whether the callbacks of the run are called.
    """
    if run.state is not state:
        for step in (RunState.QUEUED, RunState.RUNNING, state):
            tx.change_run(run, state=step, is_reported=is_reported)


def run_due(run_no: RunNo, at: Timestamp, tx: Transaction) -> None:
    """Handle a timer of a run: its timeout, or one of its deadlines."""
    deadlines.end_deadlines(run_no, at, tx)
    run = tx.memory.runs.get(run_no)
    if run is None or not deadlines.is_timed_out(run, at, tx.memory):
        return
    alert(run, -1, _timed_out(run), tx)
    _cut_short(run, RunState.FAILED, tx, at)


def _cut_short(run: Run, state: RunState, tx: Transaction, at: Timestamp | None = None) -> None:
    was = run.state
    if was is RunState.QUEUED and state is not RunState.CANCELLED:
        tx.change_run(run, state=RunState.RUNNING)
    execution.drop_selection(run, tx)
    tx.change_run(run, state=state, is_reported=at is not None)  # no callback if a person ends it
    create.run_ended(run, was=was, tx=tx)
    durable_calls.resume_caller(run, tx)
    cancel_tasks(run, tx, at)


def _timed_out(run: Run) -> Failure:
    seconds = (run.spec.run_timeout_us or 0) / 1e6
    message = f"the run took longer than {seconds:g} s"
    return Failure(type="RunTimeout", message=message, reason="run_timeout")


def cancel_tasks(run: Run, tx: Transaction, now: Timestamp | None = None) -> None:
    """End the active and cleared tasks of an ended run. Its other pending tasks need no row.

    Triggers are stopped with the reason ``cancelled``, so that the work they started is undone.
    After a timeout of the run the reason is ``timeout``, and that work is not undone.

    Args:
        now: Lower bound of the current steady time.
    """
    state = TaskState.SUCCESS if run.state is RunState.SUCCESS else TaskState.CANCELLED
    for task in run.active_tasks.values():
        if tx.is_full:
            tx.postpone(run)
            return
        _stop(task, state, tx.steady if now is None else max(now, tx.steady), tx)
    for task_index, map_index in list(islice(cleared_tasks(run), BATCH_ROWS)):
        if tx.is_full:
            break
        task = fresh(run, task_index, map_index)
        task.try_number, task.ended_at = 0, tx.now
        if state is TaskState.SUCCESS:
            task.failure = marked(state)
        # A cleared mapped task that still has children was going to be expanded again.
        has_children = map_index < 0 and task_index in run.groups
        tx.move(task, TaskState.REMOVED if has_children else state)
        if has_children:
            run.removed[task.task_no] = task.start_no
    if any(True for _ in cleared_tasks(run)):
        tx.postpone(run)
        return
    for task_index in range(len(run.spec.tasks)):
        tx.task_ended(run, task_index)  # some children may have succeeded, others were stopped
    tx.change_run(run, ended_at=tx.now)
    tx.memory.drop_run(run)
    tx.recheck_dags.add(run.row.dag_id)  # another run may be the first in order now
    tx.effects.append(ForgetRun(run.run_no))


def _stop(task: TaskInstance, state: TaskState, now: Timestamp, tx: Transaction) -> None:
    run = task.run
    if run.state is RunState.FAILED and deadlines.is_past_timeout(run, now, tx.memory):
        lifecycle.stop(task, "timeout", tx)
        task.failure = _timed_out(run)
    else:
        lifecycle.stop(task, "cancelled", tx)
        streams.cancel_streams(task, tx)  # so that the work started by its streams is undone
        if run.state is not RunState.CANCELLED:
            task.failure = marked(state)
    if state is TaskState.SUCCESS:
        if task.state is TaskState.RETRYING:
            task.start_no += 1  # the last start failed and already has its row
        tx.move(task, TaskState.PENDING)  # none of its outputs counts as complete
    end(task, state, tx)
