"""Named events: what tasks and people emit under a name, for all who wait for that name.

They are stored here and found there: whoever waits is told by the daemon of what has been
committed, so an event costs one row, however many wait for it. Its number is taken from the
same series as those of runs and triggers, so an event is later than a run if its number is.
"""

from __future__ import annotations

import msgspec

from aioflow.core.state.task_instance import TaskInstance
from aioflow.core.transaction import Transaction
from aioflow.model.dag_triggers import ASSET
from aioflow.model.ids import RunNo
from aioflow.model.rows import NamedEventRow
from aioflow.protocol.requests import EmitEvent

__all__ = ("REQUESTS_KEPT", "MadeAnew", "announce", "emit", "store")

REQUESTS_KEPT = 10_000
"""Idempotency keys of late that are known without asking the database."""


class MadeAnew(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is told of an asset that a task has made anew."""

    run_id: str
    task_id: str
    map_index: int
    extra: msgspec.Raw


def announce(task: TaskInstance, tx: Transaction) -> None:
    """A task has succeeded: what it makes has been made anew."""
    row, task_id, index = task.run.row, task.spec.task_id, task.map_index
    for name, extra in task.spec.outlets:
        told = MadeAnew(row.run_id, task_id, index, msgspec.Raw(extra))
        store(f"{ASSET}{name}", None, msgspec.msgpack.encode(told), tx, run_no=row.run_no)


def emit(request: EmitEvent, tx: Transaction) -> tuple[int, bool]:
    """Store an event for somebody outside. Returns its number and whether it is new.

    A key that is repeated much later than here is remembered is found by whoever asks first
    the rows; only the rows are the whole truth.
    """
    known = tx.memory.event_requests
    if request.request is None:
        return store(request.name, request.key, request.data, tx), True
    same = known.get((request.name, request.request))
    if same is not None:
        return same, False
    number = store(request.name, request.key, request.data, tx, request=request.request)
    while len(known) >= REQUESTS_KEPT:
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
    """Store an event; return its number."""
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
