"""Erasing the rows of deleted runs at the first level, and its invariant.

I23: no row of a deleted run is erased before everything has released the run. In the end all of its
rows are erased, and no row of another run is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aioflow.maintenance import retention
from aioflow.model.batch import Batch
from aioflow.model.ids import RunNo
from aioflow.protocol.outbox import callback_kind
from aioflow.protocol.requests import EraseRows
from aioflow.store.retention import ERASED
from tests.sim.broken import Broken
from tests.sim.workload import SECOND

__all__ = ("Eraser", "hold")


class Eraser:
    """Stand-in for ``deleting``, over dictionaries and on virtual time.

    It remembers nothing of an earlier incarnation: it finds the runs to erase in the rows.
    """

    def __init__(self, node: Any) -> None:
        self._node = node
        self._owed: dict[RunNo, int] = {}
        self._ticket: int | None = None
        self._node.after(0, self._go)

    def committed(self, batch: Batch) -> None:
        """Start erasing if the batch deletes a run."""
        if batch.new_deletions:
            self._go()

    def answered(self, ticket: int) -> None:
        """Continue after a slice was erased or refused."""
        if ticket == self._ticket:
            self._ticket = None
            self._node.after(self._node.rng.randint(0, SECOND), self._go)

    def _go(self) -> None:
        """Request the next slice of rows of the first run that is no longer needed."""
        if self._ticket is not None or not self._node.tables.deletions:
            return
        for run_no in sorted(self._node.tables.deletions):
            if not self._is_needed(run_no):
                self._ticket = self._node.ask(next(self._slices(run_no)))
                return
        self._node.after(SECOND, self._go)

    def _is_needed(self, run_no: RunNo) -> bool:
        tables = self._node.tables
        run = tables.runs.get(run_no)
        if run is None:
            return False
        kind = callback_kind(run.dag_id)
        owed = [number for number, row in tables.outbox.items() if row.kind == kind]
        last = self._owed.setdefault(run_no, max(owed, default=-1))
        return min(owed, default=last + 1) <= last or bool(tables.triggers_of(run_no))

    def _slices(self, run_no: RunNo) -> Iterator[EraseRows]:
        tables = self._node.tables
        for table in ERASED:
            keys = tables.keys_of(table.name, run_no)
            if keys:
                yield EraseRows(
                    run_no=run_no, table=table.name, keys=keys[: retention.DELETION_SLICE_ROWS]
                )


def hold(node: Any, batch: Batch) -> None:
    """I23: check a batch that erased rows."""
    tables = node.tables
    for (run_no,) in batch.erased.get("deletion", ()):
        left = tables.left_of(run_no)
        if left:
            raise Broken("I23 erased", f"run {run_no} is deleted, and there are rows of {left}")
    for table, keys in batch.erased.items():
        for run_no in {of for key in keys for of in tables.run_of(table, key)}:
            if tables.triggers_of(run_no):
                raise Broken("I23 erased", f"run {run_no} goes, and a host has a trigger of it")
