"""Backfills: what a batch says of them, and what is asked of them."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Select, func, select

from aioflow.backfills import BackfillRow
from aioflow.model import RunState
from aioflow.rows import Batch
from aioflow.secrets import Vault
from aioflow.store import rows, tables
from aioflow.store.asking import Asking
from aioflow.store.erasing import not_deleted
from aioflow.store.packing import last_of_each
from aioflow.store.selects import number, text

__all__ = ("RUNNING_BACKFILLS", "BackfillReader", "backfills")

_backfill, _run = tables.backfill, tables.run


RUNNING_BACKFILLS = (
    select(_backfill).where(_backfill.c.state == "running").order_by(_backfill.c.backfill_no)
)
_BY_KEY = select(_backfill).where(
    _backfill.c.dag_id == text("dag_id"), _backfill.c.key == text("key")
)
_BY_NUMBER = select(_backfill).where(_backfill.c.backfill_no == number("backfill_no"))


@cache
def _counts(width: int) -> Select[Any]:
    """Return how many runs of as many backfills stand how: ``no_0`` and so on."""
    counted = (_run.c.backfill, _run.c.state)
    return (
        select(*counted, func.count())
        .where(_run.c.backfill.in_([number(f"no_{n}") for n in range(width)]), not_deleted)
        .group_by(*counted)
        .order_by(*counted)
    )


@cache
def _page(*, of_dag: bool, before: bool) -> Select[Any]:
    page = select(_backfill).order_by(_backfill.c.backfill_no.desc()).limit(number("limit"))
    if of_dag:
        page = page.where(_backfill.c.dag_id == text("dag_id"))
    if before:
        page = page.where(_backfill.c.backfill_no < number("before"))
    return page


def backfills(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return those that begin, go on or end; of one several times the last."""

    def values(row: BackfillRow) -> tuple[Any, ...]:
        is_reverse = int(row.is_reverse)
        return msgspec.structs.astuple(msgspec.structs.replace(row, is_reverse=is_reverse))

    return [values(row) for row in last_of_each(batch.backfills, lambda row: row.backfill_no)]


class BackfillReader(Asking):
    """The part of a store that knows backfills."""

    async def find_backfill(self, backfill_no: int) -> BackfillRow | None:
        """See ``Store``."""
        return await self._one(rows.backfill_row, _BY_NUMBER, backfill_no=backfill_no)

    async def find_keyed_backfill(self, dag_id: str, key: str) -> BackfillRow | None:
        """See ``Store``."""
        return await self._one(rows.backfill_row, _BY_KEY, dag_id=dag_id, key=key)

    async def list_backfills(
        self, *, dag_id: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[BackfillRow]:
        """See ``Store``."""
        given = {"dag_id": dag_id, "before": before}
        cursor = {name: value for name, value in given.items() if value is not None}
        statement = _page(of_dag=dag_id is not None, before=before is not None)
        return await self._all(rows.backfill_row, statement, limit=limit, **cursor)

    async def count_runs_of_backfills(
        self, backfill_nos: Collection[int]
    ) -> dict[int, dict[RunState, int]]:
        """See ``Store``."""
        found: dict[int, dict[RunState, int]] = {no: {} for no in backfill_nos}
        for no, state, count in await self._each(tuple, _counts, "no", backfill_nos):
            found[no][rows.RUN_STATES[state]] = count
        return found
