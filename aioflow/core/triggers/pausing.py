"""Triggers of deferred tasks while their DAG is paused: they stay hosted, or are released.

Triggers of a DAG with ``if_paused="stop"`` are released, as migrated triggers are: events that they
yield until then still count. When the DAG is resumed, they are assigned again with the same fields,
``since`` and last event. Their deadlines do not change meanwhile. Which triggers are stopped is not
stored, because it follows from the row of the DAG.
"""

from __future__ import annotations

from collections.abc import Iterator

from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import TriggerInstance
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.assignment import HOSTLESS, is_stopped
from aioflow.core.triggers.migration import move_next
from aioflow.model.states import TriggerState
from aioflow.protocol.inputs import PauseTriggers

__all__ = ("PAUSED", "STOPPED_AT_ONCE", "stop_waits")

PAUSED = "paused"
"""The reason to release a trigger whose DAG is paused."""

STOPPED_AT_ONCE = 250
"""Maximum number of triggers released or assigned in one turn. The others follow."""


def stop_waits(entry: PauseTriggers, tx: Transaction) -> None:
    """Release the next triggers of a DAG, or assign them again."""
    memory = tx.memory
    if is_stopped(entry.dag_id, memory) != entry.is_stopped:
        return  # the opposite has been requested since
    move_next(entry, _misplaced(entry, memory), tx, reason=PAUSED, most=STOPPED_AT_ONCE)


def _misplaced(entry: PauseTriggers, memory: Memory) -> Iterator[TriggerInstance]:
    """Yield the triggers of a DAG that have a host though it is stopped, or the reverse, by number.

    Triggers that have not confirmed their release yet are assigned when they do.
    """
    parking = memory.packing
    forms = {
        number
        for form, number in parking.forms.numbered()
        if form.dag_version.graph.spec.dag_id == entry.dag_id and form.class_path not in HOSTLESS
    }
    for number in parking.numbers(forms, entry.after):
        wait = parking.peek(number)
        if wait is None or wait.task is None or wait.state is not TriggerState.WAITING:
            continue
        is_its = wait.run.row.dag_id == entry.dag_id and wait.row.class_path not in HOSTLESS
        if is_its and bool(wait.hosting) == entry.is_stopped:
            yield wait
