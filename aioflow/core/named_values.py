"""Secrets, connections and variables: rows and nothing else; no decision depends on them."""

from __future__ import annotations

from aioflow.core.transaction import Transaction
from aioflow.model.rows import ValueRow
from aioflow.protocol.requests import SetValue

__all__ = ("keep",)


def keep(request: SetValue, tx: Transaction) -> None:
    """Have a value be what is asked for, or gone. Of several in one turn the last one counts."""
    row = ValueRow(
        kind=request.kind,
        name=request.name,
        value_no=tx.numbers.take(),
        at=tx.now,
        value=request.value,
    )
    tx.batch.values.append(row)
