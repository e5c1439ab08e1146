"""Tasks that produce or consume streams: generators, and operators that handle events in batches.

A generator yields items before it ends. Each item is first stored, then handled by a child of each
consumer. While the window of a consumer is full, the engine does not confirm the last items to the
generator, so the generator does not continue (backpressure). The generator keeps its slot
meanwhile.

An operator is started once per batch of events. When it reports that the events were handled, one
commit consumes them and changes the state of the task. So a start after an interruption gets the
same events again. The trigger and its events survive a failed try: the next try continues with the
first unconsumed event. Between two starts, while there is no event, the task is ``deferred`` and
holds no slot.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.core.runs.progress import step
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.task_instance import MappedTask, StreamOutput, TaskInstance, TriggerInstance
from aioflow.core.tasks import stream_expand
from aioflow.core.tasks.durable_calls import deadline
from aioflow.core.tasks.expand import check_cap
from aioflow.core.tasks.tries import (
    begin_try,
    fail,
    fail_or_retry,
    forget_calls,
    requeue,
    stop_of,
    succeed,
)
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import event_stream
from aioflow.core.triggers.assignment import host, release_trigger
from aioflow.errors import FanOutCapped
from aioflow.model.dag import Body, EventsSpec
from aioflow.model.states import Failure, TaskState, TriggerState
from aioflow.protocol.commands import ItemsStored
from aioflow.protocol.effects import ConfirmCall
from aioflow.protocol.reports import EventsHandled, ItemYielded, Succeeded, TriggerFired

__all__ = (
    "cancel_streams",
    "defer_until_events",
    "emit_items",
    "event_timeout",
    "events_handled",
    "fail_beyond_limit",
    "full_window",
    "has_batch",
    "has_capacity",
    "release_backpressure",
    "resume_with_events",
    "store_event",
    "store_item",
    "stream_ended",
    "wait_for_stream",
)


def store_item(task: TaskInstance, report: ItemYielded, tx: Transaction) -> None:
    """Store an item that a generator yielded, unless an earlier try has stored the same index."""
    if task.state is not TaskState.RUNNING:
        return
    stream_output = task.run.items.get(task.task_no)
    count = 0 if stream_output is None else stream_output.count
    if report.index > count:
        raise ValueError(f"item {report.index} of task {task.task_no} after {count}")
    if report.index == count:
        capped = emit_items(task, [report.payload], tx)
        if capped is not None:
            fail_beyond_limit(task, capped, tx)
            return
        if task.interruptions:  # the task made progress since it was interrupted
            task.interruptions = 0
            tx.touch(task)
    tx.memory.backpressured[task.task_no] = task


def fail_beyond_limit(task: TaskInstance, capped: FanOutCapped, tx: Transaction) -> None:
    """Fail a task that yielded more items than allowed. Children that have started continue."""
    if task.is_hosted or task.worker >= 0:
        tx.effects.append(stop_of(task, task.start_no, "failed"))
    tx.slots.release(task)
    failure = Failure(type="FanOutCapped", message=str(capped), reason="fanout_cap")
    fail(task, failure, tx)


def emit_items(
    task: TaskInstance, payloads: Sequence[bytes], tx: Transaction
) -> FanOutCapped | None:
    """Add items to the output of a task, and children that handle them.

    Returns:
        The error to fail with if the output exceeds the limit for expansion, else ``None``. In case
        of an error, not all items were added.
    """
    run, spec = task.run, task.spec
    if not payloads:
        return None
    stream_output = run.items.get(task.task_no)
    if stream_output is None:
        stream_output = run.items[task.task_no] = StreamOutput()
    capped = None
    for payload in payloads:
        if spec.feeds_limit is not None:
            capped = check_cap(stream_output.count + 1, spec.feeds_limit, is_whole=False)
        if capped is not None:
            break
        tx.new_item(task, stream_output.count, payload)
        stream_output.add(payload)
    if spec.streams:
        _feed(task, tx)
    return capped


def _feed(task: TaskInstance, tx: Transaction) -> None:
    run = task.run
    consumers = stream_expand.consumers(run, task.task_index)
    for taker in consumers:
        group = run.groups.get(taker)
        if group is not None and group.is_open:
            stream_expand.grow(run, taker, tx)
    step(run, [taker for taker in consumers if taker not in run.groups], tx)


def has_capacity(task: TaskInstance, slots: Slots) -> bool:
    """Return whether the windows of its consumers allow a task to yield more items."""
    return full_window(task, slots) is None


def full_window(task: TaskInstance, slots: Slots) -> MappedTask | None:
    """Return a consumer of a task whose window is full; ``None`` if there is none.

    A window does not count as full if none of its children can run because all slots are in use.
    The slots may be held by the very tasks that wait for these children, which would be a deadlock.
    """
    for taker in stream_expand.consumers(task.run, task.task_index):
        group = task.run.groups.get(taker)
        window = task.run.spec.tasks[taker].window
        if group is None or window is None or group.width - group.ended < window:
            continue
        if not _get_no_slot(task, taker, slots) or _has_active_child(group):
            return group
    return None


def _get_no_slot(task: TaskInstance, taker: int, slots: Slots) -> bool:
    """Return whether no further child of a mapped task can get a slot, because all are in use."""
    run, child = task.run, task.run.spec.tasks[taker]
    pool = slots.pools.get(child.pool)
    at_once = run.spec.max_active_tasks
    return (
        (child.body is Body.COROUTINE and slots.running_coroutines >= slots.coroutines)
        or (at_once is not None and run.running >= at_once)
        or (pool is not None and slots.used(child.pool) + child.slots > pool.slots)
    )


def _has_active_child(group: MappedTask) -> bool:
    """Return whether any child holds a slot or waits for something other than a slot."""
    return any(
        task.task_index == group.task_index
        and (task.state is not TaskState.QUEUED or task.worker >= 0 or task.is_hosted)
        for task in group.run.active_tasks.values()
    )


def release_backpressure(tx: Transaction) -> list[TaskInstance]:
    """Confirm the stored items to backpressured tasks whose consumers have capacity now.

    Returns:
        The resumed tasks that hold no slot, which are operators that may handle further events.
    """
    held = tx.memory.backpressured
    waiting = []
    for task_no, task in list(held.items()):
        if tx.memory.active_tasks.get(task_no) is not task:
            del held[task_no]
        elif task.state is TaskState.RUNNING:
            if not has_capacity(task, tx.slots):
                continue
            del held[task_no]
            if not task.is_hosted:
                continue
            stream_output = task.run.items.get(task_no)
            upto = 0 if stream_output is None else stream_output.count
            confirmation = ItemsStored(task_no, task.start_no, upto)
            tx.effects.append(ConfirmCall(confirmation, task.run.async_role))
        elif task.state is TaskState.DEFERRED and has_capacity(task, tx.slots):
            del held[task_no]
            waiting.append(task)
        elif task.state is not TaskState.DEFERRED:
            del held[task_no]
    return waiting


def defer_until_events(task: TaskInstance, wait: TriggerInstance, tx: Transaction) -> None:
    """Defer the task until there are events. Its timeout starts now."""
    task.waits, task.resumed = (wait,), None
    task.deadline_at = deadline(task, event_timeout(wait), tx.steady)
    tx.wake_task(task, task.deadline_at)


def has_batch(wait: TriggerInstance) -> bool:
    """Return whether a trigger has events for a task that waits for them."""
    return wait.stream is not None and wait.is_handled and bool(wait.stream.pending)


def event_timeout(wait: TriggerInstance) -> int | None:
    """Return the timeout of a wait for the next event, in microseconds; ``None`` without one."""
    row = wait.row
    return None if row.deadline_at is None else row.deadline_at - row.since


def store_event(
    wait: TriggerInstance,
    task: TaskInstance,
    report: TriggerFired,
    tx: Transaction,
) -> None:
    """Store an event of a stream.

    The waiting task resumes when a batch is full, or when the operator's delay has passed since the
    first event of the batch.
    """
    stream = wait.stream
    assert stream is not None  # noqa: S101 - checked by the caller
    before = len(stream.pending)
    event_stream.take(wait, report, tx)
    if len(stream.pending) == before or not _waits_for(task, wait):
        return
    spec = _operator_spec(task)
    if len(stream.pending) >= spec.batch or not spec.delay_us:
        resume_with_events(task, tx)
    elif before == 0:
        tx.wake_task(task, tx.steady + spec.delay_us)


def stream_ended(wait: TriggerInstance, failure: Failure | None, tx: Transaction) -> None:
    """Record that the trigger has ended. The task resumes once it has consumed all events."""
    event_stream.close(wait, failure, tx)
    task = wait.task
    if task is not None and _waits_for(task, wait):
        resume_with_events(task, tx)


def events_handled(task: TaskInstance, report: EventsHandled, tx: Transaction) -> None:
    """Consume the events that an operator handled and store its items. Continue or end the task."""
    wait = task.resumed
    assert wait is not None  # noqa: S101 - a start that handles events has their stream
    assert wait.stream is not None  # noqa: S101 - as above
    while wait.stream.pending and wait.stream.pending[0][0] < report.upto:
        event_stream.consume(wait, tx)
    capped = emit_items(task, report.items, tx)
    if capped is not None:
        fail_beyond_limit(task, capped, tx)
        return
    if report.is_last:
        result = Succeeded(task.task_no, task.start_no, report.began_at, report.at)
        succeed(task, result, tx)
        return
    forget_calls(task, 0, tx)
    task.interruptions = 0
    tx.move(task, TaskState.DEFERRED)
    tx.slots.release(task)
    tx.slots.unblock(task)
    defer_until_events(task, wait, tx)
    resume_with_events(task, tx)


def resume_with_events(task: TaskInstance, tx: Transaction) -> None:
    """Resume a waiting task if there are events, or end it if its stream has ended."""
    wait = task.wait
    if wait is None or wait.stream is None or not _waits_for(task, wait):
        return
    if wait.stream.pending and has_capacity(task, tx.slots):
        _resume_task(task, wait, tx)
    elif wait.stream.pending:
        tx.memory.backpressured[task.task_no] = task
    elif event_stream.is_over(wait):
        _end_task(task, wait, tx)


def cancel_streams(task: TaskInstance, tx: Transaction) -> None:
    """Release the streams of a task that a person ended. The reason is ``cancelled``."""
    known = {wait.row.trigger_no: wait for wait in (*task.waits, *task.streams.values())}
    if task.resumed is not None:
        known[task.resumed.row.trigger_no] = task.resumed
    for wait in known.values():
        if wait.stream is not None:
            release_trigger(wait, "cancelled", tx)
    task.waits = tuple(wait for wait in task.waits if wait.stream is None)
    task.streams = {}
    if task.resumed is not None and task.resumed.is_handled:
        task.resumed = None


def wait_for_stream(task: TaskInstance, tx: Transaction) -> None:
    """Let the next try begin by waiting for its stream, and assign the stream's trigger again.

    Events with known keys are dropped.
    """
    wait = task.resumed
    assert wait is not None  # noqa: S101 - checked by the caller
    task.start_no += 1
    begin_try(task, tx)
    tx.move(task, TaskState.DEFERRED)
    row = wait.row
    tx.move_wait(wait, TriggerState.WAITING, event=row.event, key=row.event_key)
    defer_until_events(task, wait, tx)
    host(wait, tx)


def _resume_task(task: TaskInstance, wait: TriggerInstance, tx: Transaction) -> None:
    task.waits, task.resumed, task.deadline_at = (), wait, None
    requeue(task, tx)


def _end_task(task: TaskInstance, wait: TriggerInstance, tx: Transaction) -> None:
    if wait.row.failure is not None:
        fail_or_retry(task, wait.row.failure, tx)
        return
    spec = _operator_spec(task)
    if task.spec.streams and not (spec.method and wait.row.next_method):
        now = tx.now  # no call is left to make and the items are stored: no slot needed
        succeed(task, Succeeded(task.task_no, task.start_no, now, now), tx)
        return
    _resume_task(task, wait, tx)


def _waits_for(task: TaskInstance, wait: TriggerInstance) -> bool:
    return task.state is TaskState.DEFERRED and task.wait is wait and wait.is_handled


def _operator_spec(task: TaskInstance) -> EventsSpec:
    spec = task.spec.events
    assert spec is not None  # noqa: S101 - only such tasks have such streams
    return spec
