"""Whether whole rows of tables can be read, for checks and for a second look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Select, Table, bindparam, select

from aioflow.crypto import Vault
from aioflow.model.damage import Damage
from aioflow.store import access_tables, rows, tables
from aioflow.store.access import token_row
from aioflow.store.column_checks import read_rows
from aioflow.store.dag_rows import dag_trigger_row
from aioflow.store.selects import whole
from aioflow.store.values import value_row

__all__ = ("damage_in", "row_of")

_Made = Callable[[rows.Values], Any]

_MADE: Mapping[Table, _Made] = {
    tables.version: rows.version_row,
    tables.run: rows.run_row,
    tables.task: rows.task_row,
    tables.try_: rows.try_row,
    tables.record: rows.record_row,
    tables.outbox: rows.outbox_row,
    access_tables.api_token: token_row,
}
"""What decodes the packed columns of a table; the types and ranges are checked in all of them."""


def damage_in(table: Table, found: Sequence[rows.Values], vault: Vault) -> list[Damage]:
    """Return what is wrong with rows of a table, one for each that is damaged."""
    damages: list[Damage] = []
    read_rows(whole(table), _made(table, vault), found, lambda one, _: damages.append(one))
    return damages


@cache
def row_of(table: Table) -> Select[Any]:
    """Return the row of a key, whose values are ``key_0`` and so on."""
    named = [
        column == bindparam(f"key_{at}", type_=column.type)
        for at, column in enumerate(table.primary_key)
    ]
    return select(table).where(*named)


def _made(table: Table, vault: Vault) -> _Made:
    if table is tables.trigger_wait:
        return lambda values: rows.trigger_row(values, vault)
    if table is tables.dag_trigger:
        return lambda values: dag_trigger_row(values, vault)
    if table is tables.named_value:
        return lambda values: value_row(values, vault)
    return _MADE.get(table, tuple)
