"""What has been kept for long: ended runs, events, the journal, versions; the oldest first.

A look at an index for each page; nothing is counted, and no body is read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Select,
    bindparam,
    literal_column,
    or_,
    select,
)

from aioflow.model import Instant, RunNo
from aioflow.rows import RunRow
from aioflow.store import rows, tables
from aioflow.store.erasing import AGED, not_deleted
from aioflow.store.event_reading import EventReader

__all__ = ("AgingReader",)

Row = TypeVar("Row")

_run = tables.run
_TABLES = {table.name: table for table in AGED}


def _number(name: str) -> BindParameter[int]:
    return bindparam(name, type_=BigInteger())


_of_dag = _run.c.dag_id == bindparam("dag_id", type_=_run.c.dag_id.type)
_one: ColumnElement[int] = literal_column("1")

OLD_RUNS = (
    select(_run)
    .where(
        _of_dag,
        not_deleted,
        _run.c.ended_at < _number("before"),
        _run.c.ended_at >= _number("ended_at"),
        or_(_run.c.ended_at > _number("ended_at"), _run.c.run_no > _number("run_no")),
    )
    .order_by(_run.c.ended_at, _run.c.run_no)
    .limit(_number("limit"))
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
        _run.c.logical_date >= _number("date"),
        or_(_run.c.logical_date > _number("date"), _run.c.run_no > _number("run_no")),
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
        _version.c.created_at < _number("before"),
        _version.c.version.not_in(select(tables.dag.c.version)),
        _version.c.version.not_in(
            select(tables.dag_file.c.version).where(tables.dag_file.c.version.is_not(None))
        ),
        # There may be many of these; each look is one at an index.
        ~select(_one).where(_run.c.version == _version.c.version).exists(),
    )
    .order_by(_version.c.created_at, _version.c.version)
    .limit(_number("limit"))
)
_FROM_VERSION = (
    select(_version.c.version)
    .where(_version.c.version > bindparam("after", type_=_version.c.version.type))
    .order_by(_version.c.version)
    .limit(_number("limit"))
)


@cache
def _numbers(name: str) -> Select[Any]:
    """Return the numbers and instants of a table from behind a number on."""
    table = _TABLES[name]
    (key,) = table.primary_key
    found = select(key, table.c.at).where(key > _number("after"))
    return found.order_by(key).limit(_number("limit"))


class AgingReader(EventReader):
    """The part of a store that knows what is old."""

    @abstractmethod
    async def _all(
        self, made: Callable[[rows.Values], Row], statement: Select[Any], **values: Any
    ) -> list[Row]:
        """Return the rows of an answer."""

    async def list_old_runs(
        self, dag_id: str, *, before: Instant, after: tuple[Instant, RunNo], limit: int
    ) -> list[RunRow]:
        """See ``Store``."""
        ended_at, run_no = after
        cursor = {"ended_at": ended_at, "run_no": run_no}
        return await self._all(
            rows.run_row, OLD_RUNS, dag_id=dag_id, before=before, limit=limit, **cursor
        )

    async def newest_ended_run(self, dag_id: str) -> RunRow | None:
        """See ``Store``."""
        found = await self._all(rows.run_row, _NEWEST, dag_id=dag_id)
        return found[0] if found else None

    async def find_runs_after(
        self, dag_id: str, places: Sequence[tuple[Instant, RunNo]]
    ) -> list[RunRow | None]:
        """See ``Store``."""
        found = [
            await self._all(rows.run_row, _AFTER, dag_id=dag_id, date=date, run_no=run_no)
            for date, run_no in places
        ]
        return [row[0] if row else None for row in found]

    async def oldest_live_run(self) -> RunNo | None:
        """See ``Store``."""
        found = await self._all(lambda row: int(row[0]), _FIRST_LIVE)
        return found[0] if found else None

    async def list_numbers(
        self, table: str, *, after: int, limit: int
    ) -> list[tuple[int, Instant]]:
        """See ``Store``."""
        statement = _numbers(table)
        return await self._all(lambda row: (row[0], row[1]), statement, after=after, limit=limit)

    async def list_unneeded_versions(self, *, before: Instant, limit: int) -> list[str]:
        """See ``Store``."""
        return await self._all(lambda row: str(row[0]), _UNNEEDED, before=before, limit=limit)

    async def list_versions(self, *, after: str = "", limit: int = 1000) -> list[str]:
        """See ``Store``."""
        return await self._all(lambda row: str(row[0]), _FROM_VERSION, after=after, limit=limit)
