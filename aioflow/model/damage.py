"""What is said of a row that cannot be read: where it is, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import msgspec

from aioflow.model.ids import RunNo
from aioflow.model.states import Failure

__all__ = ("DAMAGED", "Damage", "is_damage")

DAMAGED = "damaged"
"""The reason of failures, alerts and waits that come from a damaged row."""


_MARK = "damaged: "


def is_damage(text: str | None) -> bool:
    """Whether a text is what a damage says of itself."""
    return text is not None and text.startswith(_MARK)


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A damaged row.

    Attributes:
        key: Names the row: its key columns and their values.
        key_values: The same, to find it again; none if what was read has no key.
        column: The first one that cannot be read.
        reason: What is wrong with that.
        run_no, dag_id: What the row belongs to, as far as it says so.
    """

    table: str
    key: str
    column: str
    reason: str
    key_values: tuple[Any, ...] = ()
    run_no: RunNo | None = None
    dag_id: str | None = None

    def __str__(self) -> str:
        return f"{_MARK}table {self.table}, row {self.key}, column {self.column}: {self.reason}"

    @property
    def failure(self) -> Failure:
        """Return it as a task that cannot go on because of it has it."""
        return Failure(type="DamagedRow", message=str(self)[:1000], reason=DAMAGED)
