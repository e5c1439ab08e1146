"""Queries for retention: ended runs, events, the journal and versions, the oldest first.

Each page takes one index lookup. Nothing is counted, and no body is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, literal_column, or_, select

from aioflow.model.ids import RunNo
from aioflow.model.rows import RunRow
from aioflow.model.timestamps import Timestamp
from aioflow.store import rows, tables
from aioflow.store.deletion import AGED, not_deleted
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.selects import number, text

__all__ = ("AgingReader",)

_run = tables.run
_TABLES = {table.name: table for table in AGED}


_of_dag = _run.c.dag_id == text("dag_id")
_one: ColumnElement[int] = literal_column("1")

OLD_RUNS = (
    select(_run)
    .where(
        _of_dag,
        not_deleted,
        _run.c.ended_at < number("before"),
        _run.c.ended_at >= number("ended_at"),
        or_(_run.c.ended_at > number("ended_at"), _run.c.run_no > number("run_no")),
    )
    .order_by(_run.c.ended_at, _run.c.run_no)
    .limit(number("limit"))
)
_NEWEST = (
    select(_run)
    .where(_of_dag, not_deleted, _run.c.ended_at.is_not(None))
    .order_by(_run.c.ended_at.desc(), _run.c.run_no.desc())
    .limit(_one)
)
_AFTER = (
    select(_run)
    .where(
        _of_dag,
        not_deleted,
        _run.c.logical_date.is_not(None),
        _run.c.logical_date >= number("date"),
        or_(_run.c.logical_date > number("date"), _run.c.run_no > number("run_no")),
    )
    .order_by(_run.c.logical_date, _run.c.run_no)
    .limit(_one)
)
_FIRST_LIVE = (
    select(_run.c.run_no).where(_run.c.ended_at.is_(None)).order_by(_run.c.run_no).limit(_one)
)


_version = tables.version
_UNNEEDED = (
    select(_version.c.version)
    .where(
        _version.c.created_at < number("before"),
        _version.c.version.not_in(select(tables.dag.c.version)),
        _version.c.version.not_in(
            select(tables.dag_file.c.version).where(tables.dag_file.c.version.is_not(None))
        ),
        # There may be many runs. Each check is one index lookup.
        ~select(_one).where(_run.c.version == _version.c.version).exists(),
    )
    .order_by(_version.c.created_at, _version.c.version)
    .limit(number("limit"))
)
_FROM_VERSION = (
    select(_version.c.version)
    .where(_version.c.version > text("after"))
    .order_by(_version.c.version)
    .limit(number("limit"))
)


@cache
def _numbers(name: str) -> Select[Any]:
    """Return the statement for numbers and timestamps of a table above a number."""
    table = _TABLES[name]
    (key,) = table.primary_key
    found = select(key, table.c.at).where(key > number("after"))
    return found.order_by(key).limit(number("limit"))


class AgingReader(QueryInterface):
    """The part of a store that finds expired rows."""

    async def list_old_runs(
        self, dag_id: str, *, before: Timestamp, after: tuple[Timestamp, RunNo], limit: int
    ) -> list[RunRow]:
        """See ``Store``."""
        ended_at, run_no = after
        cursor = {"ended_at": ended_at, "run_no": run_no}
        return await self._all(
            rows.run_row, OLD_RUNS, dag_id=dag_id, before=before, limit=limit, **cursor
        )

    async def newest_ended_run(self, dag_id: str) -> RunRow | None:
        """See ``Store``."""
        return await self._one(rows.run_row, _NEWEST, dag_id=dag_id)

    async def find_runs_after(
        self, dag_id: str, places: Sequence[tuple[Timestamp, RunNo]]
    ) -> list[RunRow | None]:
        """See ``Store``."""
        return [
            await self._one(rows.run_row, _AFTER, dag_id=dag_id, date=date, run_no=run_no)
            for date, run_no in places
        ]

    async def oldest_live_run(self) -> RunNo | None:
        """See ``Store``."""
        return await self._one(lambda row: int(row[0]), _FIRST_LIVE)

    async def list_numbers(
        self, table: str, *, after: int, limit: int
    ) -> list[tuple[int, Timestamp]]:
        """See ``Store``."""
        statement = _numbers(table)
        return await self._all(lambda row: (row[0], row[1]), statement, after=after, limit=limit)

    async def list_unneeded_versions(self, *, before: Timestamp, limit: int) -> list[str]:
        """See ``Store``."""
        return await self._all(lambda row: str(row[0]), _UNNEEDED, before=before, limit=limit)

    async def list_versions(self, *, after: str = "", limit: int = 1000) -> list[str]:
        """See ``Store``."""
        return await self._all(lambda row: str(row[0]), _FROM_VERSION, after=after, limit=limit)
