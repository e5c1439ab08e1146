"""Pending clears and marks of a suspended run: an outbox row with the selected tasks."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from aioflow.core.state.task_instance import Run
from aioflow.core.transaction import Transaction
from aioflow.protocol.outbox import CLEAR, Clearing

__all__ = ("let_go", "owe", "spare", "spare_child")

_encode = msgspec.msgpack.Encoder().encode


def owe(run: Run, chosen: Clearing, tx: Transaction) -> None:
    """Suspend a run for this selection, which replaces an earlier one."""
    let_go(run, tx)
    tx.runs[run.run_no] = run
    tx.memory.clearings[run.run_no] = (tx.outbox.owe(CLEAR, _encode(chosen)), chosen)
    run.clearing = chosen
    run.looked = {}


def let_go(run: Run, tx: Transaction) -> None:
    """Delete the selection and end the suspension."""
    if run.clearing is not None:
        run.clearing = None
        number, _ = tx.memory.clearings.pop(run.run_no)
        tx.outbox.write_off(number)


def spare(run: Run, position: int, index: int, tx: Transaction) -> None:
    """Remove a task from the selection, because a branch that has just ended skipped it."""
    chosen = run.clearing
    if chosen is None or position in chosen.anew or position not in chosen.positions:
        return
    if index < 0:
        owe(run, replace(chosen, kept=tuple(sorted({*chosen.kept, position}))), tx)
        return
    spared = dict(chosen.spared)
    own = {position: bytearray(spared[position])} if position in spared else {}
    spare_child(own, run, position, index)
    spared[position] = bytes(own[position])
    owe(run, replace(chosen, spared=tuple(sorted(spared.items()))), tx)


def spare_child(spared: dict[int, bytearray], run: Run, position: int, index: int) -> None:
    """Exclude a child from the selection: one bit for each child of a mapped task."""
    bits = spared.setdefault(position, bytearray(run.groups[position].width + 7 >> 3))
    bits[index >> 3] |= 1 << (index & 7)
