"""Look-ups in the store for children: results, recorded calls, named events, and declared values.

The items and bytes of a page are limited. A child may read only those secrets, connections and
variables that it declares.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from aioflow.model.dag import TaskSpec, ValueKind
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import (
    DagRow,
    ExpansionRow,
    ItemRow,
    NamedEventRow,
    RecordRow,
    ResultRow,
    RunRow,
    TaskRow,
    ValueRow,
    VersionRow,
)
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import RunInfo
from aioflow.redaction import Masks, secret_texts
from aioflow.worker.query.messages import (
    PAGE_BYTES,
    PAGE_ITEMS,
    EventItem,
    EventsPage,
    EventsWanted,
    RecordItem,
    RecordsPage,
    RecordsWanted,
    ResultsPage,
    ResultsWanted,
    ValuesFound,
    ValuesWanted,
    asked_alone,
)

__all__ = (
    "Reader",
    "Refused",
    "find_expansion",
    "read_events",
    "read_records",
    "read_results",
    "read_values",
)

_RECORD_BYTES = 200

ITEMS_BYTES = 128 * 1024
"""If a child requests one item, the reply also contains the items after it, up to this size."""

RECORDS_PIECE = 8
"""Number of records per read; one record may have 1 MiB."""

RESULTS_PIECE = 64
"""Number of results in the first read of a page. One result may have 64 KiB. If the first results
are small, later reads are larger."""


class Refused(Exception):
    """The query can never be answered."""


class Reader(Protocol):
    """The methods of the store that are used here; see ``aioflow.store.Store``."""

    async def find_runs(self, run_ids: Collection[str]) -> list[RunRow]:
        """See ``Store``."""

    async def find_runs_at(self, dag_id: str, logical_dates: Collection[Timestamp]) -> list[RunRow]:
        """See ``Store``."""

    async def first_run_ended_since(self, dag_id: str, since: Timestamp) -> RunRow | None:
        """See ``Store``."""

    async def list_dags(self) -> list[DagRow]:
        """See ``Store``."""

    async def find_version(self, version: str) -> VersionRow | None:
        """See ``Store``."""

    async def list_needed_versions(self) -> list[VersionRow]:
        """See ``Store``."""

    async def list_expansions(self, run_no: RunNo) -> list[ExpansionRow]:
        """See ``Store``."""

    async def count_states(self, run_no: RunNo) -> list[tuple[int, TaskState, int]]:
        """See ``Store``."""

    async def list_tasks_between(
        self, first: TaskNo, end: TaskNo, limit: int = 1000
    ) -> list[TaskRow]:
        """See ``Store``."""

    async def find_tasks(self, task_nos: Collection[TaskNo]) -> list[TaskRow]:
        """See ``Store``."""

    async def list_records(
        self, task_no: TaskNo, after: int = -1, limit: int = 1000
    ) -> list[RecordRow]:
        """See ``Store``."""

    async def list_named_events(
        self, name: str, *, after: int = -1, limit: int = 1000
    ) -> list[NamedEventRow]:
        """See ``Store``."""

    async def find_value(self, kind: ValueKind, name: str) -> ValueRow | None:
        """See ``Store``."""

    async def list_items(
        self, task_no: TaskNo, after: int = -1, limit: int = 1000
    ) -> list[ItemRow]:
        """See ``Store``."""

    async def list_results(self, first: TaskNo, end: TaskNo, limit: int = 1000) -> list[ResultRow]:
        """See ``Store``."""


async def find_expansion(store: Reader, run_no: RunNo, task_index: int) -> ExpansionRow | None:
    """Return the expansion of a mapped task of a run; ``None`` if it has not been expanded."""
    rows = await store.list_expansions(run_no)
    return next((row for row in rows if row.task_index == task_index), None)


async def read_records(store: Reader, info: RunInfo, wanted: RecordsWanted) -> RecordsPage:
    """Return the task's recorded calls after ``wanted.after``, if the task is in this run."""
    after, piece, size = wanted.after, RECORDS_PIECE, 0
    items: list[RecordItem] = []
    while size < PAGE_BYTES:
        rows = await store.list_records(wanted.task_no, after, piece)
        mine = [row for row in rows if row.run_no == info.run_no]
        items += [RecordItem(r.kind, r.name, r.source_location, r.answer, r.failure) for r in mine]
        if len(rows) < piece:
            return RecordsPage(items, more=False)
        after = rows[-1].ordinal
        size += sum(len(row.answer or b"") + _RECORD_BYTES for row in rows)
    return RecordsPage(items, more=True)


async def read_items(store: Reader, info: RunInfo, wanted: ResultsWanted) -> ResultsPage:
    """Return the task's items after ``wanted.after``, if the task is in this run."""
    task_no, after, piece, size = ~wanted.task_index, wanted.after, 1, 0
    page = ResultsPage(-1, [], [], after, more=True)
    while size < ITEMS_BYTES:
        rows = await store.list_items(task_no, after, piece)
        mine = [row for row in rows if row.run_no == info.run_no]
        page.items.extend((row.item_index, task_no, 0, row.payload) for row in mine)
        after = rows[-1].item_index if rows else after
        if len(rows) < piece:
            return msgspec.structs.replace(page, last=after, more=False)
        piece = RECORDS_PIECE
        size += sum(len(row.payload) + _RECORD_BYTES for row in rows)
    return msgspec.structs.replace(page, last=after)


async def read_results(store: Reader, info: RunInfo, wanted: ResultsWanted) -> ResultsPage:
    """Return the page of a parent's results after ``wanted.after``."""
    if wanted.task_index < 0:
        return await read_items(store, info, wanted)
    expansion = await find_expansion(store, info.run_no, wanted.task_index)
    if expansion is None or not expansion.width:
        page = ResultsPage(-1, [], [], -1, more=False)
        if wanted.after != -2:
            return page
        # Treat the parent's own row as child -1 of children that begin right after the row.
        return await _fill_page(store, page, info.first_task_no + wanted.task_index + 1, -1, 0)
    alone = asked_alone(wanted.after)
    first = max(wanted.after + 1, 0) if alone < 0 else min(alone, expansion.width)
    end = min(first + (PAGE_ITEMS if alone < 0 else 1), expansion.width)
    page = ResultsPage(expansion.width, [], [], first - 1, more=False)
    return await _fill_page(store, page, expansion.first_task_no, first, end)


async def _fill_page(
    store: Reader, page: ResultsPage, first_task_no: TaskNo, first: int, end: int
) -> ResultsPage:
    """Return a page that begins at map index ``first``, with as many results as it may contain."""
    rows = await store.list_tasks_between(first_task_no + first, first_task_no + end, PAGE_ITEMS)
    by_no = {row.task_no: row for row in rows}
    size, piece, at = 0, RESULTS_PIECE, first
    while at < end and size < PAGE_BYTES:
        until = min(at + piece, end)
        found = await store.list_results(first_task_no + at, first_task_no + until, until - at)
        results = {row.task_no: row for row in found}
        for index in range(at, until):
            task_no = first_task_no + index
            row = by_no.get(task_no)
            if row is not None:
                _put_result(page, index, row, results.get(task_no))
        size += sum(len(row.body or b"") for row in found)
        piece = PAGE_ITEMS if size < PAGE_BYTES // 16 else RESULTS_PIECE
        at = until
    return msgspec.structs.replace(page, last=at - 1, more=at < page.width)


def _put_result(page: ResultsPage, index: int, row: TaskRow, result: ResultRow | None) -> None:
    if row.state is TaskState.SUCCESS:
        start_no, body = (0, None) if result is None else (result.start_no, result.body)
        page.items.append((index, row.task_no, start_no, body))
    elif not row.state.is_live:
        page.failed.append((index, row.state, row.failure))


EVENTS_PIECE = 4
"""Number of events in the first read of a page. One event may have 1 MiB. If the first events are
small, later reads are larger."""


async def read_events(store: Reader, wanted: EventsWanted) -> EventsPage | None:
    """Return a page of the named events after ``wanted.after``; ``None`` if there are none yet."""
    items: list[EventItem] = []
    last, size, piece = wanted.after, 0, EVENTS_PIECE
    while len(items) < PAGE_ITEMS and size < PAGE_BYTES:
        rows = await store.list_named_events(wanted.name, after=last, limit=piece)
        wished = [row for row in rows if wanted.until is None or row.event_no <= wanted.until]
        items += [EventItem(row.event_no, row.key, row.data) for row in wished]
        size += sum(len(row.data) for row in wished)
        last = wished[-1].event_no if wished else last
        if len(wished) < piece:
            if wanted.until is not None:
                last = max(last, wanted.until)
            break
        piece = min(4 * piece, PAGE_ITEMS - len(items)) if size < PAGE_BYTES // 16 else EVENTS_PIECE
    return EventsPage(items, last) if items or wanted.until is not None else None


async def read_values(
    store: Reader, task: TaskSpec | None, wanted: ValuesWanted, masks: Masks
) -> ValuesFound:
    """Return the values for a task, or for a trigger if ``task`` is ``None``.

    From now on, the values are masked in output.

    Raises:
        Refused: If a value is not declared, does not exist, or cannot be decrypted.
    """
    found = []
    for kind, name in wanted.names:
        if task is not None and (kind, name) not in task.values:
            raise Refused(f"task {task.task_id!r} does not declare {kind} {name!r}")
        row = await store.find_value(kind, name)
        if row is None:
            raise Refused(f"there is no {kind} {name!r}; set it: aioflow {kind}s set {name}")
        if row.value is None:
            raise Refused(f"no key of this home can decrypt {kind} {name!r}; set it again")
        masks.hide(secret_texts(kind, name, msgspec.msgpack.decode(row.value)))
        found.append(row.value)
    return ValuesFound(tuple(found))
