"""Durable calls of a coroutine: recorded, waited for, answered; forgotten where a try failed.

A task's calls are numbered from 0. Only the last can be open; while it is, the task is
deferred and its coroutine is parked in the async host, or gone: then it runs again from the
top, and the records answer what it had called before.
"""

from __future__ import annotations

import msgspec

from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.execution_timeout import try_ends_at
from aioflow.core.state.task_instance import TaskInstance, TriggerInstance
from aioflow.core.tasks.tries import requeue, unpark
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import event_stream, named_events
from aioflow.core.triggers.assignment import SLEEP
from aioflow.model.ids import TriggerNo
from aioflow.model.rows import RecordRow, TriggerRow
from aioflow.model.states import Failure, RecordState, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import CallRecorded
from aioflow.protocol.effects import ConfirmCall
from aioflow.protocol.reports import (
    Awaiting,
    CallAnswered,
    EventEmitted,
    NextEventRequested,
    NotSuspended,
    RunCalled,
    StreamOpened,
    TriggerFired,
)

__all__ = (
    "NEXT",
    "answer_next",
    "answered",
    "await_triggers",
    "confirm",
    "deadline",
    "emit",
    "fire",
    "give_answer",
    "is_after",
    "next_event",
    "not_parked",
    "open_stream",
    "park",
    "record",
    "time_out",
    "wait_for",
)

NEXT = "next"
"""The kind of a call that takes an event of a stream."""

_encode = msgspec.msgpack.Encoder().encode


def answered(live: TaskInstance, report: CallAnswered, draft: Transaction) -> None:
    """A call that waits for nothing has its answer: keep it, then let the coroutine go on."""
    if report.ordinal == live.recorded and live.state is TaskState.RUNNING:
        state = RecordState.ANSWERED if report.failure is None else RecordState.FAILED
        record(live, report, state, draft, answer=report.answer, failure=report.failure)
    if report.ordinal < live.recorded:  # also one that is reported twice
        confirm(live, report.ordinal, draft)


def emit(live: TaskInstance, report: EventEmitted, draft: Transaction) -> None:
    """A named event, stored with the record that says so: once, whatever is lost or repeated."""
    if report.ordinal == live.recorded and live.state is TaskState.RUNNING:
        record(live, report, RecordState.ANSWERED, draft)
        event = (report.event, report.key, report.data)
        named_events.store(*event, draft, run_no=live.run.run_no)
    if report.ordinal < live.recorded:
        confirm(live, report.ordinal, draft)


def await_triggers(
    live: TaskInstance, report: Awaiting, draft: Transaction, slots: Slots
) -> list[TriggerInstance]:
    """A coroutine waits: it gives its place back, and is parked. Returns what is to be hosted."""
    if report.ordinal != live.recorded:
        raise ValueError(f"call {report.ordinal} of task {live.task_no} after {live.recorded}")
    park(live, report, draft, slots)
    until = deadline(live, report.timeout_us, draft.steady)
    triggers = report.triggers or ((SLEEP, b"\x80"),)
    live.waits = tuple(
        wait_for(live, branch, trigger, until, draft) for branch, trigger in enumerate(triggers)
    )
    draft.wake_task(live, until)
    return list(live.waits)


def open_stream(
    live: TaskInstance, report: StreamOpened, draft: Transaction
) -> TriggerInstance | None:
    """Make the trigger of a stream; it is recorded at once, and to be hosted."""
    wait = None
    if report.ordinal == live.recorded and live.state is TaskState.RUNNING:
        record(live, report, RecordState.ANSWERED, draft)
        trigger = (report.class_path, report.kwargs)
        wait = wait_for(live, 0, trigger, None, draft, window=report.window)
        live.streams = {**live.streams, report.ordinal: wait}
    if report.ordinal < live.recorded:
        confirm(live, report.ordinal, draft)
    return wait


def next_event(
    live: TaskInstance, report: NextEventRequested, draft: Transaction, slots: Slots
) -> Failure | None:
    """Answer with the next event, or park. Returns why the stream ended, if badly."""
    if report.ordinal != live.recorded or live.state is not TaskState.RUNNING:
        return None  # repeated
    wait = live.streams.get(report.stream)
    payload = None if wait is None else event_stream.consume(wait, draft)
    if payload is None and wait is not None and not event_stream.is_over(wait):
        park(live, report, draft, slots)
        live.waits = (wait,)
        live.deadline_at = deadline(live, report.timeout_us, draft.steady)
        draft.wake_task(live, live.deadline_at)
        return None
    if payload is None and wait is not None and wait.row.failure is not None:
        return wait.row.failure
    record(live, report, RecordState.ANSWERED, draft, answer=payload)
    confirm(live, report.ordinal, draft, payload)
    return None


def is_after(live: TaskInstance, wait: TriggerInstance) -> bool:
    """Whether the coroutine is parked until this stream has an event."""
    return live.open_kind == NEXT and live.wait is wait


def answer_next(live: TaskInstance, wait: TriggerInstance, draft: Transaction) -> bool:
    """Give a parked coroutine the next event, or word that the stream is over."""
    payload = event_stream.consume(wait, draft)
    if payload is None and not event_stream.is_over(wait):
        return False  # what came was known already
    give_answer(live, payload, None, draft)
    live.waits, live.deadline_at = (), None
    return True


def fire(wait: TriggerInstance, report: TriggerFired, draft: Transaction) -> bool:
    """A trigger of a call fired; whether that answers the call, so that its task goes on."""
    live = wait.live
    assert live is not None  # noqa: S101 - the caller looked
    if live.open_kind == "all_of":
        draft.move_wait(wait, TriggerState.FIRED, event=report.payload, key=report.key)
        if any(other.state is TriggerState.WAITING for other in live.waits):
            return False
        events = [_raw(other.row.event) for other in live.waits]
        give_answer(live, _encode(events), None, draft)
    elif live.open_kind == "any_of":
        give_answer(live, _encode([wait.row.branch, _raw(report.payload)]), None, draft)
    else:
        give_answer(live, report.payload, None, draft)
    return True


def time_out(live: TaskInstance, draft: Transaction, slots: Slots) -> None:
    """The deadline of a call has come: a sleep is over, anything else raises."""
    failure = None
    if live.open_kind != SLEEP:
        assert live.wait is not None  # noqa: S101 - the caller looked
        message = f"{live.wait.row.class_path} gave no event in time"
        failure = Failure(type="TimeoutError", message=message, reason="timeout")
    give_answer(live, None, failure, draft)
    live.deadline_at = None
    requeue(live, draft, slots)


def not_parked(live: TaskInstance, report: NotSuspended, draft: Transaction, slots: Slots) -> None:
    """The host no longer had the coroutine: run it again from the top, uncharged."""
    if live.start_no == report.start_no and live.state is TaskState.RUNNING:
        unpark(live)
        slots.release(live)
        slots.unblock(live)
        requeue(live, draft, slots)


def park(
    live: TaskInstance,
    report: Awaiting | NextEventRequested | RunCalled,
    draft: Transaction,
    slots: Slots,
) -> None:
    """A call is open: its coroutine is parked, and gives its place back."""
    record(live, report, RecordState.OPEN, draft)
    live.open_kind = report.kind
    live.parked_start = live.start_no
    draft.move(live, TaskState.DEFERRED)
    slots.release(live)
    slots.unblock(live)


def confirm(
    live: TaskInstance,
    ordinal: int,
    draft: Transaction,
    answer: bytes | None = None,
    failure: Failure | None = None,
) -> None:
    """Let the coroutine go on: its call is recorded."""
    recorded = CallRecorded(live.task_no, live.start_no, ordinal, answer, failure)
    draft.effects.append(ConfirmCall(recorded, live.run.async_role))


def record(
    live: TaskInstance,
    report: Awaiting | CallAnswered | EventEmitted | NextEventRequested | RunCalled | StreamOpened,
    state: RecordState,
    draft: Transaction,
    *,
    answer: bytes | None = None,
    failure: Failure | None = None,
) -> None:
    """Write a call down; it is the task's next one."""
    row = RecordRow(
        task_no=live.task_no,
        ordinal=report.ordinal,
        run_no=live.run.run_no,
        state=state,
        kind=report.kind,
        name=report.name,
        place=report.place,
        answer=answer,
        failure=failure,
    )
    draft.new_record(live, row)
    _note_failure(live, failure)
    if live.interruptions:  # it came further than where it had been cut short
        live.interruptions = 0
        draft.memory.suspects.clear(live.task_no)
        draft.touch(live)


def give_answer(
    live: TaskInstance, answer: bytes | None, failure: Failure | None, draft: Transaction
) -> None:
    """The open call has its answer, stored with the move of the task that follows."""
    draft.answer_record(live, answer, failure)
    _note_failure(live, failure)
    live.answer = (answer, failure)
    live.open_kind = ""


def _note_failure(live: TaskInstance, failure: Failure | None) -> None:
    if failure is not None and live.first_failed < 0:
        live.first_failed = live.recorded - 1


def deadline(live: TaskInstance, timeout_us: int | None, steady: Timestamp) -> Timestamp | None:
    """Return when a wait that begins now ends: at its own limit, or with the try."""
    own = None if timeout_us is None else steady + timeout_us
    ends = try_ends_at(live, steady)
    if own is None or ends is None:
        return ends if own is None else own
    return min(own, ends)


def wait_for(
    live: TaskInstance,
    branch: int,
    trigger: tuple[str, bytes],
    deadline_at: Timestamp | None,
    draft: Transaction,
    *,
    window: int = 0,
    number: TriggerNo | None = None,
) -> TriggerInstance:
    """Make a trigger that the last recorded call waits for; ``number`` if it has one already."""
    class_path, kwargs = trigger
    row = TriggerRow(
        trigger_no=draft.numbers.take() if number is None else number,
        task_no=live.task_no,
        run_no=live.run.run_no,
        state=TriggerState.WAITING,
        class_path=class_path,
        kwargs=kwargs,
        since=draft.steady,
        deadline_at=deadline_at,
        ordinal=live.recorded - 1,
        branch=branch,
        window=window,
    )
    wait = TriggerInstance(row, live.run, live)
    draft.new_wait(wait)
    return wait


def _raw(event: bytes | None) -> msgspec.Raw:
    return msgspec.Raw(b"\xc0" if event is None else event)
