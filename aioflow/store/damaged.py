"""The damaged rows found so far, and how they are marked in reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from aioflow.model.backfill import BackfillRow
from aioflow.model.dag_triggers import DagTriggerRow
from aioflow.model.damage import DAMAGED, Damage
from aioflow.model.ids import RunNo
from aioflow.model.rows import (
    DagFileRow,
    DagRow,
    OutboxRow,
    RecordRow,
    RunRow,
    TaskRow,
    TriggerRow,
    TryRow,
)

__all__ = ("LIMIT", "Damages", "marked")

LIMIT = 1_000
"""Number of damaged rows that are remembered. Only the first ones are."""

Row = TypeVar("Row")


class Damages:
    """The damaged rows that reads have found.

    Attributes:
        on_found: Called once for each damaged row.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Damage] = {}
        self.on_found: Callable[[Damage], None] | None = None

    def note(self, damage: Damage) -> None:
        """Record a damaged row.

        Damage without a key is ignored. It comes from an aggregate, and reads of the rows report
        it.
        """
        if not damage.key_values:
            return
        place = damage.table, damage.key
        if place in self._found or len(self._found) >= LIMIT:
            return
        self._found[place] = damage
        if self.on_found is not None:
            self.on_found(damage)

    def listen(self, on_found: Callable[[Damage], None]) -> None:
        """Register a callback for damaged rows, and call it for those already found."""
        self.on_found = on_found
        for damage in self._found.values():
            on_found(damage)

    def of_run(self, run_no: RunNo) -> Damage | None:
        """Return the first damage found in the rows of a run."""
        found = self._found.values()
        return next((damage for damage in found if damage.run_no == run_no), None)

    def all(self) -> list[Damage]:
        """Return all damage in the order in which it was found."""
        return list(self._found.values())

    def forget(self, damage: Damage) -> None:
        """Remove a row that is no longer damaged."""
        self._found.pop((damage.table, damage.key), None)


def marked(damage: Damage, row: Row | None) -> Row | None:
    """Return the row marked as damaged, if it has a field for that."""
    match cast("Any", row):
        case RunRow():
            return cast("Row", replace(row, quarantine=str(damage)[:1000]))  # type: ignore[type-var]
        case TaskRow() | TryRow() | TriggerRow() | RecordRow():
            return cast("Row", replace(row, failure=damage.failure))  # type: ignore[type-var]
        case DagFileRow():
            return cast("Row", replace(row, reason=DAMAGED, message=str(damage)))  # type: ignore[type-var]
        case BackfillRow():
            return cast("Row", replace(row, failure=str(damage)))  # type: ignore[type-var]
        case DagRow():
            return cast("Row", replace(row, paused=True))  # type: ignore[type-var]
        case OutboxRow():
            return cast("Row", replace(row, body=b""))  # type: ignore[type-var]
        case DagTriggerRow():
            return cast("Row", replace(row, kwargs=None))  # type: ignore[type-var]
        case _:
            return row
