"""Asset events that a task's success emits, and the runs that they start.

An asset event is a named event whose name begins with ``asset:``. The commit in which the task
succeeds emits it, and each DAG that depends on the asset records it in the same commit. Events stay
pending until they meet the condition of the DAG. Then all of them start one run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from aioflow.core.state.dag_triggers import DagTrigger, PendingAssetEvent
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import event_runs
from aioflow.core.triggers.assignment import is_stopped
from aioflow.core.triggers.dag_triggers import spec_of
from aioflow.core.triggers.named_events import MadeAnew
from aioflow.model.dag_triggers import (
    ASSET,
    AssetCondition,
    DagEventRow,
    EventOutcome,
    OutcomeChange,
)
from aioflow.model.ids import TriggerNo
from aioflow.model.rows import NamedEventRow

__all__ = ("TRIGGERING_EVENTS", "is_met", "settle", "waits_for")

PENDING_LIMIT = 1_000
"""Maximum number of pending events of one asset per DAG. The oldest are dropped."""

TOLD_LIMIT = 100
"""Maximum number of events of each asset that are passed to a run: the latest."""

EXTRA_LIMIT = 4_096
"""Maximum size in bytes of the extra data of an external event. Of more only the size is passed."""

TRIGGERING_EVENTS = "triggering_events"
"""The parameter of a DAG that receives the events that started a run."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(MadeAnew)


def settle(tx: Transaction) -> None:
    """Record the asset events of this turn for their DAGs. Each DAG starts one run at most."""
    standing = tx.memory.dag_triggers
    taken: dict[TriggerNo, DagTrigger] = {}
    for event in tx.asset_events:
        for taker in standing.takers(event.name.removeprefix(ASSET)):
            if spec_of(taker, tx.memory) is not None:
                _take(taker, event, tx)
                taken[taker.row.trigger_no] = taker
    tx.asset_events.clear()
    for taker in taken.values():
        _go_on(taker, tx)
    tx.placed_dags += sorted(tx.eased_dags)  # fewer runs wait: pending events may start one
    while tx.placed_dags:  # pending events may meet another condition, or start a run again
        one = standing.of(tx.placed_dags.pop())
        if one is not None:
            _go_on(one, tx)


def is_met(condition: AssetCondition, there: set[str]) -> bool:
    """Return whether these assets meet a condition."""
    found = (
        part in there if isinstance(part, str) else is_met(part, there) for part in condition.parts
    )
    return all(found) if condition.is_all else any(found)


def waits_for(one: DagTrigger) -> str:
    """Describe which assets a DAG waits for, and how many events of each are pending."""
    condition = one.condition
    if condition is None:
        return ""
    counts = (f"{name} ({len(one.pending.get(name, ()))})" for name in condition.names())
    return ("all of " if condition.is_all else "any of ") + ", ".join(counts)


def _take(one: DagTrigger, event: NamedEventRow, tx: Transaction) -> None:
    name = event.name.removeprefix(ASSET)
    tx.dag_triggers.note(one)
    sequence = one.row.sequence
    one.row = msgspec.structs.replace(one.row, sequence=sequence + 1)
    row = DagEventRow(
        event_no=tx.numbers.take(),
        trigger_no=one.row.trigger_no,
        sequence=sequence,
        key=str(event.event_no),
        at=tx.now,
        outcome=EventOutcome.HELD,
        asset=name,
        data=_told(event),
    )
    tx.batch.of_dags.events.append(row)
    before = one.pending.get(name, ())
    for old in before[: max(0, len(before) - PENDING_LIMIT + 1)]:
        tx.batch.of_dags.outcomes.append(OutcomeChange(old.event_no, EventOutcome.REPLACED))
    kept = before[-(PENDING_LIMIT - 1) :]
    one.pending = {
        **one.pending,
        name: (*kept, PendingAssetEvent(row.event_no, sequence, row.data or b"")),
    }


def _told(event: NamedEventRow) -> bytes:
    """Return the event as a run receives it. The data of an external event is the extra."""
    of: dict[str, Any] = {"id": event.event_no, "run_id": None, "task_id": None, "map_index": -1}
    try:
        told = _decode.decode(event.data)
    except msgspec.DecodeError:
        size = len(event.data)
        extra = msgspec.Raw(event.data) if size <= EXTRA_LIMIT else {"size_bytes": size}
        return _encode({**of, "extra": extra})
    more = {"run_id": told.run_id, "task_id": told.task_id, "map_index": told.map_index}
    return _encode({**of, **more, "extra": told.extra})


def _go_on(one: DagTrigger, tx: Transaction) -> None:
    """Start a run with all pending events, if they meet the condition."""
    memory, dag_id = tx.memory, one.row.dag_id
    spec = spec_of(one, memory)
    condition = one.condition
    if condition is None or spec is None or is_stopped(dag_id, memory):
        return
    if event_runs.is_full(dag_id, memory):
        return
    there = {name for name in condition.names() if one.pending.get(name)}
    if not is_met(condition, there):
        return
    tx.dag_triggers.note(one)
    pending, one.pending = one.pending, {}
    told = {
        name: [msgspec.Raw(event.data) for event in events[-TOLD_LIMIT:]]
        for name, events in pending.items()
        if name in there
    }
    last = max(event.sequence for events in pending.values() for event in events)
    payload = _encode({TRIGGERING_EVENTS: told})
    outcome = event_runs.start(one, spec, last, None, payload, tx)
    for events in pending.values():
        tx.batch.of_dags.outcomes += [OutcomeChange(event.event_no, *outcome) for event in events]
