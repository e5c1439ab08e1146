"""Deletion of runs: the remaining rows of a run, and the rows that a batch deletes.

A run is first entered in ``deletion``, which hides it from all reads. Its rows are then deleted by
key, a slice at a time, referring rows before those they refer to. The last to be deleted are the
row of the run and its entry in ``deletion``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

from sqlalchemy import BigInteger, Select, Table, bindparam, func, select

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import DeletionRow
from aioflow.store import TABLES_OF_RUNS, tables
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.tables import audit

__all__ = ("AGED", "ERASED", "ErasingReader", "deletions", "erased", "not_deleted")

ERASED: tuple[Table, ...] = tuple(tables.metadata.tables[name] for name in TABLES_OF_RUNS)
"""See ``TABLES_OF_RUNS``."""

AGED: tuple[Table, ...] = (tables.named_event, tables.dag_event, tables.journal, audit)
"""Tables whose old rows are deleted by number, independent of runs."""

_TABLES = {table.name: table for table in ERASED}
_OF_TASKS = frozenset({tables.try_, tables.result, tables.map_label})
"""Tables without an index on the run. Their rows are found through tasks."""

not_deleted = tables.run.c.run_no.not_in(select(tables.deletion.c.run_no))

_DELETIONS = select(tables.deletion).order_by(tables.deletion.c.run_no)
_TRIGGER = select(tables.task_trigger.c.trigger_no).where(
    tables.task_trigger.c.run_no == bindparam("run_no", type_=BigInteger())
)

_LAST_OUTBOX_NO = select(func.max(tables.outbox.c.outbox_no)).where(
    tables.outbox.c.kind == bindparam("kind", type_=tables.outbox.c.kind.type)
)


def deletions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the runs to hide from now on."""
    return [(row.run_no, row.at) for row in batch.new_deletions]


def erased(table: Table) -> Callable[[Batch, Vault], list[tuple[Any, ...]]]:
    """Return a function that lists the keys of the rows to delete from a table."""

    def keys(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
        return [tuple(key) for key in batch.erased.get(table.name, ())]

    return keys


@cache
def _keys(table: Table) -> Select[Any]:
    """Return the statement for keys that a run has in a table, for some tables from a task on."""
    number = bindparam("run_no", type_=BigInteger())
    found = select(*table.primary_key).order_by(*table.primary_key)
    found = found.limit(bindparam("limit", type_=BigInteger()))
    if table not in _OF_TASKS:
        return found.where(table.c.run_no == number)
    task = tables.task
    after = bindparam("after", type_=BigInteger())
    found = found.join_from(task, table, task.c.task_no == table.c.task_no)
    return found.where(task.c.run_no == number, task.c.task_no >= after)


class ErasingReader(QueryInterface):
    """The part of a store that finds the remaining rows of runs being deleted."""

    async def list_deletions(self) -> list[DeletionRow]:
        """See ``Store``."""
        return await self._all(lambda row: DeletionRow(run_no=row[0], at=row[1]), _DELETIONS)

    async def has_triggers(self, run_no: RunNo) -> bool:
        """See ``Store``."""
        return bool(await self._all(tuple, _TRIGGER.limit(1), run_no=run_no))

    async def last_outbox_no(self, kind: str) -> int | None:
        """See ``Store``."""
        return await self._one(lambda row: cast("int | None", row[0]), _LAST_OUTBOX_NO, kind=kind)

    async def list_erasable(
        self, table: str, run_no: RunNo, *, after: TaskNo = -1, limit: int = 1000
    ) -> list[tuple[Any, ...]]:
        """See ``Store``."""
        found = _keys(_TABLES[table])
        return await self._all(tuple, found, run_no=run_no, after=after, limit=limit)
