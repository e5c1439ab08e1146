"""Asset conditions: record the events of assets, and decide whether the pending events suffice.

An asset event is a named event whose name begins with ``asset:``. It stays pending for a DAG until
it and other pending events meet the condition of the DAG.
"""

from __future__ import annotations

from typing import Any

import msgspec

from aioflow.core.state.dag_triggers import DagTrigger, PendingAssetEvent
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.named_events import AssetUpdate
from aioflow.model.rows import NamedEventRow
from aioflow.model.triggers import (
    ASSET,
    AssetCondition,
    DagEventRow,
    EventOutcome,
    OutcomeChange,
)

__all__ = (
    "awaited_assets",
    "is_condition_met",
    "missing_assets",
    "record_asset_event",
)

PENDING_LIMIT = 1_000
"""Maximum number of pending events of one asset per DAG. The oldest are dropped."""


EXTRA_LIMIT = 4_096
"""Maximum size in bytes of an external event's extra data.

If the data is larger, only its size is passed.
"""


_encode = msgspec.msgpack.Encoder().encode


_decode = msgspec.msgpack.Decoder(AssetUpdate)


def is_condition_met(condition: AssetCondition, there: set[str]) -> bool:
    """Return whether a condition is met.

    Args:
        there: The assets with pending events.
    """
    found = (
        part in there if isinstance(part, str) else is_condition_met(part, there)
        for part in condition.parts
    )
    return all(found) if condition.is_all else any(found)


def missing_assets(condition: AssetCondition, there: set[str]) -> list[str]:
    """Return the assets without events that a condition names; empty if it is already met.

    Args:
        there: The assets with pending events.
    """
    if is_condition_met(condition, there):
        return []
    found: list[str] = []
    for part in condition.parts:
        if isinstance(part, AssetCondition):
            found += missing_assets(part, there)
        elif part not in there:
            found.append(part)
    return list(dict.fromkeys(found))


def awaited_assets(one: DagTrigger) -> str:
    """Describe which assets a DAG waits for, and how many events of each are pending."""
    condition = one.condition
    if condition is None:
        return ""
    counts = (f"{name} ({len(one.pending.get(name, ()))})" for name in condition.names())
    return ("all of " if condition.is_all else "any of ") + ", ".join(counts)


def record_asset_event(one: DagTrigger, event: NamedEventRow, tx: Transaction) -> None:
    """Store an event of an asset as pending for one DAG."""
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
        data=_received_event(event),
    )
    tx.batch.of_dags.events.append(row)
    before = one.pending.get(name, ())
    for old in before[: max(0, len(before) - PENDING_LIMIT + 1)]:
        tx.batch.of_dags.outcomes.append(OutcomeChange(old.event_no, EventOutcome.REPLACED))
    retained = before[-(PENDING_LIMIT - 1) :]
    one.pending = {
        **one.pending,
        name: (*retained, PendingAssetEvent(row.event_no, sequence, row.data or b"")),
    }


def _received_event(event: NamedEventRow) -> bytes:
    """Return an event in the form that a run receives. Data of an external event is ``extra``."""
    of: dict[str, Any] = {"id": event.event_no, "run_id": None, "task_id": None, "map_index": -1}
    try:
        told = _decode.decode(event.data)
    except msgspec.DecodeError:
        size = len(event.data)
        extra = msgspec.Raw(event.data) if size <= EXTRA_LIMIT else {"size_bytes": size}
        return _encode({**of, "extra": extra})
    more = {"run_id": told.run_id, "task_id": told.task_id, "map_index": told.map_index}
    return _encode({**of, **more, "extra": told.extra})
