"""Recovery after a restart: all processes of the last incarnation have ended, only rows are left.

If a restart is refused, it is repeated in parts, so that a run that cannot continue does not
block the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from msgspec.structs import replace

from aioflow.core import crash_trials
from aioflow.core.runs import create, deadline_alerts, versions
from aioflow.core.runs.cancel import cancel_tasks
from aioflow.core.runs.run import resume
from aioflow.core.scheduling import clock_steps
from aioflow.core.state.crash_trials import DAEMON
from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import Run, TaskInstance
from aioflow.core.tasks import stream_consumer
from aioflow.core.tasks.tries import cut_short
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import assignment, dag_triggers, event_runs, lifecycle
from aioflow.model.damage import DAMAGED
from aioflow.model.rows import RunChange, RunRow, TriggerChange
from aioflow.model.states import Failure, RunState, TaskState, TriggerState
from aioflow.protocol.effects import WakeAt
from aioflow.protocol.inputs import ContinueBackfill, DamageFound, Input, Restarted, TimerFired

__all__ = ("damage_found", "give_up", "in_parts", "restarted", "set_aside", "stop_trigger", "tell")


def restarted(entry: Restarted, tx: Transaction) -> None:
    """Continue from the rows. Idempotent."""
    memory = tx.memory
    if entry.runs is None or not entry.runs:
        _sweep(tx)
        deadline_alerts.index(memory)
        create.count_runs(memory)  # a repeated restart has counted them before
        _suspect(tx, has_crashed=entry.has_crashed)
    numbers = memory.runs if entry.runs is None else entry.runs
    for run in [memory.runs[number] for number in numbers if number in memory.runs]:
        _go_on(run, tx)
    if entry.runs is None or not entry.runs:
        _go_on_with_dags(tx)


def in_parts(entry: Input, memory: Memory) -> Iterable[Input]:
    """Split a restart into inputs that can be handled one by one."""
    if not isinstance(entry, Restarted) or entry.runs is not None:
        return [entry]
    return [replace(entry, runs=()), *(Restarted((number,)) for number in memory.runs)]


def give_up(row: RunRow, reason: str, memory: Memory, *, is_damaged: bool) -> None:
    """Isolate a run that could not be restored from its rows, and remove it from memory.

    Args:
        is_damaged: Whether one of its rows is damaged; then none of them is written to.
    """
    was_told = row.quarantine is not None
    _forget(row, memory)
    memory.isolated[row.run_no] = replace(row, quarantine=reason)
    if not was_told and not is_damaged:
        memory.untold.append(memory.isolated[row.run_no])


def tell(row: RunRow, tx: Transaction) -> None:
    """Store the quarantine reason of an isolated run, and alert."""
    change = (row.run_no, row.state, row.state, row.started_at, row.ended_at, row.quarantine)
    tx.batch.run_changes.append(RunChange(*change))
    tx.outbox.alert_of(row, "quarantined", row.quarantine or "")


def damage_found(entry: DamageFound, tx: Transaction) -> None:
    """Alert about a damaged row, with its table, key, run and DAG."""
    damage = entry.damage
    memory, run_no = tx.memory, damage.run_no
    row = None if run_no is None else memory.isolated.get(run_no)
    if row is None and run_no is not None and run_no in memory.runs:
        row = memory.runs.peek(run_no).row
    run_id = "" if row is None else row.run_id
    dag_id = (damage.dag_id or "") if row is None else row.dag_id
    tx.outbox.alert(DAMAGED, str(damage), run_id=run_id, dag_id=dag_id)


def set_aside(run: Run, reason: str, memory: Memory) -> None:
    """Remove a run from memory and isolate it until the next restart."""
    run.is_forgotten = True
    memory.drop_run(run)
    _forget(run.row, memory)
    memory.isolated[run.run_no] = replace(run.row, quarantine=reason)


def stop_trigger(one: DagTrigger) -> None:
    """Stop a DAG's trigger until the next restart, as if it could not be decrypted."""
    one.row = replace(one.row, kwargs=None)
    one.unhost()


def _forget(row: RunRow, memory: Memory) -> None:
    for task in [
        task for task in memory.active_tasks.objects.values() if task.run.run_no == row.run_no
    ]:
        del memory.active_tasks[task.task_no]
    for number in [n for n, wait in memory.waits.objects.items() if wait.run.run_no == row.run_no]:
        del memory.waits[number]
    memory.packing.forget_folded(row.run_no)
    memory.backpressured = {
        no: task for no, task in memory.backpressured.items() if task.run.run_no != row.run_no
    }
    broken = memory.runs.pop(row.run_no, None)
    if broken is not None:
        memory.leave_line(broken)


def _sweep(tx: Transaction) -> None:
    """Delete rows of triggers that no task needs and no host has."""
    memory = tx.memory
    tx.strays, memory.stray_triggers = memory.stray_triggers, []
    for stray in tx.strays:
        tx.batch.trigger_changes.append(
            TriggerChange(stray.trigger_no, stray.state, None, None, None)
        )
        if stray.window:
            tx.batch.gone_events.append(stray.trigger_no)
    for wait in list(memory.waits.objects.values()):
        if wait.state is TriggerState.ENDING:
            tx.drop_wait(wait)


def _suspect(tx: Transaction, *, has_crashed: bool) -> None:
    """Find the tasks and triggers that were running, or may have been, when the daemon died."""
    memory = tx.memory
    lives = [task for task in memory.active_tasks.objects.values() if task.run.state.is_live]
    running = [task for task in lives if task.state is TaskState.RUNNING]
    hosted = chain(assignment.hosted_before(memory), dag_triggers.hosted_before(memory))
    crash_trials.crashed(DAEMON, running, tx, hosted if has_crashed else ())
    crash_trials.wake(tx)  # also for a trial that has not changed
    for task in lives:
        has_begun = task.resumed is not None or task.recorded
        if task.state is TaskState.QUEUED and task.start_no and not has_begun:
            memory.unclaimed.add(task.task_no)


def _go_on(run: Run, tx: Transaction) -> None:
    if not run.state.is_live and run.clearing is None:
        cancel_tasks(run, tx)
    deadline_alerts.arm_timeout(run, tx)
    tx.slots.keep_all(run)
    for task in list(run.active_tasks.objects.values()):
        _resume_live(task, tx)
    for task_no, at in tx.memory.packing.instants(run):
        tx.effects.append(WakeAt(TimerFired(at, task_no)))
    for number, failure in crash_trials.guilty_triggers(tx.memory):
        wait = tx.memory.waits.get(number)  # this unpacks it; its timers are armed above
        if wait is not None and wait.run is run:
            lifecycle.charge(wait, failure, tx)
    if run.clearing is not None:
        tx.put_off(run)
    elif run.state is RunState.RUNNING and run.row.quarantine is None:
        resume(run, tx)


def _resume_live(task: TaskInstance, tx: Transaction) -> None:
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
            stream_consumer.go_on(task, tx)
        case _:
            pass


def _go_on_with_dags(tx: Transaction) -> None:
    memory = tx.memory
    clock_steps.take_back(tx)
    for row in memory.dags.values():
        if not row.gone:
            versions.arm_schedule(row, tx)
            create.begin_queued(row.dag_id, tx)
    event_runs.restarted(tx)
    for number, failure in crash_trials.guilty_triggers(memory):
        one = memory.dag_triggers.get(number)
        if one is not None:
            dag_triggers.charge(one, failure, tx)
    assignment.want_own_hosts(tx)
    tx.effects.extend(ContinueBackfill(number) for number in memory.backfills)
    deadline_alerts.arm(tx)
    for kind in list(memory.outbox_quotas):
        tx.outbox.read_on(kind)
