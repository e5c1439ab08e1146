"""Rows that a batch writes for triggers, durable calls and named events."""

from __future__ import annotations

from typing import Any

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.rows import NamedEventRow, RecordChange, RecordRow, TriggerChange, TriggerRow
from aioflow.model.states import RecordState
from aioflow.store.packing import packed_failure
from aioflow.store.rows import encrypted_kwargs

__all__ = (
    "deleted_triggers",
    "dropped_records",
    "moved_triggers",
    "named_events",
    "new_records",
    "new_triggers",
    "record_changes",
    "reencrypted_triggers",
)


def new_triggers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new triggers with their kwargs encrypted."""

    def values(row: TriggerRow) -> tuple[Any, ...]:
        encrypted, next_encrypted = encrypted_kwargs(
            vault, row.trigger_no, row.kwargs, row.next_kwargs
        )
        return (
            row.trigger_no,
            row.task_no,
            row.run_no,
            int(row.state),
            row.class_path,
            encrypted,
            row.since,
            row.deadline_at,
            row.next_method,
            next_encrypted,
            row.event,
            row.event_key,
            row.ordinal,
            row.branch,
            row.window,
            packed_failure(row.failure),
            row.timeout_method,
        )

    return [values(row) for row in batch.new_triggers]


def reencrypted_triggers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the triggers whose kwargs are encrypted again."""
    return [
        (*encrypted_kwargs(vault, number, kwargs, next_kwargs), number)
        for number, kwargs, next_kwargs in batch.reencrypted
    ]


def moved_triggers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the triggers that fired or failed."""
    return [
        (
            int(change.state),
            change.event,
            change.event_key,
            packed_failure(change.failure),
            change.trigger_no,
            int(change.was),
        )
        for change in batch.trigger_changes
        if change.state is not None
    ]


def deleted_triggers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the triggers that are deleted."""

    def values(change: TriggerChange) -> tuple[Any, ...]:
        return (change.trigger_no, int(change.was))

    return [values(change) for change in batch.trigger_changes if change.state is None]


def named_events(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new named events."""

    def values(row: NamedEventRow) -> tuple[Any, ...]:
        called = (row.event_no, row.name, row.key)
        return (*called, row.data, row.at, row.run_no, row.request)

    return [values(row) for row in batch.named_events]


def dropped_records(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the keys of the durable calls that are deleted."""
    return list(batch.dropped_records)


def new_records(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new durable calls."""

    def values(row: RecordRow) -> tuple[Any, ...]:
        key = (row.task_no, row.ordinal, row.run_no)
        called = (row.kind, row.name, row.place)
        return (*key, int(row.state), *called, row.answer, packed_failure(row.failure))

    return [values(row) for row in batch.new_records]


def record_changes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the durable calls that have completed."""

    def values(change: RecordChange) -> tuple[Any, ...]:
        new = (int(change.state), change.answer, packed_failure(change.failure))
        return (*new, change.task_no, change.ordinal, int(RecordState.OPEN))

    return [values(change) for change in batch.record_changes]
