"""Recovery after a crash or restart: decide how each run, task and trigger continues.

All processes of the last incarnation have ended, and only rows are left. A task that was running is
interrupted, a queued task is offered again, and a deferred task continues to wait.
"""

from __future__ import annotations

from itertools import chain

from aioflow.core import crash_trials, dag_registry
from aioflow.core.runs import deadlines, run_queue
from aioflow.core.runs.cancel import cancel_tasks
from aioflow.core.runs.progress import resume
from aioflow.core.scheduling import clock_steps
from aioflow.core.state.crash_trials import DAEMON
from aioflow.core.state.task_instance import (
    Run,
    TaskInstance,
)
from aioflow.core.tasks import streams
from aioflow.core.tasks.tries import cut_short
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import assignment, dag_triggers, event_runs, lifecycle
from aioflow.model.decisions import PERSON
from aioflow.model.rows import (
    TriggerChange,
)
from aioflow.model.states import Failure, RunState, TaskState, TriggerState
from aioflow.protocol.effects import WakeAt
from aioflow.protocol.inputs import (
    ContinueBackfill,
    TimerFired,
)

__all__ = (
    "delete_stray_triggers",
    "find_suspects",
    "resume_dags",
    "resume_run",
)


def delete_stray_triggers(tx: Transaction) -> None:
    """Delete the rows of triggers that no task needs and no host runs."""
    memory = tx.memory
    tx.strays, memory.stray_triggers = memory.stray_triggers, []
    for stray in tx.strays:
        tx.batch.trigger_changes.append(
            TriggerChange(stray.trigger_no, stray.state, None, None, None)
        )
        if stray.class_path == PERSON and stray.state is TriggerState.WAITING:
            tx.end_decision(stray.trigger_no, "withdrawn", None)
        if stray.window:
            tx.batch.gone_events.append(stray.trigger_no)
    for wait in list(memory.waits.objects.values()):
        if wait.state is TriggerState.ENDING:
            tx.drop_wait(wait)


def find_suspects(tx: Transaction, *, has_crashed: bool) -> None:
    """Find the tasks and triggers that were, or may have been, running when the daemon died."""
    memory = tx.memory
    lives = [task for task in memory.active_tasks.objects.values() if task.run.state.is_live]
    running = [task for task in lives if task.state is TaskState.RUNNING]
    hosted = chain(assignment.hosted_before(memory), dag_triggers.hosted_before(memory))
    crash_trials.crashed(DAEMON, running, tx, hosted if has_crashed else ())
    crash_trials.wake(tx)  # also if the trial has not changed
    for task in lives:
        has_begun = task.resumed is not None or task.recorded
        if task.state is TaskState.QUEUED and task.start_no and not has_begun:
            memory.unclaimed.add(task.task_no)


def resume_run(run: Run, tx: Transaction) -> None:
    """Continue a run and its tasks. Some of the tasks may have been running."""
    if not run.state.is_live and run.clearing is None:
        cancel_tasks(run, tx)
    deadlines.arm_timeout(run, tx)
    tx.slots.hold_pool_slots_of(run)
    for task in list(run.active_tasks.objects.values()):
        _resume_task(task, tx)
    for task_no, at in tx.memory.packing.instants(run):
        tx.effects.append(WakeAt(TimerFired(at, task_no)))
    for number, failure in crash_trials.crashing_triggers(tx.memory):
        wait = tx.memory.waits.get(number)  # this unpacks it; its timers are armed above
        if wait is not None and wait.run is run:
            lifecycle.charge(wait, failure, tx)
    if run.clearing is not None:
        tx.postpone(run)
    elif run.state is RunState.RUNNING and run.row.quarantine is None:
        resume(run, tx)


def _resume_task(task: TaskInstance, tx: Transaction) -> None:
    tx.wake_task(task, task.deadline_at)
    tx.wake_task(task, task.due_at)
    if task.wait is not None:
        tx.wake_task(task, task.wait.row.deadline_at)
    match task.state:
        case TaskState.RUNNING:
            failure = Failure(type="Interrupted", message="the daemon ended", reason="interrupted")
            cut_short(task, failure, tx)
        case TaskState.QUEUED:
            tx.slots.offer(task)
        case TaskState.SENSING if task.waits_for_host:
            tx.slots.offer(task)
        case TaskState.DEFERRED:
            streams.resume_with_events(task, tx)
        case _:
            pass


def resume_dags(tx: Transaction) -> None:
    """Arm the schedules and triggers of all DAGs, and continue their queued runs and backfills."""
    memory = tx.memory
    clock_steps.rewind_cursors(tx)
    for row in memory.dags.values():
        if not row.gone:
            dag_registry.arm_schedule(row, tx)
            run_queue.begin_queued(row.dag_id, tx)
    event_runs.restarted(tx)
    for number, failure in crash_trials.crashing_triggers(memory):
        one = memory.dag_triggers.get(number)
        if one is not None:
            dag_triggers.charge(one, failure, tx)
    assignment.request_own_hosts(tx)
    tx.effects.extend(ContinueBackfill(number) for number in memory.backfills)
    deadlines.arm_deadlines(tx)
    for kind in list(memory.outbox_quotas):
        tx.outbox.read_more(kind)
