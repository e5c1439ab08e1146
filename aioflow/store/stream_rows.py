"""What a batch changes of what grows while tasks go on: fan-outs, items, events of streams."""

from __future__ import annotations

from typing import Any

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.rows import EventRow, ExpansionChange, ExpansionRow, ItemRow

__all__ = (
    "consumed_events",
    "expansion_changes",
    "gone_events",
    "gone_expansions",
    "gone_items",
    "gone_results",
    "new_events",
    "new_expansions",
    "new_items",
)


def new_expansions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the fan-outs that begin."""

    def values(row: ExpansionRow) -> tuple[Any, ...]:
        return (row.run_no, row.position, row.width, row.first_task_no, int(row.is_open))

    return [values(row) for row in batch.new_expansions]


def expansion_changes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return those that grow with a stream, or are closed."""

    def values(change: ExpansionChange) -> tuple[Any, ...]:
        return (change.width, int(change.is_open), change.run_no, change.position, change.was, 1)

    return [values(change) for change in batch.expansion_changes]


def new_items(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the items tasks give on."""

    def values(row: ItemRow) -> tuple[Any, ...]:
        return (row.task_no, row.item_index, row.run_no, row.payload)

    return [values(row) for row in batch.new_items]


def gone_items(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the tasks whose items are deleted."""
    return [(task_no,) for task_no in batch.gone_items]


def new_events(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the events of streams that are stored."""

    def values(row: EventRow) -> tuple[Any, ...]:
        return (row.trigger_no, row.sequence, row.run_no, row.key, row.payload)

    return [values(row) for row in batch.new_events]


def consumed_events(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return those that somebody has taken: their payloads go."""
    return [(None, *key) for key in batch.consumed_events]


def gone_events(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the triggers whose events are deleted."""
    return [(number,) for number in batch.gone_events]


def gone_expansions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the fan-outs that are to be made anew."""
    return list(batch.gone_expansions)


def gone_results(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the tasks whose results are deleted."""
    return [(task_no,) for task_no in dict.fromkeys(batch.gone_results)]
