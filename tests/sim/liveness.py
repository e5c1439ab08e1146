"""Liveness: nothing waits while a slot is free, and slots match the tasks that hold them.

The first liveness invariant, that everything ends, is ``model.Node.live``. The second, that every
timer is handled, is ``wheel.Watch``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from aioflow.core.scheduling.slots import Slots, Worker
from aioflow.core.state.child_roles import async_role
from aioflow.core.state.crash_trials import may_host
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance, TriggerInstance
from aioflow.core.triggers.assignment import HOSTLESS, is_stopped, role_of
from aioflow.model.dag import Body
from aioflow.model.states import RunState, TaskState, TriggerState
from aioflow.model.workers import LOCAL
from aioflow.protocol.inputs import AssignTriggers, HostLost, HostUp, PauseTriggers
from tests.sim import evented
from tests.sim.broken import Broken

__all__ = (
    "admitted",
    "has_limits",
    "hosts_were_given_what_they_have",
    "nothing_waits_beside_a_free_slot",
    "one_owner",
    "slots_are_what_tasks_hold",
    "triggers_are_hosted",
)


def nothing_waits_beside_a_free_slot(node: Any) -> None:
    """L3: with an empty inbox, check that a task waits for a slot only if no slot is free."""
    slots, memory = node.slots, node.memory
    free = {
        Body.FUNCTION: any(worker.is_idle for worker in slots.workers),
        Body.COROUTINE: slots.running_coroutines < slots.coroutines,
    }
    is_on_trial = memory.trial is not None and memory.trial.groups  # over in time, or no run ends
    if is_on_trial or not slots.is_open or not any(free.values()):
        return
    queued = {item[3].run.run_no for queue in slots.ready._queues.values() for item in queue}
    waiting: defaultdict[tuple[Body, str, str], list[tuple[int, str]]] = defaultdict(list)
    for run in memory.runs.values():
        is_held = run.row.quarantine is not None or run.clearing is not None
        if run.state is RunState.RUNNING and not is_held:
            if has_limits(run) and run.run_no in queued:
                continue  # a limited run is in one queue at a time, with its best task
            for entry in admitted(run):
                spec = run.spec.tasks[entry.task_index]
                if slots.ready.across.is_full(entry) or spec.executor != LOCAL:
                    continue
                role = async_role(run.spec) if spec.body is Body.COROUTINE else ""
                limit = slots.pools.get(spec.pool)
                is_kept = isinstance(entry, TaskInstance) and entry.task_no in slots.pool_holds
                is_free = free[spec.body] and role in {"", *memory.hosts_up}
                if is_free and (limit is None or is_kept or spec.slots <= limit.slots):
                    name = f"task {entry.task_index} of run {run.run_no}"
                    weight = 0 if is_kept else spec.slots
                    waiting[spec.body, spec.pool, role].append((weight, name))
    for (body, pool, role), found in waiting.items():
        retained = [name for weight, name in found if weight == 0]
        if retained:
            raise Broken("L3 progress", f"{retained[0]} waits, and has its room in pool {pool}")
        widest, name = max(found)
        queue = slots.ready._queues.get(((body.value, pool), role))
        if queue and not slots._has_capacity(
            pool, queue[0][3].run.spec.tasks[queue[0][3].task_index].slots
        ):
            continue  # the head of the queue needs more slots, and must not be overtaken
        if slots._has_capacity(pool, widest):
            raise Broken("L3 progress", f"{name} waits, and there is a free place in pool {pool}")


def has_limits(run: Run) -> bool:
    """Return whether the run has limits on concurrent tasks."""
    if run.spec.max_active_tasks is not None:
        return True
    return any(task.max_active_tis_per_dagrun is not None for task in run.spec.tasks)


def admitted(run: Run) -> Iterator[TaskInstance | MappedTask]:
    """Yield the queued tasks whose start is not prevented by a limit of their run."""
    at_once = run.spec.max_active_tasks
    if at_once is not None and run.running >= at_once:
        return
    entries: list[TaskInstance | MappedTask] = [
        task
        for task in run.active_tasks.values()
        if task.state is TaskState.QUEUED and task.worker < 0 and not task.is_hosted
    ]
    entries += [
        group
        for group in run.groups.values()
        if group.has_fresh and run.states[group.task_index] == TaskState.RUNNING
    ]
    for entry in entries:
        spec = run.spec.tasks[entry.task_index]
        at_position = spec.max_active_tis_per_dagrun
        if spec.sensor is not None and spec.body is Body.COROUTINE:
            continue
        if at_position is not None and run.running_at.get(entry.task_index, 0) >= at_position:
            continue
        if (
            isinstance(entry, MappedTask)
            and spec.window is not None
            and entry.unfinished >= spec.window
        ):
            continue
        yield entry


def one_owner(node: Any, epoch: int) -> None:
    """L4: check that the owner of the database does not change while there are no faults."""
    if node.tables.epoch != epoch:
        raise Broken("L4 owner", f"epoch {epoch} has become {node.tables.epoch}")


def slots_are_what_tasks_hold(node: Any) -> None:
    """Check that the counts of slots and pools match the tasks that hold them."""
    slots: Slots = node.slots
    used: Counter[str] = Counter()
    running: Counter[int] = Counter()
    hosted = [task for task in node.memory.active_tasks.values() if task.is_hosted]
    counted = [task for task in hosted if task.spec.sensor is None]
    in_workers = [task for task in node.memory.active_tasks.values() if task.worker >= 0]
    for task in counted:
        used[task.spec.pool] += task.spec.slots
    for worker in slots.all_workers:
        _worker_has(worker, [task for task in in_workers if task.worker == worker.number])
        if not worker.is_idle or worker.is_held:
            used[worker.pool] += worker.weight
    for task in in_workers:
        worker = slots.worker(task.worker)
        if (task.spec.pool, task.spec.slots) != (worker.pool, worker.weight):
            raise Broken("slots", f"{task.name} is in a slot of pool {worker.pool}, not of its own")
    for task in (*counted, *in_workers):
        running[task.run.run_no] += 1
    used.update(_kept(node))
    if +Counter(slots._used) != +used:
        raise Broken("slots", f"the pools count {slots._used}, the tasks hold {dict(used)}")
    if slots.running_coroutines != len(counted):
        raise Broken("slots", f"{slots.running_coroutines} coroutines, {len(counted)} run")
    for run in node.memory.runs.values():
        if run.running != running[run.run_no]:
            raise Broken("slots", f"run {run.run_no} counts {run.running} of {running}")


def _kept(node: Any) -> Counter[str]:
    """Return the pool slots that waiting tasks hold.

    A deferred task holds its slots if and only if its pool counts deferred tasks.
    """
    slots: Slots = node.slots
    retained: Counter[str] = Counter()
    for task in node.memory.active_tasks.values():
        is_kept = task.task_no in slots.pool_holds
        if task.state is TaskState.DEFERRED and is_kept != slots.counts_deferred(task.spec):
            raise Broken("slots", f"{task.name} waits, and its room is not counted as its pool is")
        if task.state is TaskState.RETRYING and is_kept:
            raise Broken("slots", f"{task.name} waits for its next try, and keeps its room")
        if is_kept:
            retained[task.spec.pool] += task.spec.slots
    return retained


def _worker_has(worker: Worker, lives: list[TaskInstance]) -> None:
    claims = {task.task_no for task in lives if task.is_claimed}
    current = [task for task in lives if not task.is_claimed]
    if current != ([] if worker.current is None else [worker.current]):
        raise Broken("slots", f"worker {worker.number} is at another task than say so")
    if {task.task_no for task in worker.claims} != claims:
        raise Broken("slots", f"worker {worker.number} has other claims than say so")


def _is_ending(wait: TriggerInstance) -> bool:
    """Return whether the task of the wait is being cancelled, cleared or marked in slices."""
    if not wait.run.state.is_live:
        return True
    chosen, task = wait.run.clearing, wait.task
    return chosen is not None and task is not None and chosen.ends(task.task_index, task.map_index)


def triggers_are_hosted(node: Any) -> None:
    """Check that waiting triggers are assigned while a trigger host is up."""
    moving = {entry.dag_id for entry in node.circle.inbox if isinstance(entry, PauseTriggers)}
    for number, wait in node.memory.waits.items():
        if wait.row.class_path in HOSTLESS or wait.run.row.dag_id in moving:
            continue  # it never has a host, or is about to be assigned
        if (
            role_of(wait.row.class_path, wait.run.dag_version, node.memory)
            not in node.memory.hosts_up
        ):
            continue
        if _is_ending(wait):
            continue
        if is_stopped(wait.run.row.dag_id, node.memory):
            continue  # it has left its host, or will
        if node.memory.may_host_more or not may_host(number, node.memory):
            continue  # others are assigned first
        if wait.state is TriggerState.WAITING and wait.task is not None and wait.assignment_id == 0:
            raise Broken("slots", f"trigger {number} waits, and no host has it")
    evented.are_hosted(node)


def hosts_were_given_what_they_have(node: Any) -> None:
    """Check that the assignments in memory were sent to the current process of the host."""
    memory = node.memory
    news = (HostUp, HostLost, AssignTriggers)
    if memory.may_host_more or any(isinstance(entry, news) for entry in node.circle.inbox):
        return
    for number in (*memory.waits.objects, *memory.packing.packed_triggers(lambda _: True)):
        wait = memory.packing.peek(number)
        is_waiting = wait.state is TriggerState.WAITING and wait.task is not None
        if (
            not is_waiting
            or not wait.assignment_id
            or _is_ending(wait)
            or not may_host(number, memory)
        ):
            continue
        role = role_of(wait.row.class_path, wait.run.dag_version, memory)
        if role != wait.role or role not in memory.hosts_up:
            continue  # it moves
        if is_stopped(wait.run.row.dag_id, memory):
            continue  # it has left its host, or will
        if not node.children.trigger_was_given(role, number, wait.assignment_id):
            raise Broken("slots", f"trigger {number} waits, and the {role} host was not given it")
