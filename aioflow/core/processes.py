"""Reports about hosts and workers, shutdown, draining of a node, and demand for workers.

A drained node starts no further task and assigns no further trigger. Running tasks run to their
end, and hosted triggers stay hosted. The node stays drained, even across restarts, until it is
undrained.
"""

from __future__ import annotations

from aioflow.core import crash_trials
from aioflow.core.state.child_roles import (
    ASYNC,
    SLOT,
    hosts_triggers,
    interpreter_of,
    is_on_demand,
    kind_of,
)
from aioflow.core.state.task_instance import TaskInstance
from aioflow.core.tasks.retry import INTERRUPTION_LIMIT_SHARED
from aioflow.core.tasks.tries import (
    cut_short,
    fail_or_retry,
    forget_suspension,
    interrupt,
    requeue,
    stop_of,
)
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import dag_triggers, event_runs, lifecycle
from aioflow.core.triggers.assignment import REASSIGNED, host_all, reassign, request_own_hosts
from aioflow.model.states import Failure, TaskState
from aioflow.protocol.effects import RecallTries, RetireWorker, SetWorkerDemand
from aioflow.protocol.inputs import (
    AlertRaised,
    Drain,
    ExecutorUnavailable,
    HostLost,
    HostUp,
    WorkerGone,
    WorkerIdle,
    WorkerUnresponsive,
    WorkerUp,
)
from aioflow.protocol.requests import DrainNode

__all__ = (
    "alert_raised",
    "demand_workers",
    "executor_unavailable",
    "host_lost",
    "host_up",
    "recall_claims",
    "set_drained",
    "shut_down",
    "worker_gone",
    "worker_idle",
    "worker_unresponsive",
    "worker_up",
)


def set_drained(request: DrainNode, tx: Transaction) -> bool:
    """Drain or undrain a node. Return whether its state has changed.

    To drain a standby, only its row is changed: it takes over only if no other standby can.
    """
    memory = tx.memory
    if request.node_no != memory.node_no:
        tx.batch.drained.append((request.node_no, tx.now if request.is_drained else None))
        return True
    if memory.is_drained == request.is_drained:
        return False
    if tx.was_drained is None:
        tx.was_drained = memory.is_drained
    memory.is_drained = request.is_drained
    tx.batch.drained.append((request.node_no, tx.now if request.is_drained else None))
    if request.is_drained:
        memory.group_may_begin_since = None
        recall_claims(tx)
        return True
    for role in sorted(role for role in memory.hosts_up if hosts_triggers(role)):
        host_all(role, tx)
        dag_triggers.host_all(role, tx)
    request_own_hosts(tx)
    dag_triggers.update_assignments(tx)
    return True


def recall_claims(tx: Transaction) -> None:
    """Recall the tries that were prefetched to workers but have not started."""
    for worker in tx.slots.all_workers:
        if worker.claims:
            tries = tuple((task.task_no, task.start_no) for task in worker.claims)
            tx.effects.append(RecallTries(worker.number, tries))


def host_up(report: HostUp, tx: Transaction) -> None:
    """Assign triggers to a host that is ready to receive commands."""
    role = report.role
    tx.memory.hosts_up.add(role)
    tx.memory.host_processes[role] = report.process_no
    if kind_of(role) == SLOT:
        tx.memory.interpreter_problems.pop(interpreter_of(role), None)
    elif hosts_triggers(role):
        host_all(role, tx)
        dag_triggers.host_all(role, tx)


def host_lost(lost: HostLost, tx: Transaction) -> None:
    """Interrupt the tasks that ran in a shared host that died, and reassign its triggers."""
    memory = tx.memory
    memory.hosts_up.discard(lost.role)
    memory.host_processes.pop(lost.role, None)
    if kind_of(lost.role) == SLOT:
        memory.interpreter_problems[interpreter_of(lost.role)] = lost.failure.message
        return
    if kind_of(lost.role) != ASYNC:
        lifecycle.lose_host(lost, tx)
        reassign(lost.role, tx)
        event_runs.lose_host(lost, tx)
        if lost.was_dismissed and is_on_demand(lost.role):
            # A host on demand does not restart by itself, but triggers may have been assigned to it
            # meanwhile.
            request_own_hosts(tx)
            dag_triggers.update_assignments(tx)
        return
    memory.packing.lose(lost.role, memory.last_assignment_id)
    own = [one for one in memory.active_tasks.objects.values() if one.run.async_role == lost.role]
    for task in own:
        forget_suspension(task)
    charge = None
    if lost.culprit in memory.active_tasks:
        charge = memory.crash_suspects.failure(
            lost, memory.active_tasks, memory.waits, memory.dag_triggers
        )
    hosted = [task for task in own if task.is_hosted]
    if (
        lost.culprit not in memory.active_tasks and not lost.was_dismissed
    ):  # otherwise the cause of its end is known
        running = [task for task in hosted if task.state is TaskState.RUNNING]
        crash_trials.crashed(lost.role, running, tx)
    for task in hosted:
        # The next process may have executed a command that was sent after the death of this one, so
        # stop the task there as well.
        tx.effects.append(stop_of(task, task.start_no, REASSIGNED))
        if task.task_no == lost.culprit and charge is not None:
            fail_or_retry(task, charge, tx)
        elif task.state is TaskState.RUNNING and lost.was_dismissed:
            _requeue(task, tx)  # the task never reached the host
        elif task.state is TaskState.RUNNING:
            cut_short(task, lost.failure, tx)
        else:  # suspended sensors are never charged a try
            tx.slots.release(task)
            tx.note_slot(task)
            tx.slots.offer(task)


def _requeue(task: TaskInstance, tx: Transaction) -> None:
    """Requeue a try that never reached its process, because the process had already ended."""
    tx.slots.release(task)
    tx.slots.unblock(task)
    task.started_at = task.ends_at = None
    requeue(task, tx)


def shut_down(drain: Drain, tx: Transaction) -> None:
    """Start no more tasks. If the grace period is over, interrupt the tasks that still run."""
    tx.slots.is_open = False
    recall_claims(tx)
    if not drain.is_over:
        return
    crash_trials.stop(tx)
    failure = Failure(type="Interrupted", message="the daemon was stopped", reason="interrupted")
    for task in list(tx.memory.active_tasks.objects.values()):
        if task.state is TaskState.RUNNING:
            lifecycle.stop(task, "shutdown", tx)
            interrupt(task, failure, INTERRUPTION_LIMIT_SHARED, tx)


def worker_unresponsive(report: WorkerUnresponsive, tx: Transaction) -> None:
    """Record whether a slot worker responds."""
    tx.slots.note_silence(report)


def worker_up(report: WorkerUp, tx: Transaction) -> None:
    """Register a worker, so that it is granted tries from now on."""
    tx.slots.remote.add(report.worker, report.spec, report.location)


def worker_gone(report: WorkerGone, tx: Transaction) -> None:
    """Grant no more tries to a worker.

    A try that was granted before this report may be sent after the process has ended; the executor
    then returns it. Until it does, the worker stays registered, and the try holds its pool slots.
    """
    tx.slots.remove_worker(report.worker)


def worker_idle(report: WorkerIdle, tx: Transaction) -> None:
    """Retire a worker that is still idle, or that is no longer known."""
    worker = tx.slots.remote.find(report.worker)
    if worker is None or (worker.is_idle and not worker.is_held):
        tx.slots.remove_worker(report.worker)
        tx.effects.append(RetireWorker(report.worker))


def executor_unavailable(report: ExecutorUnavailable, tx: Transaction) -> None:
    """Record why tasks must wait for workers of a spec, or that workers are available again."""
    if report.why:
        tx.slots.remote.unavailable[report.spec] = report.why[:1_000]
    else:
        tx.slots.remote.unavailable.pop(report.spec, None)


def demand_workers(tx: Transaction) -> None:
    """End the workers that this turn retired. Update the demand for workers if it has changed."""
    tx.effects.extend(RetireWorker(worker.number) for worker in tx.slots.take_retired())
    demands = tx.slots.demand(tx.runs.values(), granting=not tx.memory.is_drained)
    if demands is not None:
        tx.effects.append(SetWorkerDemand(demands))


def alert_raised(alert: AlertRaised, tx: Transaction) -> None:
    """Alert about a problem of the whole node."""
    tx.outbox.alert(alert.reason, alert.message[:1_000], run_id="")
