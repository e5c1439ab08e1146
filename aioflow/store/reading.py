"""The queries of a store, shared by both databases, and checks of all stored rows for damage.

References to a missing row of another table are found by the foreign keys of the schema.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from anyio.lowlevel import checkpoint
from sqlalchemy import Column, Select, Table, Text, bindparam, literal_column, select
from sqlalchemy.engine.interfaces import Dialect

from aioflow.crypto import Vault
from aioflow.model.batch import JournalRow
from aioflow.model.dag import ValueKind
from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.rows import (
    DagFileRow,
    DagRow,
    Damage,
    ExpansionRow,
    ItemRow,
    NamedEventRow,
    NamedEventSummary,
    OutboxRow,
    PoolRow,
    RecordRow,
    ResultRow,
    RunRow,
    TaskRow,
    TriggerRow,
    TryRow,
    TryWorkerRow,
    ValueRow,
    VersionRow,
)
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.store import rows, selects, tables
from aioflow.store.accounts import AccessReader, account_row, token_row
from aioflow.store.changes import compiled
from aioflow.store.children import ChildrenReader
from aioflow.store.columns import read_rows, row_checker
from aioflow.store.decisions import DecisionReader
from aioflow.store.history import HistoryReader
from aioflow.store.notes import NoteReader, note_row
from aioflow.store.ownership import OwnershipReader
from aioflow.store.pool_usage import PoolUsageReader
from aioflow.store.query_protocol import PAGE_ROWS, QueryInterface, Question, is_storable, pieces
from aioflow.store.recovery_snapshot import RecoveryReader
from aioflow.store.retention import RetentionReader
from aioflow.store.rows import Damages, mark_damaged, value_row
from aioflow.store.run_causes import BackfillReader, DagTriggerReader, dag_trigger_row
from aioflow.store.run_filters import RunFilterReader
from aioflow.store.selects import whole
from aioflow.store.ui_queries import BrowsingReader

__all__ = (
    "NamedEventReader",
    "Reading",
    "ReferenceReader",
    "damage_in_rows",
    "row_by_key",
)

_DANGLING_SHOWN = 100
"""Maximum number of rows to report for each foreign key."""


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
    """Yield each column that refers to another table, with the column that it refers to."""
    for table in tables.metadata.sorted_tables:
        for column in table.columns:
            for foreign_key in column.foreign_keys:
                yield column, foreign_key.column


def _dangling(referring: Column[Any], referred: Column[Any]) -> Select[Any]:
    """Return the statement for the key and the reference of each row with a dangling reference."""
    key = list(referring.table.primary_key)
    selected = key if referring in key else [*key, referring]
    is_there = select(literal_column("1")).where(referred == referring).exists()
    found = select(*selected).where(referring.is_not(None), ~is_there)
    return found.order_by(*key).limit(literal_column(str(_DANGLING_SHOWN)))


class NamedEventReader(QueryInterface):
    """The part of a store that reads named events."""

    async def list_named_events(
        self, name: str, *, after: int = -1, limit: int = 1000
    ) -> list[NamedEventRow]:
        """See ``Store``."""
        return await self._all(
            rows.named_event_row, selects.NAMED_EVENTS_PAGE, name=name, after=after, limit=limit
        )

    async def latest_named_events(
        self, *, name: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[NamedEventRow]:
        """See ``Store``."""
        page = selects.latest_named_events(of_name=name is not None, before=before is not None)
        return await self._all(rows.named_event_row, page, name=name, before=before, limit=limit)

    async def latest_updates(self, names: Collection[str]) -> dict[str, NamedEventSummary]:
        """See ``Store``."""
        found = await self._each(
            lambda values: NamedEventSummary(*values), selects.latest_of_names, "name", names
        )
        return {one.name: one for one in found}

    async def find_named_event(self, name: str, request: str) -> NamedEventRow | None:
        """See ``Store``."""
        return await self._one(
            rows.named_event_row, selects.NAMED_EVENT_BY_REQUEST, name=name, request=request
        )


_Decode = Callable[[rows.Values], Any]

_DECODERS: Mapping[Table, _Decode] = {
    tables.version: rows.version_row,
    tables.run: rows.run_row,
    tables.task: rows.task_row,
    tables.try_: rows.try_row,
    tables.record: rows.record_row,
    tables.note: note_row,
    tables.outbox: rows.outbox_row,
    tables.account: account_row,
    tables.api_token: token_row,
}
"""Decoders of tables with packed columns. Types and ranges are checked in all tables."""


def damage_in_rows(table: Table, found: Sequence[rows.Values], vault: Vault) -> list[Damage]:
    """Return one damage entry for each damaged row of a table."""
    damages: list[Damage] = []
    read_rows(whole(table), _decoder_of(table, vault), found, lambda one, _: damages.append(one))
    return damages


@cache
def row_by_key(table: Table) -> Select[Any]:
    """Return the statement for the row with the key ``key_0``, ``key_1`` and so on."""
    named = [
        column == bindparam(f"key_{at}", type_=column.type)
        for at, column in enumerate(table.primary_key)
    ]
    return select(table).where(*named)


def _decoder_of(table: Table, vault: Vault) -> _Decode:
    if table is tables.task_trigger:
        return lambda values: rows.trigger_row(values, vault)
    if table is tables.dag_trigger:
        return lambda values: dag_trigger_row(values, vault)
    if table is tables.named_value:
        return lambda values: value_row(values, vault)
    if table is tables.decision:
        return lambda values: rows.decision_row(values, vault)
    return _DECODERS.get(table, tuple)


_MADE_AT_ONCE = 250

Row = TypeVar("Row")


class Reading(
    RecoveryReader,
    OwnershipReader,
    RetentionReader,
    HistoryReader,
    ChildrenReader,
    BackfillReader,
    DagTriggerReader,
    NamedEventReader,
    ReferenceReader,
    AccessReader,
    DecisionReader,
    NoteReader,
    PoolUsageReader,
    BrowsingReader,
    RunFilterReader,
    ABC,
):
    """Runs queries and converts the rows to Structs.

    A subclass for each database fetches the rows.
    """

    def __init__(self, dialect: Dialect, vault: Vault) -> None:
        self._dialect = dialect
        self._vault = vault
        self.damages = Damages()

    # ── runs ────────────────────────────────────────────────────────────────────────────

    async def find_run(self, run_id: str) -> RunRow | None:
        """See ``Store``."""
        return await self._one(rows.run_row, selects.RUN_BY_ID, run_id=run_id)

    async def find_run_by_key(self, dag_id: str, key: str) -> RunRow | None:
        """See ``Store``."""
        return await self._one(rows.run_row, selects.RUN_BY_KEY, dag_id=dag_id, key=key)

    async def find_existing(self, run_ids: Collection[str]) -> list[tuple[RunRow, bool]]:
        """See ``Store``."""
        return await self._each(_run_and_deletion, selects.runs_by_ids, "id", run_ids)

    async def find_existing_by_keys(
        self, dag_id: str, keys: Collection[str]
    ) -> list[tuple[RunRow, bool]]:
        """See ``Store``."""
        return await self._each(_run_and_deletion, selects.runs_by_keys, "key", keys, dag_id=dag_id)

    async def find_runs(self, run_ids: Collection[str]) -> list[RunRow]:
        """See ``Store``."""
        return await self._each(rows.run_row, selects.runs_by_id, "id", run_ids)

    async def find_runs_at(self, dag_id: str, logical_dates: Collection[Timestamp]) -> list[RunRow]:
        """See ``Store``."""
        return await self._each(
            rows.run_row, selects.runs_by_date, "date", logical_dates, dag_id=dag_id
        )

    async def find_runs_before(
        self, dag_id: str, places: Sequence[tuple[Timestamp, RunNo]]
    ) -> list[RunRow | None]:
        """See ``Store``."""
        if not places:
            return []
        found = await self._fetch(
            [
                self._question(selects.RUN_BEFORE, dag_id=dag_id, date=date, run_no=run_no)
                for date, run_no in places
            ]
        )
        before = (self._read(selects.RUN_BEFORE, rows.run_row, row[:1]) for row in found)
        return [row[0] if row else None for row in before]

    async def first_run_ended_since(self, dag_id: str, since: Timestamp) -> RunRow | None:
        """See ``Store``."""
        return await self._one(rows.run_row, selects.FIRST_ENDED_RUN, dag_id=dag_id, since=since)

    async def list_runs(
        self,
        *,
        dag_id: str | None = None,
        state: RunState | None = None,
        limit: int = 100,
        before: RunNo | None = None,
    ) -> list[RunRow]:
        """See ``Store``."""
        page = selects.runs_page(
            of_dag=dag_id is not None,
            in_state=state is not None,
            live=state is not None and state.is_live,
            before=before is not None,
            unsuccessful=state is not None and state > RunState.SUCCESS,
        )
        return await self._all(
            rows.run_row,
            page,
            dag_id=dag_id,
            state=None if state is None else int(state),
            limit=limit,
            before=before,
        )

    async def find_run_no(self, run_no: RunNo) -> RunRow | None:
        """See ``Store``."""
        return await self._one(rows.run_row, selects.RUN_BY_NO, run_no=run_no)

    async def list_outbox(self, kind: str, *, after: int, limit: int) -> list[OutboxRow]:
        """See ``Store``."""
        while True:
            at = {"kind": kind, "after": after, "limit": limit}
            found = await self._all(rows.outbox_row, selects.OUTBOX_PAGE, **at)
            healthy = [row for row in found if row.body]
            if healthy or len(found) < limit:
                return healthy
            after = found[-1].outbox_no  # all rows of this page are damaged

    async def find_clear(self, run_no: RunNo, key: str) -> int | None:
        """See ``Store``."""
        return await self._one(
            lambda row: int(row[2]), selects.CLEAR_BY_KEY, run_no=run_no, key=key
        )

    # ── one run ─────────────────────────────────────────────────────────────────────────

    async def list_tasks_between(
        self, first: TaskNo, end: TaskNo, limit: int = 1000
    ) -> list[TaskRow]:
        """See ``Store``."""
        return await self._all(
            rows.task_row, selects.TASKS_BETWEEN, first=first, end=end, limit=limit
        )

    async def find_tasks(self, task_nos: Collection[TaskNo]) -> list[TaskRow]:
        """See ``Store``."""
        return await self._each(rows.task_row, selects.tasks_by_no, "no", task_nos)

    async def count_states(self, run_no: RunNo) -> list[tuple[int, TaskState, int]]:
        """See ``Store``."""
        return await self._all(
            lambda row: (row[0], TaskState(row[1]), row[2]), selects.STATE_COUNTS, run_no=run_no
        )

    async def list_expansions(self, run_no: RunNo) -> list[ExpansionRow]:
        """See ``Store``."""
        return await self._all(rows.expansion_row, selects.EXPANSIONS, run_no=run_no)

    async def list_expansions_of(self, run_nos: Collection[RunNo]) -> list[ExpansionRow]:
        """See ``Store``."""
        return await self._each(rows.expansion_row, selects.expansions_of, "run_no", run_nos)

    async def list_results(self, first: TaskNo, end: TaskNo, limit: int = 1000) -> list[ResultRow]:
        """See ``Store``."""
        return await self._all(
            rows.result_row, selects.RESULTS_BETWEEN, first=first, end=end, limit=limit
        )

    async def list_labels(self, first: TaskNo, end: TaskNo, limit: int = 1000) -> dict[TaskNo, str]:
        """See ``Store``."""
        return dict(
            await self._all(tuple, selects.LABELS_BETWEEN, first=first, end=end, limit=limit)
        )

    async def list_tries(self, task_no: TaskNo) -> list[TryRow]:
        """See ``Store``."""
        return await self._all(rows.try_row, selects.TRIES, task_no=task_no)

    async def list_try_workers(self, task_no: TaskNo) -> list[TryWorkerRow]:
        """See ``Store``."""
        return await self._all(rows.try_worker_row, selects.TRY_WORKERS, task_no=task_no)

    # ── everything else ─────────────────────────────────────────────────────────────────

    async def list_triggers(self, limit: int = 1000, after: TriggerNo = -1) -> list[TriggerRow]:
        """See ``Store``."""
        return await self._all(self._trigger, selects.TRIGGERS_PAGE, after=after, limit=limit)

    async def list_dags(self) -> list[DagRow]:
        """See ``Store``."""
        return await self._all(rows.dag_row, selects.ALL_DAGS)

    async def list_dag_files(self) -> list[DagFileRow]:
        """See ``Store``."""
        return await self._all(rows.dag_file_row, selects.ALL_DAG_FILES)

    async def list_records(
        self, task_no: TaskNo, after: int = -1, limit: int = 1000
    ) -> list[RecordRow]:
        """See ``Store``."""
        return await self._all(
            rows.record_row, selects.RECORDS_OF_TASK, task_no=task_no, after=after, limit=limit
        )

    async def list_items(
        self, task_no: TaskNo, after: int = -1, limit: int = 1000
    ) -> list[ItemRow]:
        """See ``Store``."""
        return await self._all(
            rows.item_row, selects.ITEMS_OF_TASK, task_no=task_no, after=after, limit=limit
        )

    async def find_value(self, kind: ValueKind, name: str) -> ValueRow | None:
        """See ``Store``."""
        return await self._one(self._value, selects.VALUE, kind=str(kind), name=name)

    async def list_values(self, kind: ValueKind) -> list[ValueRow]:
        """See ``Store``."""
        return await self._all(self._value, selects.VALUES_OF_KIND, kind=str(kind))

    async def list_pools(self) -> list[PoolRow]:
        """See ``Store``."""
        return await self._all(rows.pool_row, selects.ALL_POOLS)

    async def list_needed_versions(self) -> list[VersionRow]:
        """See ``Store``."""
        return await self._all(rows.version_row, selects.NEEDED_VERSIONS)

    async def list_needed_version_names(self) -> list[str]:
        """See ``Store``."""
        return await self._all(lambda row: str(row[0]), selects.NEEDED_VERSION_NAMES)

    async def find_version(self, version: str) -> VersionRow | None:
        """See ``Store``."""
        return await self._one(rows.version_row, selects.VERSION, version=version)

    async def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalRow]:
        """See ``Store``."""
        return await self._all(rows.journal_row, selects.JOURNAL, after=after, limit=limit)

    async def list_damaged(self) -> list[Damage]:
        """See ``Store``."""
        for damage in self.damages.all():
            if not await self._is_damaged(damage):
                self.damages.forget(damage)
        return self.damages.all()

    async def _is_damaged(self, damage: Damage) -> bool:
        """Return whether a row is still damaged; true if its key does not identify one row."""
        key, table = damage.key_values, tables.metadata.tables[damage.table]
        kinds = [str if isinstance(column.type, Text) else int for column in table.primary_key]
        if [type(value) for value in key] != kinds or not all(map(is_storable, key)):
            return True  # the key matches no row
        named = {f"key_{at}": value for at, value in enumerate(key)}
        (found,) = await self._fetch([self._question(row_by_key(table), **named)])
        return bool(damage_in_rows(table, found, self._vault))

    async def find_damage(self) -> list[Damage]:
        """See ``Store``."""
        found: list[Damage] = []
        for table in tables.metadata.sorted_tables:
            async with self._streaming([self._question(selects.whole(table))]) as (fetch,):
                while page := await fetch(PAGE_ROWS):
                    found += damage_in_rows(table, page, self._vault)
        return found

    async def scan(self, tables: Sequence[Table]) -> list[Sequence[rows.Values]]:
        """See ``Store``."""
        return await self._fetch([self._question(selects.whole(table)) for table in tables])

    # ── execution ───────────────────────────────────────────────────────────────────────

    def _question(self, statement: Select[Any], **values: Any) -> Question:
        ready = compiled(statement, self._dialect)
        return ready.sql, ready.placed(values)

    async def _all(
        self, made: Callable[[rows.Values], Row], statement: Select[Any], **values: Any
    ) -> list[Row]:
        if not all(map(is_storable, values.values())):
            return []  # a value that no column can store matches no row
        (found,) = await self._fetch([self._question(statement, **values)])
        made_of: list[Row] = []
        for first in range(0, len(found), _MADE_AT_ONCE):
            if first:
                await checkpoint()  # decrypting a thousand rows takes a while
            made_of += self._read(statement, made, found[first : first + _MADE_AT_ONCE])
        return made_of

    def _read(
        self, statement: Select[Any], made: Callable[[rows.Values], Row], found: Sequence[Any]
    ) -> list[Row]:
        return read_rows(statement, made, found, self._marked)

    def _marked(self, damage: Damage, row: Row | None) -> Row | None:
        self.damages.note(damage)
        return mark_damaged(damage, row)

    async def _each(
        self,
        made: Callable[[rows.Values], Row],
        statement: Callable[[int], Select[Any]],
        name: str,
        wanted: Collection[object],
        **values: Any,
    ) -> list[Row]:
        if not all(map(is_storable, values.values())):
            return []
        keys = [(value,) for value in wanted]
        return await self._each_of(made, statement, (name,), keys, **values)

    async def _each_of(
        self,
        made: Callable[[rows.Values], Row],
        statement: Callable[[int], Select[Any]],
        names: Sequence[str],
        wanted: Iterable[tuple[object, ...]],
        **values: Any,
    ) -> list[Row]:
        found: list[Row] = []
        for width, named in pieces(names, wanted):
            (of_piece,) = await self._fetch([self._question(statement(width), **named, **values)])
            found += self._read(statement(width), made, of_piece)
        return found

    def _trigger(self, values: rows.Values) -> TriggerRow:
        return rows.trigger_row(values, self._vault)

    def _value(self, values: rows.Values) -> ValueRow:
        return value_row(values, self._vault)


def _run_and_deletion(values: rows.Values) -> tuple[RunRow, bool]:
    return rows.run_row(values), bool(values[-1])
