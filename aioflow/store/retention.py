"""Retention and deletion: queries for expired rows, and the rows that a batch deletes.

Ended runs, events, journal rows and versions expire. Queries return the oldest rows first, and each
page takes one index lookup. No query counts rows or reads a body.

A run is first entered in ``deletion``, which hides it from all reads. Its rows are then deleted by
key, in slices, each row before the rows that it refers to. The row of the run and its entry in
``deletion`` are deleted last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

from sqlalchemy import ColumnElement, Select, Table, bindparam, func, literal_column, or_, select

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.ids import RunNo, StartNo, TaskNo
from aioflow.model.rows import DeletionRow, RunRow
from aioflow.model.timestamps import Timestamp
from aioflow.store import TABLES_OF_RUNS, rows, tables
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.selects import number, text

__all__ = ("AGED", "ERASED", "RetentionReader", "deletions", "erased")

ERASED: tuple[Table, ...] = tuple(tables.metadata.tables[name] for name in TABLES_OF_RUNS)
"""See ``TABLES_OF_RUNS``."""

AGED: tuple[Table, ...] = (
    tables.named_event,
    tables.dag_event,
    tables.journal,
    tables.audit,
    tables.history,
    tables.pool_usage,
)
"""Tables whose old rows are deleted by key, independently of runs."""

_OF_TASKS = frozenset({tables.try_, tables.try_worker, tables.result, tables.map_label})
"""Tables without an index on the run. Their rows are found through tasks."""


def deletions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the runs that are marked for deletion, which hides them from reads."""
    return [(row.run_no, row.at) for row in batch.new_deletions]


def erased(table: Table) -> Callable[[Batch, Vault], list[tuple[Any, ...]]]:
    """Return a function that lists the keys of the rows to delete from a table."""

    def keys(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
        return [tuple(key) for key in batch.erased.get(table.name, ())]

    return keys


# ── statements ──────────────────────────────────────────────────────────────────────────

_run = tables.run
_of_dag = _run.c.dag_id == text("dag_id")
_one: ColumnElement[int] = literal_column("1")

_OLD_RUNS = (
    select(_run)
    .where(
        _of_dag,
        tables.not_deleted,
        _run.c.ended_at < number("before"),
        _run.c.ended_at >= number("ended_at"),
        or_(_run.c.ended_at > number("ended_at"), _run.c.run_no > number("run_no")),
    )
    .order_by(_run.c.ended_at, _run.c.run_no)
    .limit(number("limit"))
)
_NEWEST = (
    select(_run)
    .where(_of_dag, tables.not_deleted, _run.c.ended_at.is_not(None))
    .order_by(_run.c.ended_at.desc(), _run.c.run_no.desc())
    .limit(_one)
)
_AFTER = (
    select(_run)
    .where(
        _of_dag,
        tables.not_deleted,
        _run.c.logical_date.is_not(None),
        _run.c.logical_date >= number("date"),
        or_(_run.c.logical_date > number("date"), _run.c.run_no > number("run_no")),
    )
    .order_by(_run.c.logical_date, _run.c.run_no)
    .limit(_one)
)
_STORED_RESULTS = (
    select(tables.result.c.task_no, tables.result.c.start_no)
    .where(
        tables.result.c.task_no >= number("first"),
        tables.result.c.task_no < number("end"),
        tables.result.c.body.is_(None),
    )
    .order_by(tables.result.c.task_no)
)
_chunk = tables.result_chunk
_CHUNK = select(_chunk.c.body).where(
    _chunk.c.task_no == number("task_no"),
    _chunk.c.start_no == number("start_no"),
    _chunk.c.chunk_no == number("chunk_no"),
)
_CHUNKED = (
    select(_chunk.c.task_no, _chunk.c.start_no, _chunk.c.stored_at)
    .where(
        _chunk.c.task_no >= number("first"),
        _chunk.c.task_no < number("end"),
        _chunk.c.chunk_no == literal_column("0"),
    )
    .order_by(_chunk.c.task_no, _chunk.c.start_no)
)
_NEXT_CHUNKED = (
    select(_chunk.c.task_no)
    .where(_chunk.c.task_no >= number("first"))
    .order_by(_chunk.c.task_no)
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
        # A version may have many runs. Each check is one index lookup.
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
    """Return the statement for numbers and timestamps of the rows of a table above a number."""
    table = tables.metadata.tables[name]
    (key,) = table.primary_key
    found = select(key, table.c.at).where(key > number("after"))
    return found.order_by(key).limit(number("limit"))


_DELETIONS = select(tables.deletion).order_by(tables.deletion.c.run_no)
_TRIGGER = (
    select(tables.task_trigger.c.trigger_no)
    .where(tables.task_trigger.c.run_no == number("run_no"))
    .limit(1)
)
_LAST_OUTBOX_NO = select(func.max(tables.outbox.c.outbox_no)).where(
    tables.outbox.c.kind == bindparam("kind", type_=tables.outbox.c.kind.type)
)


@cache
def _keys(name: str) -> Select[Any]:
    """Return the statement for the keys of a run's rows in a table; see ``list_erasable``."""
    table, task = tables.metadata.tables[name], tables.task
    found = select(*table.primary_key).order_by(*table.primary_key).limit(number("limit"))
    if table not in _OF_TASKS:
        return found.where(table.c.run_no == number("run_no"))
    found = found.join_from(task, table, task.c.task_no == table.c.task_no)
    return found.where(task.c.run_no == number("run_no"), task.c.task_no >= number("after"))


class RetentionReader(QueryInterface):
    """The part of a store that finds expired rows, and the remaining rows of deleted runs."""

    async def list_old_runs(
        self, dag_id: str, *, before: Timestamp, after: tuple[Timestamp, RunNo], limit: int
    ) -> list[RunRow]:
        """See ``Store``."""
        ended_at, run_no = after
        cursor = {"ended_at": ended_at, "run_no": run_no}
        return await self._all(
            rows.run_row, _OLD_RUNS, dag_id=dag_id, before=before, limit=limit, **cursor
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

    async def list_deletions(self) -> list[DeletionRow]:
        """See ``Store``."""
        return await self._all(lambda row: DeletionRow(run_no=row[0], at=row[1]), _DELETIONS)

    async def has_triggers(self, run_no: RunNo) -> bool:
        """See ``Store``."""
        return bool(await self._all(tuple, _TRIGGER, run_no=run_no))

    async def last_outbox_no(self, kind: str) -> int | None:
        """See ``Store``."""
        return await self._one(lambda row: cast("int | None", row[0]), _LAST_OUTBOX_NO, kind=kind)

    async def list_stored_results(self, first: TaskNo, end: TaskNo) -> list[tuple[TaskNo, StartNo]]:
        """See ``Store``."""
        keys: list[tuple[TaskNo, StartNo]]
        keys = await self._all(tuple, _STORED_RESULTS, first=first, end=end)
        return keys

    async def find_result_chunk(
        self, task_no: TaskNo, start_no: StartNo, chunk_no: int
    ) -> bytes | None:
        """See ``Store``."""
        key = {"task_no": task_no, "start_no": start_no, "chunk_no": chunk_no}
        return await self._one(lambda row: bytes(row[0]), _CHUNK, **key)

    async def list_chunked_results(
        self, first: TaskNo, end: TaskNo
    ) -> list[tuple[TaskNo, StartNo, Timestamp]]:
        """See ``Store``."""
        found: list[tuple[TaskNo, StartNo, Timestamp]]
        found = await self._all(tuple, _CHUNKED, first=first, end=end)
        return found

    async def next_chunked_task(self, first: TaskNo) -> TaskNo | None:
        """See ``Store``."""
        return await self._one(lambda row: int(row[0]), _NEXT_CHUNKED, first=first)

    async def list_erasable(
        self, table: str, run_no: RunNo, *, after: TaskNo = -1, limit: int = 1000
    ) -> list[tuple[Any, ...]]:
        """See ``Store``."""
        return await self._all(tuple, _keys(table), run_no=run_no, after=after, limit=limit)
