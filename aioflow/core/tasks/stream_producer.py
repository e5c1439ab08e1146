"""Tasks that yield items before they end: each item is stored, then handled by a child.

Backpressure: while the window of a consumer is full, the task is not sent the confirmation of its
last items, and so does not continue. It keeps its slot.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.core.runs.run import step
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.streams import StreamOutput
from aioflow.core.state.task_instance import MappedTask, TaskInstance
from aioflow.core.tasks import stream_expand
from aioflow.core.tasks.expand import check_cap
from aioflow.core.tasks.tries import fail, stop_of
from aioflow.core.transaction import Transaction
from aioflow.errors import FanOutCapped
from aioflow.model.dag import Body
from aioflow.model.states import Failure, TaskState
from aioflow.protocol.commands import ItemsStored
from aioflow.protocol.effects import ConfirmCall
from aioflow.protocol.reports import ItemYielded

__all__ = ("full_window", "give", "go_on", "has_room", "take", "too_many")


def take(task: TaskInstance, report: ItemYielded, tx: Transaction) -> None:
    """Store an item that a generator yielded. Items of an earlier try are known by their index."""
    if task.state is not TaskState.RUNNING:
        return
    given = task.run.items.get(task.task_no)
    count = 0 if given is None else given.count
    if report.index > count:
        raise ValueError(f"item {report.index} of task {task.task_no} after {count}")
    if report.index == count:
        capped = give(task, [report.payload], tx)
        if capped is not None:
            too_many(task, capped, tx)
            return
        if task.interruptions:  # it made progress since it was interrupted
            task.interruptions = 0
            tx.touch(task)
    tx.memory.backpressured[task.task_no] = task


def too_many(task: TaskInstance, capped: FanOutCapped, tx: Transaction) -> None:
    """Fail a task that yielded more items than allowed. Children that have started continue."""
    if task.is_hosted or task.worker >= 0:
        tx.effects.append(stop_of(task, task.start_no, "failed"))
    tx.slots.release(task)
    failure = Failure(type="FanOutCapped", message=str(capped), reason="fanout_cap")
    fail(task, failure, tx)


def give(task: TaskInstance, payloads: Sequence[bytes], tx: Transaction) -> FanOutCapped | None:
    """Add items to the output of a task, and children for them.

    Returns:
        Why not all of them were added, if there are more than may be expanded over.
    """
    run, spec = task.run, task.spec
    if not payloads:
        return None
    given = run.items.get(task.task_no)
    if given is None:
        given = run.items[task.task_no] = StreamOutput()
    capped = None
    for payload in payloads:
        if spec.feeds_limit is not None:
            capped = check_cap(given.count + 1, spec.feeds_limit, is_whole=False)
        if capped is not None:
            break
        tx.new_item(task, given.count, payload)
        given.add(payload)
    if spec.streams:
        _feed(task, tx)
    return capped


def _feed(task: TaskInstance, tx: Transaction) -> None:
    run = task.run
    takers = stream_expand.takers(run, task.position)
    for taker in takers:
        group = run.groups.get(taker)
        if group is not None and group.is_open:
            stream_expand.grow(run, taker, tx)
    step(run, [taker for taker in takers if taker not in run.groups], tx)


def has_room(task: TaskInstance, slots: Slots) -> bool:
    """Return whether the windows of its consumers allow a task to yield more."""
    return full_window(task, slots) is None


def full_window(task: TaskInstance, slots: Slots) -> MappedTask | None:
    """Return the mapped task whose window is full, or ``None``.

    A window does not count if none of its children can run because all slots are in use. The slots
    may be held by the very tasks that wait for these children, which would be a deadlock.
    """
    for taker in stream_expand.takers(task.run, task.position):
        group = task.run.groups.get(taker)
        window = task.run.spec.tasks[taker].window
        if group is None or window is None or group.width - group.ended < window:
            continue
        if not _are_kept_out(task, taker, slots) or _has_one_at_work(group):
            return group
    return None


def _are_kept_out(task: TaskInstance, taker: int, slots: Slots) -> bool:
    """Return whether no further child can get a slot."""
    run, child = task.run, task.run.spec.tasks[taker]
    pool = slots.pools.get(child.pool)
    at_once = run.spec.max_active_tasks
    return (
        (child.body is Body.COROUTINE and slots.running_coroutines >= slots.coroutines)
        or (at_once is not None and run.running >= at_once)
        or (pool is not None and slots.used(child.pool) + child.slots > pool.slots)
    )


def _has_one_at_work(group: MappedTask) -> bool:
    """Return whether a child has a slot, or is waiting for something other than a slot."""
    return any(
        task.position == group.position
        and (task.state is not TaskState.QUEUED or task.worker >= 0 or task.is_hosted)
        for task in group.run.active_tasks.values()
    )


def go_on(tx: Transaction) -> list[TaskInstance]:
    """Confirm the stored items to backpressured tasks whose consumers have capacity now.

    Returns:
        Those of them that hold no slot: operators that may handle further events.
    """
    held = tx.memory.backpressured
    waiting = []
    for task_no, task in list(held.items()):
        if tx.memory.active_tasks.get(task_no) is not task:
            del held[task_no]
        elif task.state is TaskState.RUNNING:
            if not has_room(task, tx.slots):
                continue
            del held[task_no]
            if not task.is_hosted:
                continue
            given = task.run.items.get(task_no)
            upto = 0 if given is None else given.count
            taken = ItemsStored(task_no, task.start_no, upto)
            tx.effects.append(ConfirmCall(taken, task.run.async_role))
        elif task.state is TaskState.DEFERRED and has_room(task, tx.slots):
            del held[task_no]
            waiting.append(task)
        elif task.state is not TaskState.DEFERRED:
            del held[task_no]
    return waiting
