"""The reading half of a store, the same for both databases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

from anyio.lowlevel import checkpoint
from msgspec.structs import replace
from sqlalchemy import Select, Table
from sqlalchemy.engine.interfaces import Dialect

from aioflow.model import Instant, RunNo, RunState, TaskNo, TaskState, TriggerNo, ValueKind
from aioflow.rows import (
    DagFileRow,
    DagRow,
    ExpansionRow,
    ItemRow,
    JournalRow,
    OutboxRow,
    PoolRow,
    RecordRow,
    ResultRow,
    RunRow,
    TaskRow,
    TriggerRow,
    TryRow,
    ValueRow,
    VersionRow,
)
from aioflow.secrets import Vault
from aioflow.store import rows, selects
from aioflow.store.access import ADMITTED, AccessReader, admitted
from aioflow.store.aging import AgingReader
from aioflow.store.asking import is_storable, pieces
from aioflow.store.backfills import RUNNING_BACKFILLS, BackfillReader
from aioflow.store.browsing import BrowsingReader
from aioflow.store.dag_rows import (
    ALL_DAG_TRIGGERS,
    HELD_EVENTS,
    DagTriggerReader,
    dag_event_row,
    dag_trigger_row,
)
from aioflow.store.erasing import ErasingReader
from aioflow.store.event_reading import EventReader
from aioflow.store.holding import HoldingReader
from aioflow.store.in_order import PAGE_ROWS, Fetch, OfRuns, everything
from aioflow.store.sql import compiled
from aioflow.store.values import value_row
from aioflow.unfinished import LiveRun, Progress, Snapshot, Unfinished

__all__ = ("Question", "Reading")

_MADE_AT_ONCE = 250

Question: TypeAlias = tuple[str, tuple[Any, ...]]
"""SQL and its parameters, in order."""

Row = TypeVar("Row")

_WHOLE = (
    selects.ALL_DAGS,
    selects.ALL_DAG_FILES,
    selects.NEEDED_VERSIONS,
    selects.ALL_POOLS,
    selects.KEPT_OUTBOX,
    selects.OWED_COUNTS,
    ALL_DAG_TRIGGERS,
    HELD_EVENTS,
    RUNNING_BACKFILLS,
    selects.ALL_DRAINED,
    *ADMITTED,
    selects.LIVE_RUNS,
)
_OF_LIVE_RUNS = (
    selects.LIVE_TASKS,
    selects.LIVE_EXPANSIONS,
    selects.LIVE_WIDTHS,
    selects.ALL_TRIGGERS,
    selects.LIVE_PROGRESS,
    selects.LIVE_EVENTS,
    selects.LIVE_ITEMS,
)
_OF_ONE_RUN = (
    selects.RUN_BY_NO,
    selects.TASKS_OF_RUN,
    selects.EXPANSIONS,
    selects.WIDTHS_OF_RUN,
    selects.TRIGGERS_OF_RUN,
    selects.PROGRESS_OF_RUN,
    selects.EVENTS_OF_RUN,
    selects.ITEMS_OF_RUN,
)
_RUN_COLUMNS = (1, 0, 0, 2, 0, 2, 0)
"""Where the number of the run stands in the answers to ``_OF_LIVE_RUNS``."""
_TRIGGERS = 3  # which of those are the triggers


class Reading(
    HoldingReader,
    ErasingReader,
    AgingReader,
    BackfillReader,
    DagTriggerReader,
    EventReader,
    AccessReader,
    BrowsingReader,
    ABC,
):
    """Asks for rows and makes Structs of them; how they are fetched is the backend's."""

    def __init__(self, dialect: Dialect, vault: Vault) -> None:
        self._dialect = dialect
        self._vault = vault

    @abstractmethod
    async def _fetch(self, questions: Sequence[Question]) -> list[Sequence[rows.Values]]:
        """Return the answers of all questions as of one moment, on a connection for reading."""

    @abstractmethod
    def _streaming(self, questions: Sequence[Question]) -> AbstractAsyncContextManager[list[Fetch]]:
        """Return the answers of all questions as of one moment, a page at a time."""

    @asynccontextmanager
    async def unfinished(self) -> AsyncIterator[AsyncIterator[Unfinished]]:
        """See ``Store``."""
        questions = [self._question(statement) for statement in (*_WHOLE, *_OF_LIVE_RUNS)]
        async with self._streaming(questions) as fetches:
            yield self._unfinished(fetches)

    async def _unfinished(self, fetches: Sequence[Fetch]) -> AsyncIterator[Unfinished]:
        *of_all, runs = fetches[: len(_WHOLE)]
        whole = [await everything(fetch) for fetch in of_all]
        dags, dag_files, versions, pools, outbox, owed, of_dags, held, backfills, *more = whole
        drained, *people = more
        yield Snapshot(
            dags=[rows.dag_row(row) for row in dags],
            dag_files=[rows.dag_file_row(row) for row in dag_files],
            versions=[rows.version_row(row) for row in versions],
            runs=[],
            pools=[rows.pool_row(row) for row in pools],
            outbox=[rows.outbox_row(row) for row in outbox],
            owed={kind: (count, first) for kind, count, first in owed},
            dag_triggers=[dag_trigger_row(row, self._vault) for row in of_dags],
            held_events=[dag_event_row(row) for row in held],
            backfills=[rows.backfill_row(row) for row in backfills],
            drained=[node_no for node_no, _ in drained],
            **admitted(people, self._vault),
        )
        parts = [
            OfRuns(fetch, column)
            for fetch, column in zip(fetches[len(_WHOLE) :], _RUN_COLUMNS, strict=True)
        ]
        triggers = parts[_TRIGGERS]
        while found := await runs(PAGE_ROWS):
            for run in map(rows.run_row, found):
                while strays := await triggers.before(run.run_no):
                    for values in strays:
                        yield self._trigger(values)
                async for piece in self._pieces(run, parts):
                    yield piece
        while strays := await triggers.before(None):
            for values in strays:
                yield self._trigger(values)

    async def _pieces(self, run: RunRow, parts: Sequence[OfRuns]) -> AsyncIterator[LiveRun]:
        """Yield one run: whole if it is small, else a page of its tasks or triggers at a time."""
        number = run.run_no
        tasks, expansions, widths, triggers, progress, events, items = parts
        head = LiveRun(
            run=run,
            tasks=[],
            expansions=[rows.expansion_row(row) for row in await expansions.all_of(number)],
            widths=[(task_no, width) for _, task_no, width in await widths.all_of(number)],
            triggers=[],
            progress=[_progress(values) for _, *values in await progress.all_of(number)],
            events=[rows.event_row(row) for row in await events.all_of(number)],
            items=[(task_no, count) for _, task_no, count in await items.all_of(number)],
            is_whole=False,
        )
        some = await tasks.of(number)
        while more := await tasks.of(number):
            yield replace(head, tasks=[rows.task_row(row) for row in some])
            some = more
        waits = await triggers.of(number)
        last = replace(head, tasks=[rows.task_row(row) for row in some])
        while more := await triggers.of(number):
            yield replace(last, triggers=[self._trigger(row) for row in waits])
            last, waits = head, more
        yield replace(last, triggers=[self._trigger(row) for row in waits], is_whole=True)

    async def load_run(self, run_no: RunNo) -> LiveRun | None:
        """See ``Store``."""
        found, tasks, expansions, widths, triggers, progress, events, items = await self._fetch(
            [self._question(statement, run_no=run_no) for statement in _OF_ONE_RUN]
        )
        if not found:
            return None
        return LiveRun(
            run=rows.run_row(found[0]),
            tasks=[rows.task_row(row) for row in tasks],
            expansions=[rows.expansion_row(row) for row in expansions],
            widths=[(task_no, width) for _, task_no, width in widths],
            triggers=[self._trigger(row) for row in triggers],
            progress=[_progress(values) for _, *values in progress],
            events=[rows.event_row(row) for row in events],
            items=[(task_no, count) for _, task_no, count in items],
        )

    @asynccontextmanager
    async def pieces_of_run(self, run_no: RunNo) -> AsyncIterator[AsyncIterator[LiveRun]]:
        """See ``Store``."""
        questions = [self._question(statement, run_no=run_no) for statement in _OF_ONE_RUN]
        async with self._streaming(questions) as (found, *fetches):
            parts = list(map(OfRuns, fetches, _RUN_COLUMNS))
            yield self._of_runs(await found(PAGE_ROWS), parts)

    async def _of_runs(
        self, found: Sequence[rows.Values], parts: Sequence[OfRuns]
    ) -> AsyncIterator[LiveRun]:
        for run in map(rows.run_row, found):
            async for piece in self._pieces(run, parts):
                yield piece

    # ── runs ────────────────────────────────────────────────────────────────────────────

    async def find_run(self, run_id: str) -> RunRow | None:
        """See ``Store``."""
        return await self._one(rows.run_row, selects.RUN_BY_ID, run_id=run_id)

    async def find_run_by_key(self, dag_id: str, key: str) -> RunRow | None:
        """See ``Store``."""
        return await self._one(rows.run_row, selects.RUN_BY_KEY, dag_id=dag_id, key=key)

    async def find_taken(self, run_ids: Collection[str]) -> list[tuple[RunRow, bool]]:
        """See ``Store``."""
        return await self._each(_taken, selects.taken_ids, "id", run_ids)

    async def find_taken_keys(
        self, dag_id: str, keys: Collection[str]
    ) -> list[tuple[RunRow, bool]]:
        """See ``Store``."""
        return await self._each(_taken, selects.taken_keys, "key", keys, dag_id=dag_id)

    async def find_runs(self, run_ids: Collection[str]) -> list[RunRow]:
        """See ``Store``."""
        return await self._each(rows.run_row, selects.runs_by_id, "id", run_ids)

    async def find_runs_at(self, dag_id: str, logical_dates: Collection[Instant]) -> list[RunRow]:
        """See ``Store``."""
        return await self._each(
            rows.run_row, selects.runs_by_date, "date", logical_dates, dag_id=dag_id
        )

    async def find_runs_before(
        self, dag_id: str, places: Sequence[tuple[Instant, RunNo]]
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
        return [rows.run_row(row[0]) if row else None for row in found]

    async def latest_ended_run(self, dag_id: str, since: Instant) -> RunRow | None:
        """See ``Store``."""
        return await self._one(rows.run_row, selects.ENDED_RUN, dag_id=dag_id, since=since)

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

    async def list_owed(self, kind: str, *, after: int, limit: int) -> list[OutboxRow]:
        """See ``Store``."""
        at = {"kind": kind, "after": after, "limit": limit}
        return await self._all(rows.outbox_row, selects.OWED_PAGE, **at)

    async def find_clear(self, run_no: RunNo, key: str) -> int | None:
        """See ``Store``."""
        return await self._one(
            lambda row: int(row[2]), selects.CLEAR_BY_KEY, run_no=run_no, key=key
        )

    # ── of one run ──────────────────────────────────────────────────────────────────────

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

    # ── the rest ────────────────────────────────────────────────────────────────────────

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

    async def find_version(self, version: str) -> VersionRow | None:
        """See ``Store``."""
        return await self._one(rows.version_row, selects.VERSION, version=version)

    async def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalRow]:
        """See ``Store``."""
        return await self._all(rows.journal_row, selects.JOURNAL, after=after, limit=limit)

    async def scan(self, tables: Sequence[Table]) -> list[Sequence[rows.Values]]:
        """See ``Store``."""
        return await self._fetch([self._question(selects.whole(table)) for table in tables])

    # ── how ─────────────────────────────────────────────────────────────────────────────

    def _question(self, statement: Select[Any], **values: Any) -> Question:
        ready = compiled(statement, self._dialect)
        return ready.sql, ready.placed(values)

    async def _all(
        self, made: Callable[[rows.Values], Row], statement: Select[Any], **values: Any
    ) -> list[Row]:
        if not all(map(is_storable, values.values())):
            return []  # what no row can hold matches none
        (found,) = await self._fetch([self._question(statement, **values)])
        made_of: list[Row] = []
        for first in range(0, len(found), _MADE_AT_ONCE):
            if first:
                await checkpoint()  # a thousand rows to be unsealed take a while
            made_of += map(made, found[first : first + _MADE_AT_ONCE])
        return made_of

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
            found += map(made, of_piece)
        return found

    def _trigger(self, values: rows.Values) -> TriggerRow:
        return rows.trigger_row(values, self._vault)

    def _value(self, values: rows.Values) -> ValueRow:
        return value_row(values, self._vault)


def _taken(values: rows.Values) -> tuple[RunRow, bool]:
    return rows.run_row(values), bool(values[-1])


def _progress(values: Sequence[Any]) -> Progress:
    task_no, count, first_failed, open_kind, open_name = values
    first = -1 if first_failed is None else first_failed
    return Progress(task_no, count, first, open_kind or "", open_name or "")
