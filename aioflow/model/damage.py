"""Damaged rows: where they are, and what is wrong with them."""

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
    """Return whether a text is the message of a damaged row."""
    return text is not None and text.startswith(_MARK)


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A damaged row.

    Attributes:
        key: The key columns of the row and their values.
        key_values: The values alone, to find it again; empty if the row was read without a key.
        column: The first column that cannot be read.
        reason: What is wrong with it.
        run_no, dag_id: The run and DAG of the row, as far as readable.
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
        """The failure of a task that cannot continue because of it."""
        return Failure(type="DamagedRow", message=str(self)[:1000], reason=DAMAGED)
