"""Operators over streams: start by start they take the events of a trigger that goes on.

Events are consumed with the report that they were handled, in one commit with the task's move,
so whatever cuts a start short gives it the same events again. The trigger and its events
outlive a failed try: the next one goes on at the first event nobody has consumed. Between
two starts the task is ``deferred`` and holds no place, as long as no event has come.
"""

from __future__ import annotations

from aioflow.core.scheduling.slots import Slots
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


def begin_to_wait(live: TaskInstance, wait: TriggerInstance, draft: Transaction) -> None:
    """The task is deferred until events have come; its limit counts from now."""
    live.waits, live.resumed = (wait,), None
    live.deadline_at = deadline(live, timeout_of(wait), draft.steady)
    draft.wake_task(live, live.deadline_at)


def has_batch(wait: TriggerInstance) -> bool:
    """Whether events have come for a task that waits for them."""
    return wait.stream is not None and wait.is_handled and bool(wait.stream.pending)


def timeout_of(wait: TriggerInstance) -> int | None:
    """Return for how long the task waits for the next event, in microseconds."""
    row = wait.row
    return None if row.deadline_at is None else row.deadline_at - row.since


def take(
    wait: TriggerInstance,
    live: TaskInstance,
    report: TriggerFired,
    draft: Transaction,
    slots: Slots,
) -> None:
    """Store an event. The first of a batch waits for others, as long as its operator says."""
    stream = wait.stream
    assert stream is not None  # noqa: S101 - the caller looked
    before = len(stream.pending)
    event_stream.take(wait, report, draft)
    if len(stream.pending) == before or not _waits_for(live, wait):
        return
    spec = _spec(live)
    if len(stream.pending) >= spec.batch or not spec.delay_us:
        go_on(live, draft, slots)
    elif before == 0:
        draft.wake_task(live, draft.steady + spec.delay_us)


def ended(wait: TriggerInstance, failure: Failure | None, draft: Transaction, slots: Slots) -> None:
    """The trigger has ended; its task learns of it when it has consumed what is left."""
    event_stream.close(wait, failure, draft)
    live = wait.live
    if live is not None and _waits_for(live, wait):
        go_on(live, draft, slots)


def handled(live: TaskInstance, report: EventsHandled, draft: Transaction, slots: Slots) -> None:
    """An operator has taken the events it was given: they are consumed, and its items stored."""
    wait = live.resumed
    assert wait is not None  # noqa: S101 - such a start has them of a stream
    assert wait.stream is not None  # noqa: S101 - see there
    while wait.stream.pending and wait.stream.pending[0][0] < report.upto:
        event_stream.consume(wait, draft)
    capped = stream_producer.give(live, report.items, draft, slots)
    if capped is not None:
        stream_producer.too_many(live, capped, draft, slots)
        return
    if report.is_last:
        result = Succeeded(live.task_no, live.start_no, report.began_at, report.at)
        succeed(live, result, draft, slots)
        return
    forget_calls(live, 0, draft)
    live.interruptions = 0
    draft.move(live, TaskState.DEFERRED)
    slots.release(live)
    slots.unblock(live)
    begin_to_wait(live, wait, draft)
    go_on(live, draft, slots)


def go_on(live: TaskInstance, draft: Transaction, slots: Slots) -> None:
    """Have a waiting task take the events that have come, or end it with its stream."""
    wait = live.wait
    if wait is None or wait.stream is None or not _waits_for(live, wait):
        return
    if wait.stream.pending and stream_producer.has_room(live, slots):
        _resume(live, wait, draft, slots)
    elif wait.stream.pending:
        draft.memory.held[live.task_no] = live
    elif event_stream.is_over(wait):
        _close(live, wait, draft, slots)


def cancel(live: TaskInstance, draft: Transaction) -> None:
    """A person ended the task: its streams are told so."""
    known = {wait.row.trigger_no: wait for wait in (*live.waits, *live.streams.values())}
    if live.resumed is not None:
        known[live.resumed.row.trigger_no] = live.resumed
    for wait in known.values():
        if wait.stream is not None:
            let_go(wait, "cancelled", draft)
    live.waits = tuple(wait for wait in live.waits if wait.stream is None)
    live.streams = {}
    if live.resumed is not None and live.resumed.is_handled:
        live.resumed = None


def wait_again(live: TaskInstance, draft: Transaction) -> None:
    """The next try begins with a wait: the trigger is hosted anew, and known keys are dropped."""
    wait = live.resumed
    assert wait is not None  # noqa: S101 - the caller looked
    live.start_no += 1
    begin_try(live, draft)
    draft.move(live, TaskState.DEFERRED)
    row = wait.row
    draft.move_wait(wait, TriggerState.WAITING, event=row.event, key=row.event_key)
    begin_to_wait(live, wait, draft)
    host(wait, draft)


def _resume(live: TaskInstance, wait: TriggerInstance, draft: Transaction, slots: Slots) -> None:
    live.waits, live.resumed, live.deadline_at = (), wait, None
    requeue(live, draft, slots)


def _close(live: TaskInstance, wait: TriggerInstance, draft: Transaction, slots: Slots) -> None:
    if wait.row.failure is not None:
        fail_or_retry(live, wait.row.failure, draft, slots)
        return
    spec = _spec(live)
    if live.spec.streams and not (spec.method and wait.row.next_method):
        now = draft.now  # nothing is left to call, and its items are given on: no place for that
        succeed(live, Succeeded(live.task_no, live.start_no, now, now), draft, slots)
        return
    _resume(live, wait, draft, slots)


def _waits_for(live: TaskInstance, wait: TriggerInstance) -> bool:
    return live.state is TaskState.DEFERRED and live.wait is wait and wait.is_handled


def _spec(live: TaskInstance) -> EventsSpec:
    spec = live.spec.events
    assert spec is not None  # noqa: S101 - only such tasks have streams that are handled
    return spec
