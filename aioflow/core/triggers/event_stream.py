"""Streams of events: a trigger that fires repeatedly, and a task that consumes its events in order.

Events are stored as they arrive, in one numbered series per trigger, and consumed in this order.
The commit that consumes an event also advances the consumer. A host may report an event again,
because a reply was lost or because another host started the trigger again. Within one assignment, a
repeated event is detected by its index; across assignments, by its key.
"""

from __future__ import annotations

from hashlib import blake2b

from aioflow.core.state.task_instance import EventStream, TriggerInstance
from aioflow.core.transaction import Transaction
from aioflow.model.rows import EventRow, TriggerRow
from aioflow.model.states import Failure, TriggerState
from aioflow.protocol.commands import EventsStored
from aioflow.protocol.reports import TriggerFired

__all__ = (
    "BYTES_AHEAD",
    "EVENTS_AHEAD",
    "MANUAL_INDEX",
    "close",
    "consume",
    "is_over",
    "restore",
    "take",
)

MANUAL_INDEX = -1
"""The index of an event that was not reported by a host. It counts in no assignment."""

EVENTS_AHEAD = 1_000
"""Number of unconsumed events at which a trigger must pause."""

BYTES_AHEAD = 16 * 1024 * 1024
"""Total payload of unconsumed events, in bytes, at which a trigger must pause."""


def take(wait: TriggerInstance, report: TriggerFired, tx: Transaction) -> None:
    """Store one event of a stream, unless it is already known."""
    stream = wait.stream
    assert stream is not None  # noqa: S101 - checked by the caller
    if report.index < stream.index and report.index != MANUAL_INDEX:
        return  # repeated
    tx.change_stream(wait)
    stream.index = max(stream.index, report.index + 1)
    if report.key is None or not _is_known(stream, report.key):
        row = EventRow(
            trigger_no=wait.row.trigger_no,
            sequence=stream.next_sequence,
            run_no=wait.run.run_no,
            key=report.key,
            payload=report.payload,
        )
        tx.batch.new_events.append(row)
        tx.fires.append(wait.fire(report.key))
        stream.store(row.sequence, report.payload, report.key)
        stream.last = (report.payload, report.key)
        tx.memory.crash_suspects.clear(wait.row.trigger_no)
    confirm_events(wait, tx)


def consume(wait: TriggerInstance, tx: Transaction) -> bytes | None:
    """Consume the first pending event and return its payload; ``None`` if none is pending."""
    stream = wait.stream
    if stream is None or not stream.pending:
        return None
    tx.change_stream(wait)
    sequence, payload, _ = stream.pending.popleft()
    stream.pending_bytes -= len(payload)
    tx.batch.consumed_events.append((wait.row.trigger_no, sequence))
    if sequence + 1 == stream.next_sequence and stream.last is not None:
        # The trigger row receives the payload of the event row, because a later assignment needs
        # it.
        tx.move_wait(wait, wait.state, event=payload, key=stream.last[1], failure=wait.row.failure)
    confirm_events(wait, tx)
    return payload


def confirm_events(wait: TriggerInstance, tx: Transaction) -> None:
    """Confirm the stored events to the host, so that the trigger may continue.

    Do nothing while too many events are pending. The trigger then stops at the end of its window,
    until the task has consumed some of them.
    """
    stream = wait.stream
    assert stream is not None  # noqa: S101 - checked by the callers
    has_capacity = len(stream.pending) < EVENTS_AHEAD and stream.pending_bytes < BYTES_AHEAD
    if has_capacity and stream.confirmed < stream.index and wait.state is TriggerState.WAITING:
        stream.confirmed = stream.index
        tx.confirm_events(EventsStored(wait.row.trigger_no, wait.assignment_id, stream.confirmed))


def close(wait: TriggerInstance, failure: Failure | None, tx: Transaction) -> None:
    """Record that the trigger has ended. Its pending events will still be consumed."""
    tx.move_wait(wait, TriggerState.FIRED, failure=failure)


def is_over(wait: TriggerInstance) -> bool:
    """Return whether no event is pending and no more events can arrive."""
    stream = wait.stream
    return wait.state is TriggerState.FIRED and stream is not None and not stream.pending


def restore(
    trigger: TriggerRow, events: list[EventRow], known: TriggerInstance | None
) -> EventStream:
    """Build a stream from its rows. The counters of the current assignment come from memory."""
    stream = EventStream()
    if trigger.event is not None:
        stream.last = (trigger.event, trigger.event_key)
    if known is not None and known.stream is not None:
        stream.index, stream.confirmed = known.stream.index, known.stream.confirmed
    for row in events:
        if row.key is not None:
            stream.keys.add(_digest(row.key))
        if row.payload is not None:
            stream.store(row.sequence, row.payload, row.key)
            stream.last = (row.payload, row.key)
        stream.next_sequence = row.sequence + 1
    return stream


def _is_known(stream: EventStream, key: str) -> bool:
    """Return whether an event with this key is already stored, and remember the key."""
    digest = _digest(key)
    if digest in stream.keys:
        return True
    stream.keys.add(digest)
    return False


def _digest(key: str) -> int:
    """Return an 8-byte digest of a key. A stream may have a million keys."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
