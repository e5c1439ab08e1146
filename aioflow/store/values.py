"""Secrets, connections and variables as rows, encrypted and bound to their names.

The envelope is bound to the row's number, which changes each time a value is set. Kind and name are
encrypted with the value, so a row cannot be used in place of another or of its own earlier version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.dag import ValueKind
from aioflow.model.rows import ValueRow

__all__ = ("deleted_values", "new_values", "value_row")

_TABLE = "named_value"

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(tuple[str, str, bytes])


def new_values(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the values that are set."""

    def values(row: ValueRow) -> tuple[Any, ...]:
        encrypted = vault.encrypt(_TABLE, row.value_no, _encode((row.kind, row.name, row.value)))
        return (str(row.kind), row.name, row.value_no, row.at, encrypted)

    return [values(row) for row in _last(batch) if row.value is not None]


def deleted_values(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the values that are deleted."""
    return [(str(row.kind), row.name) for row in _last(batch) if row.value is None]


def _last(batch: Batch) -> list[ValueRow]:
    return list({(row.kind, row.name): row for row in batch.values}.values())


def value_row(values: Sequence[Any], vault: Vault) -> ValueRow:
    """Return a row of ``named_value``, without its value if no available key decrypts it."""
    kind, name, value_no, at, encrypted = values
    opened = vault.decrypt(_TABLE, value_no, encrypted)
    value = None
    if opened is not None:
        *of, told = _decoder.decode(opened)
        value = told if of == [kind, name] else None
    return ValueRow(kind=ValueKind(kind), name=name, value_no=value_no, at=at, value=value)
