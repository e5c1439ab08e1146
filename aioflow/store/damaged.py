"""Which rows were found damaged, and what stands in their place for people to see."""

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
"""Damaged rows that are remembered, the first ones; more are damaged in all likelihood."""

Row = TypeVar("Row")


class Damages:
    """The damaged rows that reading has met.

    Attributes:
        on_found: Told of each, once in the life of this process.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Damage] = {}
        self.on_found: Callable[[Damage], None] | None = None

    def note(self, damage: Damage) -> None:
        """A row is damaged. What only sums up many rows does not tell which: others do."""
        if not damage.key_values:
            return
        place = damage.table, damage.key
        if place in self._found or len(self._found) >= LIMIT:
            return
        self._found[place] = damage
        if self.on_found is not None:
            self.on_found(damage)

    def listen(self, on_found: Callable[[Damage], None]) -> None:
        """Be told of each, also of those that were met before."""
        self.on_found = on_found
        for damage in self._found.values():
            on_found(damage)

    def of_run(self, run_no: RunNo) -> Damage | None:
        """Return what is wrong with the first damaged row of a run, as far as it was met."""
        found = self._found.values()
        return next((damage for damage in found if damage.run_no == run_no), None)

    def all(self) -> list[Damage]:
        """Return them in the order in which they were met."""
        return list(self._found.values())

    def forget(self, damage: Damage) -> None:
        """It is not damaged any more."""
        self._found.pop((damage.table, damage.key), None)


def marked(damage: Damage, row: Row | None) -> Row | None:
    """Return a row that says of itself that it is damaged, where it has room for that."""
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
