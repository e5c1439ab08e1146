"""Pending clears and marks of a suspended run: an outbox row with the selected tasks."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from aioflow.core.state.task_instance import Run
from aioflow.core.transaction import Transaction
from aioflow.protocol.outbox import CLEAR, Clearing

__all__ = ("let_go", "spare", "spare_child", "store")

_encode = msgspec.msgpack.Encoder().encode


def store(run: Run, chosen: Clearing, tx: Transaction) -> None:
    """Suspend a run for this selection, which replaces an earlier one."""
    let_go(run, tx)
    tx.runs[run.run_no] = run
    tx.memory.clearings[run.run_no] = (tx.outbox.add(CLEAR, _encode(chosen)), chosen)
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
    if chosen is None or position in chosen.reexpanded or position not in chosen.positions:
        return
    if index < 0:
        store(run, replace(chosen, retained=tuple(sorted({*chosen.retained, position}))), tx)
        return
    excluded = dict(chosen.excluded)
    own = {position: bytearray(excluded[position])} if position in excluded else {}
    spare_child(own, run, position, index)
    excluded[position] = bytes(own[position])
    store(run, replace(chosen, excluded=tuple(sorted(excluded.items()))), tx)


def spare_child(excluded: dict[int, bytearray], run: Run, position: int, index: int) -> None:
    """Exclude a child from the selection: one bit for each child of a mapped task."""
    bits = excluded.setdefault(position, bytearray(run.groups[position].width + 7 >> 3))
    bits[index >> 3] |= 1 << (index & 7)
