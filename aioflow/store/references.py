"""Rows that refer to a missing row of another table, found by the foreign keys of the schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, Select, literal_column, select

from aioflow.model.rows import Damage
from aioflow.store import tables
from aioflow.store.columns import row_checker
from aioflow.store.query_protocol import QueryInterface

__all__ = ("ReferenceReader",)

_SHOWN = 100
"""Maximum number of rows to report for one foreign key."""


class ReferenceReader(QueryInterface):
    """The part of a store that checks the references between its tables."""

    async def find_dangling(self) -> list[Damage]:
        """See ``Store``."""
        found: list[Damage] = []
        for referring, referred in _foreign_keys():
            statement = _dangling(referring, referred)
            (rows,) = await self._fetch([self._question(statement)])
            check = row_checker(statement)
            reason = f"no row of table {referred.table.name} has this {referred.name}"
            found += [check.damage(row, referring, reason) for row in rows]
        return found


def _foreign_keys() -> Iterator[tuple[Column[Any], Column[Any]]]:
    """Yield each column that refers to another table, and the column that it refers to."""
    for table in tables.metadata.sorted_tables:
        for column in table.columns:
            for foreign_key in column.foreign_keys:
                yield column, foreign_key.column


def _dangling(referring: Column[Any], referred: Column[Any]) -> Select[Any]:
    """Return the statement for the key and the reference of each row whose reference dangles."""
    key = list(referring.table.primary_key)
    selected = key if referring in key else [*key, referring]
    is_there = select(literal_column("1")).where(referred == referring).exists()
    found = select(*selected).where(referring.is_not(None), ~is_there)
    return found.order_by(*key).limit(literal_column(str(_SHOWN)))
