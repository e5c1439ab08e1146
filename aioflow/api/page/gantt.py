"""The data of the Gantt chart, which shows how the tasks of a run spent their time.

A try that has ended has a row, unless it was the first try and succeeded. A wait that has ended has
no row. Time spans without a row are read from the journal, which has the time of each state change.
If the journal no longer covers the run, or is too long, waits that have ended are shown as running
time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import msgspec

from aioflow._threads import in_thread
from aioflow.api.page.schemas import SpannedView, SpanView
from aioflow.api.paging import Page, decode_cursor, page_of
from aioflow.api.queries import RunReader
from aioflow.api.schemas import TaskView, instant, iso
from aioflow.api.task_instances import RunLayout, TaskLocation
from aioflow.model.batch import JournalRow
from aioflow.model.ids import TaskNo
from aioflow.model.rows import RunRow, TaskRow, TryRow
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.store import Store
from aioflow.store.journal import steps_of, unpacked

__all__ = (
    "StateChanges",
    "first_commit_at",
    "gantt",
    "read_state_changes",
)

StateChanges: TypeAlias = dict[TaskNo, list[tuple[Timestamp, TaskState]]]

_JOURNAL_COMMITS = 2_000
_JOURNAL_COMMITS_AT_ONCE = 10
_JOURNAL_BYTES = 16 * 1024 * 1024
"""Maximum size of the unpacked journal data that is read for one response."""


async def read_state_changes(
    store: Store, run: RunRow, task_nos: Collection[TaskNo]
) -> StateChanges | None:
    """Return state changes of a run's tasks; ``None`` if its journal was deleted or is too long."""
    after = await first_commit_at(store, run.created_at)
    if after is None:
        return None
    of = frozenset(task_nos)
    found: StateChanges = {}
    commits = size = 0
    while True:
        rows = await store.read_journal(after, limit=_JOURNAL_COMMITS_AT_ONCE)
        until = run.ended_at
        wanted = [row for row in rows if until is None or row.at <= until]
        size += await in_thread(_take_all, wanted, of, found, _JOURNAL_BYTES - size)
        if size > _JOURNAL_BYTES:
            return None
        commits += len(wanted)
        if len(wanted) < _JOURNAL_COMMITS_AT_ONCE:
            return found
        if commits >= _JOURNAL_COMMITS:
            return None
        after = rows[-1].seq


async def first_commit_at(store: Store, at: Timestamp) -> int | None:
    """Find the first commit at or after a timestamp by binary search. Return its ``seq`` minus 1.

    Return ``None`` if commits since then have been deleted. The search relies on timestamps that
    increase with ``seq``, which is true unless a clock was set back.
    """
    oldest = await store.oldest_commit()
    if oldest is None:
        return None
    low, high = oldest, await store.newest_commit() or oldest
    first = await store.read_journal(oldest - 1, limit=1)
    if not first or (oldest > 1 and first[0].at > at):
        return None  # the journal no longer reaches back that far
    while low < high:
        middle = (low + high) // 2
        found = await store.read_journal(middle - 1, limit=1)
        if found and found[0].at < at:
            low = found[0].seq + 1
        else:
            high = middle
    return low - 1


def _take_all(
    rows: Sequence[JournalRow], task_nos: Collection[TaskNo], found: StateChanges, max_bytes: int
) -> int:
    """Collect the state changes of commits until they exceed ``max_bytes``. Return their size."""
    size = 0
    for row in rows:
        size += _take(row, task_nos, found)
        if size > max_bytes:
            break
    return size


def _take(row: JournalRow, task_nos: Collection[TaskNo], found: StateChanges) -> int:
    """Collect the state changes of one commit. Return its size in bytes."""
    try:
        packed = unpacked(row.body)
        if len(packed) > _JOURNAL_BYTES:
            return len(packed)
        steps = steps_of(packed)
    except ValueError:
        return len(row.body)  # `aioflow db check` reports the damaged row
    for task_no, state in steps:
        if task_no in task_nos:
            found.setdefault(task_no, []).append((row.at, TaskState(state)))
    return len(packed)


_SPAN_KINDS = {
    TaskState.QUEUED: "queued",
    TaskState.RUNNING: "running",
    TaskState.SENSING: "waiting",
    TaskState.DEFERRED: "waiting",
    TaskState.RETRYING: "retrying",
}


async def gantt(
    reader: RunReader, run_id: str, *, offset: int, limit: int, cursor: str | None = None
) -> Page[SpannedView]:
    """Return the time spans of one page of a run's tasks."""
    run = await reader.run(run_id)
    layout = await reader.layout(run)
    if cursor is not None:
        task_index, map_index = decode_cursor("gantt", cursor, (int, int))
        offset += layout.after(int(task_index), int(map_index))
    page = page_of(
        "gantt",
        layout.page(offset, limit + 1),
        limit,
        lambda one: (one.task_index, one.map_index),
    )
    locations = page.items
    views = await reader.tasks_at(run, layout, locations)
    rows: dict[TaskNo, TaskRow] = {}
    tries: defaultdict[TaskNo, list[TryRow]] = defaultdict(list)
    for first, end in layout.ranges(locations, limit):
        found = await reader.store.list_tasks_between(first, end, limit=end - first)
        rows.update((row.task_no, row) for row in found)
        for row in await reader.store.list_tries_between(first, end, limit=4 * limit):
            tries[row.task_no].append(row)
    steps = await read_state_changes(
        reader.store, run, {location.task_no for location in locations}
    )
    ready_at = await _children_ready_at(reader, run, layout, locations)
    spanned = [
        _with_queue(
            _spanned(view, location, rows, tries.get(location.task_no, []), steps),
            ready_at.get(location.task_index),
        )
        for view, location in zip(views, locations, strict=True)
    ]
    return Page(spanned, page.next)


async def _children_ready_at(
    reader: RunReader, run: RunRow, layout: RunLayout, locations: Sequence[TaskLocation]
) -> dict[int, Timestamp]:
    """Return for each mapped task the time at which its last parent ended.

    No child waits for longer than since that time. Children have no row before they start, so the
    time in the queue is derived from the parents. Tasks with mapped parents or ``depends_on_past``
    are left out, because their children become ready one by one.
    """
    tasks = layout.spec.tasks
    mapped = {
        index
        for index in {one.task_index for one in locations if one.map_index >= 0}
        if not tasks[index].depends_on_past
        and not layout.is_in_loop(index)
        and all(tasks[parent].mapped is None for parent in tasks[index].parents)
    }
    parents = {parent for index in mapped for parent in tasks[index].parents}
    found = [one for parent in sorted(parents) if (one := layout.locate(parent, -1)) is not None]
    views = await reader.tasks_at(run, layout, found)
    ended = {
        one.task_index: instant(view.ended_at, "ended_at")
        for one, view in zip(found, views, strict=True)
        if view.ended_at is not None
    }
    return {
        index: max(ended[parent] for parent in tasks[index].parents)
        for index in mapped
        if tasks[index].parents and ended.keys() >= set(tasks[index].parents)
    }


def _with_queue(spanned: SpannedView, ready_at: Timestamp | None) -> SpannedView:
    """Add the time in the queue before the first span, unless there is already a span for it."""
    first = spanned.spans[0] if spanned.spans else None
    if ready_at is None or first is None or first.kind == "queued" or first.start is None:
        return spanned
    began = instant(first.start, "from")
    if ready_at >= began:
        return spanned
    spans = [_span("queued", ready_at, began), *spanned.spans]
    return msgspec.structs.replace(spanned, spans=spans)


def _spanned(
    view: TaskView,
    location: TaskLocation,
    rows: Mapping[TaskNo, TaskRow],
    tries: Sequence[TryRow],
    steps: StateChanges | None,
) -> SpannedView:
    row = rows.get(location.task_no)
    told = [] if steps is None else steps.get(location.task_no, [])
    if told:
        spans = _ended_with(row, _spans_from_journal(told))
    elif row is None:
        spans = []
    else:
        spans = _spans_from_rows(row, tries, view)
    return SpannedView(
        task_id=view.task_id,
        map_index=view.map_index,
        round=view.round,
        map_label=view.map_label,
        state=view.state,
        spans=spans,
    )


def _spans_from_journal(steps: Sequence[tuple[Timestamp, TaskState]]) -> list[SpanView]:
    """Convert state changes to spans. Each ends at the next change; the last may have no end."""
    spans = []
    for at, (began, state) in enumerate(steps):
        kind = _SPAN_KINDS.get(state)
        if kind is None:
            continue
        ended = steps[at + 1][0] if at + 1 < len(steps) else None
        if ended is None or ended > began:
            spans.append(_span(kind, began, ended))
    return spans


def _ended_with(row: TaskRow | None, spans: list[SpanView]) -> list[SpanView]:
    """Return spans whose last one ends when the task did; the journal has the later commit."""
    last = spans[-1] if spans else None
    if row is None or row.ended_at is None or last is None or last.end is None:
        return spans
    if not instant(last.start or last.end, "from") <= row.ended_at < instant(last.end, "to"):
        return spans
    return [*spans[:-1], msgspec.structs.replace(last, end=iso(row.ended_at))]


def _spans_from_rows(row: TaskRow, tries: Sequence[TryRow], view: TaskView) -> list[SpanView]:
    spans = []
    last: Timestamp | None = None
    for one in tries:
        if one.start_no == row.start_no and one.ended_at == row.ended_at:
            continue  # the task's own row describes this try
        if last is not None and one.started_at is not None and one.started_at > last:
            spans.append(_span("retrying", last, one.started_at))
        if one.started_at is not None:
            spans.append(_span("running", one.started_at, one.ended_at))
        last = one.ended_at
    if row.state is TaskState.RETRYING:
        began = last if last is not None else row.ended_at
        return [*spans, _span("retrying", began, None)] if began is not None else spans
    if last is not None and row.queued_at is not None and row.queued_at > last:
        spans.append(_span("retrying", last, row.queued_at))
    if row.queued_at is not None:
        until = row.started_at if row.started_at is not None else row.ended_at
        spans.append(_span("queued", row.queued_at, until))
    if row.started_at is not None:
        spans += _running_spans(row, row.started_at, view)
    return spans


def _running_spans(row: TaskRow, started_at: Timestamp, view: TaskView) -> list[SpanView]:
    if row.state is TaskState.SENSING:
        return [_span("waiting", started_at, None)]
    if row.state is not TaskState.DEFERRED:
        return [_span("running", started_at, row.ended_at)]
    since = None if view.waiting_on is None else view.waiting_on.since
    if since is None:
        return [_span("waiting", started_at, None)]
    waits = _span("waiting", instant(since, "since"), None)
    return [_span("running", started_at, instant(since, "since")), waits]


def _span(kind: str, start: Timestamp | None, end: Timestamp | None) -> SpanView:
    return SpanView(kind=kind, start=iso(start), end=iso(end))
