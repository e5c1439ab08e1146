"""Secrets, connections and variables: rows on which no decision depends."""

from __future__ import annotations

from aioflow.core.transaction import Transaction
from aioflow.model.rows import ValueRow
from aioflow.protocol.requests import SetValue

__all__ = ("keep",)


def keep(request: SetValue, tx: Transaction) -> None:
    """Set or delete a value. The last request of a turn counts."""
    row = ValueRow(
        kind=request.kind,
        name=request.name,
        value_no=tx.numbers.take(),
        at=tx.now,
        value=request.value,
    )
    tx.batch.values.append(row)
