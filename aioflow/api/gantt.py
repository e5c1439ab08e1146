"""How the tasks of a run spent their time.

An ended try has a row unless it was a first success, and an ended wait has none. These spans
come from the journal if it still covers the run and is not too long. Otherwise waits are part of
the running time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from aioflow.api.history import Steps, read_steps
from aioflow.api.layout import TaskLocation
from aioflow.api.page_schemas import SpannedView, SpanView
from aioflow.api.queries import RunReader
from aioflow.api.schemas import TaskView, instant, iso
from aioflow.model.ids import TaskNo
from aioflow.model.rows import TaskRow, TryRow
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp

__all__ = ("gantt",)

_KINDS = {
    TaskState.QUEUED: "queued",
    TaskState.RUNNING: "running",
    TaskState.SENSING: "waiting",
    TaskState.DEFERRED: "waiting",
    TaskState.RETRYING: "retrying",
}


async def gantt(reader: RunReader, run_id: str, *, offset: int, limit: int) -> list[SpannedView]:
    """Return the time spans of one page of a run's tasks."""
    run = await reader.run(run_id)
    layout = await reader.layout(run)
    places = layout.page(offset, limit)
    views = await reader.tasks_at(run, layout, places)
    rows: dict[TaskNo, TaskRow] = {}
    tries: defaultdict[TaskNo, list[TryRow]] = defaultdict(list)
    for first, end in layout.ranges(places, limit):
        found = await reader.store.list_tasks_between(first, end, limit=end - first)
        rows.update((row.task_no, row) for row in found)
        for row in await reader.store.list_tries_between(first, end, limit=4 * limit):
            tries[row.task_no].append(row)
    steps = await read_steps(reader.store, run, {place.task_no for place in places})
    return [
        _spanned(view, place, rows, tries.get(place.task_no, []), steps)
        for view, place in zip(views, places, strict=True)
    ]


def _spanned(
    view: TaskView,
    place: TaskLocation,
    rows: Mapping[TaskNo, TaskRow],
    tries: Sequence[TryRow],
    steps: Steps | None,
) -> SpannedView:
    row = rows.get(place.task_no)
    told = [] if steps is None else steps.get(place.task_no, [])
    if told:
        spans = _from_steps(told)
    elif row is None:
        spans = []
    else:
        spans = _from_rows(row, tries, view)
    return SpannedView(
        task_id=view.task_id,
        map_index=view.map_index,
        round=view.round,
        map_label=view.map_label,
        state=view.state,
        spans=spans,
    )


def _from_steps(steps: Sequence[tuple[Timestamp, TaskState]]) -> list[SpanView]:
    """Convert state changes to spans. Each ends with the next one; a last live one has no end."""
    spans = []
    for at, (began, state) in enumerate(steps):
        kind = _KINDS.get(state)
        if kind is None:
            continue
        ended = steps[at + 1][0] if at + 1 < len(steps) else None
        if ended is None or ended > began:
            spans.append(_span(kind, began, ended))
    return spans


def _from_rows(row: TaskRow, tries: Sequence[TryRow], view: TaskView) -> list[SpanView]:
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
        spans += _running(row, row.started_at, view)
    return spans


def _running(row: TaskRow, started_at: Timestamp, view: TaskView) -> list[SpanView]:
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
