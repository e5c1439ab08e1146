"""What is owed of a run that is held still: what of it is to be cleared, or marked, is a row."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from aioflow.core.state.task_instance import Run
from aioflow.core.transaction import Transaction
from aioflow.protocol.outbox import CLEAR, Clearing

__all__ = ("let_go", "owe", "spare", "spare_child")

_encode = msgspec.msgpack.Encoder().encode


def owe(run: Run, chosen: Clearing, tx: Transaction) -> None:
    """Hold a run still for this, in place of what it may be held still for already."""
    let_go(run, tx)
    tx.runs[run.run_no] = run
    tx.memory.clearings[run.run_no] = (tx.outbox.owe(CLEAR, _encode(chosen)), chosen)
    run.clearing = chosen
    run.looked = {}


def let_go(run: Run, tx: Transaction) -> None:
    """Nothing is owed of a run any more."""
    if run.clearing is not None:
        run.clearing = None
        number, _ = tx.memory.clearings.pop(run.run_no)
        tx.outbox.write_off(number)


def spare(run: Run, position: int, index: int, tx: Transaction) -> None:
    """A branch that has just ended has a task skipped: that is not to begin anew any more."""
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
    """Add a child to those that are not to begin anew: a bit for each child of a fan-out."""
    bits = spared.setdefault(position, bytearray(run.groups[position].width + 7 >> 3))
    bits[index >> 3] |= 1 << (index & 7)
