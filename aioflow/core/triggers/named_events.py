"""Named events, emitted by tasks and people under a name, for all waiters for that name.

Each named event is a row. The daemon notifies waiters of committed events, so an event costs a
single row, no matter how many waiters it has. Events are numbered in the same series as runs and
triggers, so an event is later than a run if its number is higher.
"""

from __future__ import annotations

import msgspec

from aioflow.core.state.task_instance import TaskInstance
from aioflow.core.transaction import Transaction
from aioflow.model.ids import RunNo
from aioflow.model.rows import NamedEventRow
from aioflow.model.triggers import ASSET
from aioflow.protocol.requests import EmitEvent

__all__ = ("REQUESTS_LIMIT", "AssetUpdate", "announce", "emit", "store")

REQUESTS_LIMIT = 10_000
"""Number of recent idempotency keys that stay in memory, so that they need no query."""


class AssetUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The data of an asset event that a task emits."""

    run_id: str
    task_id: str
    map_index: int
    extra: msgspec.Raw


def announce(task: TaskInstance, tx: Transaction) -> None:
    """Emit the asset events of a task that has succeeded."""
    row, task_id, index = task.run.row, task.spec.task_id, task.map_index
    for name, extra in task.spec.outlets:
        told = AssetUpdate(row.run_id, task_id, index, msgspec.Raw(extra))
        store(f"{ASSET}{name}", None, msgspec.msgpack.encode(told), tx, run_no=row.run_no)


def emit(request: EmitEvent, tx: Transaction) -> tuple[int, bool]:
    """Store an external event. Return its number and whether it is new.

    Memory contains only recent idempotency keys. To detect older keys, the caller queries the rows
    first.
    """
    known = tx.memory.event_requests
    if request.request is None:
        return store(request.name, request.key, request.data, tx), True
    same = known.get((request.name, request.request))
    if same is not None:
        return same, False
    number = store(request.name, request.key, request.data, tx, request=request.request)
    while len(known) >= REQUESTS_LIMIT:
        del known[next(iter(known))]
    known[request.name, request.request] = number
    return number, True


def store(
    name: str,
    key: str | None,
    data: bytes,
    tx: Transaction,
    *,
    run_no: RunNo | None = None,
    request: str | None = None,
) -> int:
    """Store an event and return its number."""
    row = NamedEventRow(
        event_no=tx.numbers.take(),
        name=name,
        key=key,
        data=data,
        at=tx.now,
        run_no=run_no,
        request=request,
    )
    tx.batch.named_events.append(row)
    if name.startswith(ASSET):
        tx.asset_events.append(row)
    return row.event_no
