"""Rows and queries of backfills."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import BindParameter, Select, func, select

from aioflow.crypto import Vault
from aioflow.model.backfill import BackfillRow
from aioflow.model.batch import Batch
from aioflow.model.states import RunState
from aioflow.store import rows, tables
from aioflow.store.deletion import not_deleted
from aioflow.store.packing import last_of_each
from aioflow.store.query_protocol import QueryInterface, pieces
from aioflow.store.selects import number, text

__all__ = ("RUNNING_BACKFILLS", "BackfillReader", "backfills")

_backfill, _run = tables.backfill, tables.run


RUNNING_BACKFILLS = (
    select(_backfill).where(_backfill.c.state == "running").order_by(_backfill.c.backfill_no)
)
_BY_KEY = select(_backfill).where(
    _backfill.c.dag_id == text("dag_id"), _backfill.c.key == text("key")
)


@cache
def _by_numbers(width: int) -> Select[Any]:
    """Return the statement for that many backfills, with parameters ``no_0`` and so on."""
    return select(_backfill).where(_backfill.c.backfill_no.in_(_numbers(width)))


@cache
def _counts(width: int) -> Select[Any]:
    """Return the statement that counts the runs of that many backfills by state.

    Its parameters are ``no_0`` and so on.
    """
    counted = (_run.c.backfill, _run.c.state)
    return (
        select(*counted, func.count())
        .where(_run.c.backfill.in_(_numbers(width)), not_deleted)
        .group_by(*counted)
        .order_by(*counted)
    )


def _numbers(width: int) -> list[BindParameter[int]]:
    return [number(f"no_{n}") for n in range(width)]


@cache
def _page(*, of_dag: bool, before: bool) -> Select[Any]:
    page = (
        select(_backfill.c.backfill_no)
        .order_by(_backfill.c.backfill_no.desc())
        .limit(number("limit"))
    )
    if of_dag:
        page = page.where(_backfill.c.dag_id == text("dag_id"))
    if before:
        page = page.where(_backfill.c.backfill_no < number("before"))
    return page


def backfills(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the backfills that start, continue or end, the last row of each."""

    def values(row: BackfillRow) -> tuple[Any, ...]:
        is_reverse = int(row.is_reverse)
        return msgspec.structs.astuple(msgspec.structs.replace(row, is_reverse=is_reverse))

    return [values(row) for row in last_of_each(batch.backfills, lambda row: row.backfill_no)]


class BackfillReader(QueryInterface):
    """The part of a store that reads backfills."""

    async def find_keyed_backfill(self, dag_id: str, key: str) -> BackfillRow | None:
        """See ``Store``."""
        return await self._one(rows.backfill_row, _BY_KEY, dag_id=dag_id, key=key)

    async def list_backfills(
        self, *, dag_id: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[tuple[BackfillRow, dict[RunState, int]]]:
        """See ``Store``."""
        given = {"dag_id": dag_id, "before": before}
        cursor = {name: value for name, value in given.items() if value is not None}
        statement = _page(of_dag=dag_id is not None, before=before is not None)
        found = await self._all(tuple, statement, limit=limit, **cursor)
        return await self.find_backfills([backfill_no for (backfill_no,) in found])

    async def find_backfills(
        self, backfill_nos: Collection[int]
    ) -> list[tuple[BackfillRow, dict[RunState, int]]]:
        """See ``Store``."""
        found: list[BackfillRow] = []
        counts: dict[int, dict[RunState, int]] = {no: {} for no in backfill_nos}
        for width, named in pieces(("no",), [(no,) for no in backfill_nos]):
            statements = (_by_numbers(width), _counts(width))
            questions = [self._question(statement, **named) for statement in statements]
            of_piece, counted = await self._fetch(questions)
            found += self._read(statements[0], rows.backfill_row, of_piece)
            for no, state, count in self._read(statements[1], tuple, counted):
                counts[no][rows.RUN_STATES[state]] = count
        places = {no: place for place, no in enumerate(backfill_nos)}
        found.sort(key=lambda row: places[row.backfill_no])
        return [(row, counts[row.backfill_no]) for row in found]
