"""Rows that a batch writes for expansions, yielded items and stream events."""

from __future__ import annotations

from typing import Any

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.rows import EventRow, ExpansionChange, ExpansionRow, ItemRow

__all__ = (
    "consumed_events",
    "deleted_events",
    "deleted_expansions",
    "deleted_items",
    "deleted_results",
    "expansion_changes",
    "new_events",
    "new_expansions",
    "new_items",
)


def new_expansions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new expansions."""

    def values(row: ExpansionRow) -> tuple[Any, ...]:
        return (row.run_no, row.position, row.width, row.first_task_no, int(row.is_open))

    return [values(row) for row in batch.new_expansions]


def expansion_changes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the expansions that grow with a stream or are closed."""

    def values(change: ExpansionChange) -> tuple[Any, ...]:
        return (change.width, int(change.is_open), change.run_no, change.position, change.was, 1)

    return [values(change) for change in batch.expansion_changes]


def new_items(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the items that tasks have yielded."""

    def values(row: ItemRow) -> tuple[Any, ...]:
        return (row.task_no, row.item_index, row.run_no, row.payload)

    return [values(row) for row in batch.new_items]


def deleted_items(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the tasks whose items are deleted."""
    return [(task_no,) for task_no in batch.gone_items]


def new_events(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new stream events."""

    def values(row: EventRow) -> tuple[Any, ...]:
        return (row.trigger_no, row.sequence, row.run_no, row.key, row.payload)

    return [values(row) for row in batch.new_events]


def consumed_events(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the consumed events, whose payloads are deleted."""
    return [(None, *key) for key in batch.consumed_events]


def deleted_events(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the triggers whose events are deleted."""
    return [(number,) for number in batch.gone_events]


def deleted_expansions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the expansions that are deleted, to be created again later."""
    return list(batch.gone_expansions)


def deleted_results(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the tasks whose results are deleted."""
    return [(task_no,) for task_no in dict.fromkeys(batch.gone_results)]
