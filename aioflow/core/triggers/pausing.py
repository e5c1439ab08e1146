"""What becomes of parked triggers while their DAG is paused: they stay, or leave their hosts.

Those of a DAG that says ``if_paused="stop"`` are asked to leave, as a moved trigger is: what it
yields up to then still counts. They are handed over anew when the DAG is resumed, with the same
fields, ``since`` and last event; their deadlines hold meanwhile. Which of them are stopped is not
stored: it follows from the row of the DAG.
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
"""Why a trigger is let go of whose DAG is paused."""

STOPPED_AT_ONCE = 250
"""Triggers that leave, or are handed over, in one turn; the others follow in the next ones."""


def stop_waits(entry: PauseTriggers, tx: Transaction) -> None:
    """Have the next triggers of a DAG leave their hosts, or be hosted again."""
    memory = tx.memory
    if is_stopped(entry.dag_id, memory) != entry.is_stopped:
        return  # the opposite has begun since
    move_next(entry, _misplaced(entry, memory), tx, reason=PAUSED, most=STOPPED_AT_ONCE)


def _misplaced(entry: PauseTriggers, memory: Memory) -> Iterator[TriggerInstance]:
    """Yield the triggers of a DAG that a host has though it is stopped, or has not; by number.

    Those that are asked to leave, and have not confirmed it, are handed over when they do.
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
