"""Damaged rows, and the values shown in their place."""

from __future__ import annotations

import msgspec

from aioflow.model.damage import DAMAGED, Damage, is_damage
from aioflow.model.rows import RunRow, TaskRow

__all__ = ("DamageView", "damage_view", "quarantine", "run_state", "task_state")


class DamageView(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the database that cannot be read.

    Attributes:
        row: Its key.
        run_id, dag_id: The run and DAG it belongs to, as far as they can be read.
    """

    table: str
    row: str
    column: str
    reason: str
    run_id: str | None
    dag_id: str | None


def damage_view(damage: Damage, run: RunRow | None) -> DamageView:
    """Return a damaged row as JSON shows it."""
    return DamageView(
        table=damage.table,
        row=damage.key,
        column=damage.column,
        reason=damage.reason,
        run_id=None if run is None else run.run_id,
        dag_id=damage.dag_id if run is None else run.dag_id,
    )


def run_state(run: RunRow) -> str:
    """Return the name of a run's state; ``damaged`` if its row is damaged."""
    return DAMAGED if is_damage(run.quarantine) else run.state.label


def task_state(row: TaskRow) -> str:
    """Return the name of a task's state; ``damaged`` if its row is damaged."""
    is_damaged = row.failure is not None and row.failure.reason == DAMAGED
    return DAMAGED if is_damaged else row.state.label


def quarantine(run: RunRow, damage: Damage | None) -> str | None:
    """Return why a run starts nothing any more; ``None`` if it is healthy."""
    return str(damage) if run.quarantine is None and damage is not None else run.quarantine
