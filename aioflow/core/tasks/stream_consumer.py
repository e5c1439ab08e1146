"""Operators that handle the events of a trigger in batches, one start per batch.

A report that events were handled consumes them in one commit with the move of the task. So a
start that is interrupted gets the same events again. The trigger and its events survive a failed
try: the next one continues with the first unconsumed event. Between two starts, while there is
no event, the task is ``deferred`` and holds no slot.
"""

from __future__ import annotations

from aioflow.core.state.task_instance import TaskInstance, TriggerInstance
from aioflow.core.tasks import stream_producer
from aioflow.core.tasks.durable_calls import deadline
from aioflow.core.tasks.tries import begin_try, fail_or_retry, forget_calls, requeue, succeed
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import event_stream
from aioflow.core.triggers.assignment import host, let_go
from aioflow.model.dag import EventsSpec
from aioflow.model.states import Failure, TaskState, TriggerState
from aioflow.protocol.reports import EventsHandled, Succeeded, TriggerFired

__all__ = (
    "begin_to_wait",
    "cancel",
    "ended",
    "go_on",
    "handled",
    "has_batch",
    "take",
    "timeout_of",
    "wait_again",
)


def begin_to_wait(task: TaskInstance, wait: TriggerInstance, tx: Transaction) -> None:
    """Defer the task until there are events. Its timeout starts now."""
    task.waits, task.resumed = (wait,), None
    task.deadline_at = deadline(task, timeout_of(wait), tx.steady)
    tx.wake_task(task, task.deadline_at)


def has_batch(wait: TriggerInstance) -> bool:
    """Return whether a trigger has events for a task that waits for them."""
    return wait.stream is not None and wait.is_handled and bool(wait.stream.pending)


def timeout_of(wait: TriggerInstance) -> int | None:
    """Return the timeout of a wait for the next event, in microseconds; ``None`` without one."""
    row = wait.row
    return None if row.deadline_at is None else row.deadline_at - row.since


def take(
    wait: TriggerInstance,
    task: TaskInstance,
    report: TriggerFired,
    tx: Transaction,
) -> None:
    """Store an event. The first of a batch waits for others, up to the delay of its operator."""
    stream = wait.stream
    assert stream is not None  # noqa: S101 - checked by the caller
    before = len(stream.pending)
    event_stream.take(wait, report, tx)
    if len(stream.pending) == before or not _waits_for(task, wait):
        return
    spec = _spec(task)
    if len(stream.pending) >= spec.batch or not spec.delay_us:
        go_on(task, tx)
    elif before == 0:
        tx.wake_task(task, tx.steady + spec.delay_us)


def ended(wait: TriggerInstance, failure: Failure | None, tx: Transaction) -> None:
    """Record the end of the trigger. The task is resumed when it has consumed all events."""
    event_stream.close(wait, failure, tx)
    task = wait.task
    if task is not None and _waits_for(task, wait):
        go_on(task, tx)


def handled(task: TaskInstance, report: EventsHandled, tx: Transaction) -> None:
    """Consume the events that an operator handled, store its items, and continue or succeed."""
    wait = task.resumed
    assert wait is not None  # noqa: S101 - a start that handles events has their stream
    assert wait.stream is not None  # noqa: S101 - as above
    while wait.stream.pending and wait.stream.pending[0][0] < report.upto:
        event_stream.consume(wait, tx)
    capped = stream_producer.give(task, report.items, tx)
    if capped is not None:
        stream_producer.too_many(task, capped, tx)
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
    begin_to_wait(task, wait, tx)
    go_on(task, tx)


def go_on(task: TaskInstance, tx: Transaction) -> None:
    """Resume a waiting task if there are events, or end it if its stream has ended."""
    wait = task.wait
    if wait is None or wait.stream is None or not _waits_for(task, wait):
        return
    if wait.stream.pending and stream_producer.has_room(task, tx.slots):
        _resume(task, wait, tx)
    elif wait.stream.pending:
        tx.memory.backpressured[task.task_no] = task
    elif event_stream.is_over(wait):
        _close(task, wait, tx)


def cancel(task: TaskInstance, tx: Transaction) -> None:
    """Release the streams of a task with the reason ``cancelled``: a person ended it."""
    known = {wait.row.trigger_no: wait for wait in (*task.waits, *task.streams.values())}
    if task.resumed is not None:
        known[task.resumed.row.trigger_no] = task.resumed
    for wait in known.values():
        if wait.stream is not None:
            let_go(wait, "cancelled", tx)
    task.waits = tuple(wait for wait in task.waits if wait.stream is None)
    task.streams = {}
    if task.resumed is not None and task.resumed.is_handled:
        task.resumed = None


def wait_again(task: TaskInstance, tx: Transaction) -> None:
    """Start the next try with a wait for its stream, whose trigger is assigned again.

    Events with known keys are dropped.
    """
    wait = task.resumed
    assert wait is not None  # noqa: S101 - checked by the caller
    task.start_no += 1
    begin_try(task, tx)
    tx.move(task, TaskState.DEFERRED)
    row = wait.row
    tx.move_wait(wait, TriggerState.WAITING, event=row.event, key=row.event_key)
    begin_to_wait(task, wait, tx)
    host(wait, tx)


def _resume(task: TaskInstance, wait: TriggerInstance, tx: Transaction) -> None:
    task.waits, task.resumed, task.deadline_at = (), wait, None
    requeue(task, tx)


def _close(task: TaskInstance, wait: TriggerInstance, tx: Transaction) -> None:
    if wait.row.failure is not None:
        fail_or_retry(task, wait.row.failure, tx)
        return
    spec = _spec(task)
    if task.spec.streams and not (spec.method and wait.row.next_method):
        now = tx.now  # nothing is left to call and its items are stored: no slot needed
        succeed(task, Succeeded(task.task_no, task.start_no, now, now), tx)
        return
    _resume(task, wait, tx)


def _waits_for(task: TaskInstance, wait: TriggerInstance) -> bool:
    return task.state is TaskState.DEFERRED and task.wait is wait and wait.is_handled


def _spec(task: TaskInstance) -> EventsSpec:
    spec = task.spec.events
    assert spec is not None  # noqa: S101 - only such tasks have such streams
    return spec
