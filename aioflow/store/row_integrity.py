"""Checks whether rows can be read in full, for ``find_damage`` and for repeated reads."""

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
"""Decoders of the packed columns of a table. Types and ranges are checked in all tables."""


def damage_in(table: Table, found: Sequence[rows.Values], vault: Vault) -> list[Damage]:
    """Return the damage in rows of a table, one entry for each damaged row."""
    damages: list[Damage] = []
    read_rows(whole(table), _made(table, vault), found, lambda one, _: damages.append(one))
    return damages


@cache
def row_of(table: Table) -> Select[Any]:
    """Return the statement for the row with the key ``key_0``, ``key_1`` and so on."""
    named = [
        column == bindparam(f"key_{at}", type_=column.type)
        for at, column in enumerate(table.primary_key)
    ]
    return select(table).where(*named)


def _made(table: Table, vault: Vault) -> _Made:
    if table is tables.task_trigger:
        return lambda values: rows.trigger_row(values, vault)
    if table is tables.dag_trigger:
        return lambda values: dag_trigger_row(values, vault)
    if table is tables.named_value:
        return lambda values: value_row(values, vault)
    return _MADE.get(table, tuple)
