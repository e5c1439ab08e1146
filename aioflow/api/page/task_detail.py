"""Details of one task of a run, and lists of tasks by state."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from aioflow.api.notes import note_view
from aioflow.api.page.schemas import ClearView, InputView, RecordView, TaskShownView, TryView
from aioflow.api.paging import Page, decode_cursor, page_of
from aioflow.api.queries import PAGE, RunReader
from aioflow.api.schemas import (
    ErrorView,
    NoteView,
    TaskView,
    TriggerView,
    instant,
    iso,
    plain_bytes,
    shown_state,
)
from aioflow.api.task_instances import RESULT_BYTES, RunLayout, TaskLocation, absent_state
from aioflow.api.triggers import TriggerReader
from aioflow.core.tasks.expand import leaves, pick, width
from aioflow.errors import RequestError, StoreSlow, UnknownTask
from aioflow.model.ids import StartNo, TaskNo
from aioflow.model.rows import RecordRow, ResultRow, RunRow, TryRow, TryWorkerRow
from aioflow.model.states import RecordState, RunState, TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.model.workers import WorkerLocation

__all__ = ("TaskReader",)

TaskLocations: TypeAlias = list[TaskLocation]

_RECORDS = 100
_PAGES_SEARCHED = 200
_SEARCH_SECONDS = 2.0


class TaskReader:
    """Reads single tasks, and lists tasks by state.

    Args:
        reader: Reads the database and, in a daemon, the memory of the engine.
        trigger_reader: Shows triggers.
    """

    def __init__(self, reader: RunReader, trigger_reader: TriggerReader) -> None:
        self._reader = reader
        self._trigger_reader = trigger_reader

    async def show(self, run_id: str, task_id: str, *, map_index: int) -> TaskShownView:
        """Return one task with its inputs, its tries and its durable calls."""
        reader = self._reader
        run = await reader.run(run_id)
        location = await reader.locate(run, task_id, map_index)
        layout = await reader.layout(run)
        (view,) = await reader.tasks_at(run, layout, [location])
        tries = await reader.store.list_tries(location.task_no)
        workers = await reader.store.list_try_workers(location.task_no)
        records = await reader.store.list_records(location.task_no, limit=_RECORDS)
        (row,) = await reader.store.find_tasks([location.task_no]) or (None,)
        start_no = 0 if row is None else row.start_no
        return TaskShownView(
            **{name: getattr(view, name) for name in TaskView.__struct_fields__},
            inputs=await self._inputs(run, layout, location),
            tries=await self._with_clears(
                run,
                task_id,
                [one.try_number for one in tries],
                _tries(view, tries, start_no, _ran_on(workers, reader.worker_pages())),
                view.try_number,
            ),
            records=[_record(one) for one in records],
            trigger=await self._trigger(run, location, view),
            note=await self._note(run, layout, location),
        )

    async def _note(
        self, run: RunRow, layout: RunLayout, location: TaskLocation
    ) -> NoteView | None:
        row = await self._reader.store.find_note(
            run.run_no, location.task_index, location.map_index
        )
        return None if row is None else note_view(run.run_id, layout, row)

    async def _with_clears(
        self,
        run: RunRow,
        task_id: str,
        stored: Sequence[int],
        tries: list[TryView],
        current: int,
    ) -> list[TryView]:
        """Add the clears between tries, with the time of each and who cleared the task.

        A clear is detected by a row whose try number is not greater than that of the try before.

        Args:
            stored: The try numbers in the rows, which start again from 1 after a clear.
            tries: The tries, with their numbers across clears. The current try has no row.
            current: The stored try number of the current try.
        """
        numbers = [*stored, current]
        after_clear = [at for at in range(1, len(tries)) if numbers[at] <= numbers[at - 1]]
        if not after_clear:
            return tries
        known = await self._reader.store.list_clears(run.run_id)
        found = list(tries)
        for at in after_clear:
            found[at] = msgspec.structs.replace(
                tries[at], cleared=_clear_between(known, task_id, tries[at - 1], tries[at])
            )
        return found

    async def _trigger(
        self, run: RunRow, location: TaskLocation, view: TaskView
    ) -> TriggerView | None:
        if view.state != TaskState.DEFERRED.label:
            return None
        rows = await self._reader.store.find_waits_of_task(run.run_no, location.task_no)
        found = await self._trigger_reader.views(rows)
        return found[0] if found else None

    async def _inputs(
        self, run: RunRow, layout: RunLayout, location: TaskLocation
    ) -> list[InputView]:
        """Return the results that a task takes as arguments.

        If a task takes all results of a mapped task, only their number is returned.
        """
        spec = layout.spec.tasks[location.task_index]
        names = {parent: layout.spec.tasks[parent].task_id for parent in spec.argument_parents}
        if spec.mapped is not None:
            for source in spec.mapped.sources:
                for leaf in leaves([source]):
                    if leaf.task_index >= 0:
                        names[leaf.task_index] = source.parameter or names.get(leaf.task_index, "")
        items = await self._input_items(run, layout, location)
        found = []
        for parent, name in sorted(names.items()):
            task_id = layout.spec.tasks[parent].task_id
            is_item = parent in items
            value = items[parent] if is_item else await self._value(run, layout, parent, location)
            found.append(InputView(name=name or task_id, from_task=task_id, value=value))
        return found

    async def _input_items(
        self, run: RunRow, layout: RunLayout, location: TaskLocation
    ) -> dict[int, Any]:
        """Return the items that a mapped child takes, by the index of the producing task."""
        mapped = layout.spec.tasks[location.task_index].mapped
        if mapped is None or mapped.until >= 0 or location.map_index < 0:
            return {}
        lists = list(leaves(mapped.sources))
        task_indexes = {leaf.task_index for leaf in lists if leaf.task_index >= 0}
        known = {at: await self._list(run, layout, at) for at in task_indexes}
        widths = {at: one[0] for at, one in known.items() if one is not None}
        if len(widths) < len(known):
            return {}
        each = [leaf.width if leaf.task_index < 0 else widths[leaf.task_index] for leaf in lists]
        if location.map_index >= width(mapped, each):
            return {}  # the lists are shorter now than when the child ran
        found: dict[int, Any] = {}
        for leaf, index in zip(lists, pick(mapped, location.map_index, each), strict=True):
            one = known.get(leaf.task_index)
            if one is None or index < 0:
                continue
            _, row = one
            found[leaf.task_index] = (
                await self._result(layout.task_no(leaf.task_index, index))
                if row is None
                else await self._reader.results.item(row, index)
            )
        return found

    async def _list(
        self, run: RunRow, layout: RunLayout, task_index: int
    ) -> tuple[int, ResultRow | None] | None:
        """Return the length of the list that a task has produced, and its row.

        For a mapped task, the results of the children form the list, which has no row. Return
        ``None`` for a stream, and if there is no such list, or no longer.
        """
        if layout.spec.tasks[task_index].streams:
            return None
        if layout.is_expanded(task_index):
            return layout.width(task_index), None
        number = run.first_task_no + task_index
        rows = await self._reader.store.list_results(number, number + 1, limit=1)
        return (rows[0].width, rows[0]) if rows and rows[0].width is not None else None

    async def _value(
        self, run: RunRow, layout: RunLayout, parent: int, location: TaskLocation
    ) -> Any:
        if layout.is_expanded(parent):
            number = layout.task_no(parent, location.map_index)
            if not self._is_paired(layout, parent, location) or number is None:
                return {"items": layout.width(parent)}
        else:
            number = run.first_task_no + parent
        return await self._result(number)

    async def _result(self, number: TaskNo | None) -> Any:
        if number is None:
            return None
        rows = await self._reader.store.list_results(number, number + 1, limit=1)
        return await self._reader.results.shown(rows[0]) if rows else None

    @staticmethod
    def _is_paired(layout: RunLayout, parent: int, location: TaskLocation) -> bool:
        mapped = layout.spec.tasks[location.task_index].mapped
        return mapped is not None and parent in mapped.along

    # ── by state ────────────────────────────────────────────────────────────────────────

    async def list(
        self,
        run_id: str,
        *,
        task_id: str | None,
        states: Sequence[str],
        offset: int,
        limit: int,
        cursor: str | None = None,
    ) -> Page[TaskView]:
        """Return a page of a run's tasks, filtered by id, by state, or by both.

        Args:
            states: Tasks in any of these states are returned; if empty, tasks in all states.
            offset: Number of tasks to skip, in addition to those before the cursor.
        """
        reader = self._reader
        run = await reader.run(run_id)
        layout = await reader.layout(run)
        wanted = tuple(dict.fromkeys(_state(name) for name in states))
        segments = list(_segments(run, layout, task_id))
        if not segments:
            raise UnknownTask(run_id, task_id or "", -1)
        if cursor is not None:
            segments = _after(segments, *_location_after(cursor))
        limit = min(limit, PAGE)
        if not wanted:
            found: Sequence[TaskLocation] = _window(segments, offset, limit + 1)
        elif len(wanted) == 1:
            found = await self._in_state(run, segments, wanted[0], offset, limit + 1)
        else:
            found = await self._in_states(run, segments, wanted, offset, limit + 1)
        page = page_of("tasks", found, limit, lambda one: (one.task_index, one.map_index))
        return Page(await reader.tasks_at(run, layout, page.items), page.next)

    async def _in_states(
        self,
        run: RunRow,
        segments: Sequence[Segment],
        states: Iterable[TaskState],
        offset: int,
        limit: int,
    ) -> Sequence[TaskLocation]:
        """Merge the tasks of several states in the order of the run."""
        found: TaskLocations = []
        for state in states:
            found += await self._in_state(run, segments, state, 0, offset + limit)
        found.sort(key=lambda one: (one.task_index, one.task_no))
        return found[offset : offset + limit]

    async def _in_state(
        self,
        run: RunRow,
        segments: Sequence[Segment],
        state: TaskState,
        offset: int,
        limit: int,
    ) -> Sequence[TaskLocation]:
        if state is TaskState.QUEUED and run.state is RunState.RUNNING:
            return await self._queued(run, segments, offset, limit)
        if state is absent_state(run.state):
            return await self._absent(run, segments, state, offset, limit)
        return await self._list_stored(segments, state, offset, limit)

    async def _list_stored(
        self, segments: Sequence[Segment], state: TaskState, offset: int, limit: int
    ) -> Sequence[TaskLocation]:
        found: TaskLocations = []
        for segment in segments:
            store, end = self._reader.store, segment.first + segment.width
            if offset:
                count = await store.count_tasks_in(segment.first, end, state)
                if offset >= count:
                    offset -= count
                    continue
            numbers = await store.list_task_nos_in(
                segment.first, end, state, offset=offset, limit=limit - len(found)
            )
            offset = 0
            found += [segment.locate(number) for number in numbers]
            if len(found) >= limit:
                break
        return found

    async def _queued(
        self, run: RunRow, segments: Sequence[Segment], offset: int, limit: int
    ) -> Sequence[TaskLocation]:
        """Return queued tasks, including children without a row."""
        if not any(segment.is_children for segment in segments):
            return await self._list_stored(segments, TaskState.QUEUED, offset, limit)
        return await self._absent(run, segments, TaskState.QUEUED, offset, limit)

    async def _absent(
        self,
        run: RunRow,
        segments: Sequence[Segment],
        state: TaskState,
        offset: int,
        limit: int,
    ) -> Sequence[TaskLocation]:
        """Return tasks in ``state`` that may have no row, by a search of all task instances."""
        found: TaskLocations = []
        looks = 0
        counts = await self._counts(run)
        for segment in segments:
            end = segment.first + segment.width
            if segment.is_children and not counts.get((segment.task_index, state), 1):
                continue
            for start in range(segment.first, end, PAGE):
                looks += 1
                if looks > _PAGES_SEARCHED:
                    raise StoreSlow(_SEARCH_SECONDS)
                stop = min(start + PAGE, end)
                locations = await self._so_between(run, segment, start, stop, state)
                found += locations[offset:]
                offset = max(0, offset - len(locations))
                if len(found) >= limit:
                    return found[:limit]
        return found

    async def _counts(self, run: RunRow) -> dict[tuple[int, TaskState], int]:
        """Return the known numbers of children in a live run, by task index and state."""
        if not run.state.is_live:
            return {}
        (counted,) = await self._reader.states([run])
        task_indexes = {task_index for task_index, _, _ in counted}
        known = {(task_index, state): 0 for task_index in task_indexes for state in TaskState}
        return known | {(task_index, state): count for task_index, state, count in counted}

    async def _so_between(
        self, run: RunRow, segment: Segment, start: TaskNo, stop: TaskNo, state: TaskState
    ) -> TaskLocations:
        """Return the instances in ``state`` with row numbers from ``start`` to before ``stop``.

        Whether a pending child is queued is known only to the engine, which is asked for the waits.
        """
        rows = await self._reader.store.list_tasks_between(start, stop, limit=PAGE)
        states = {row.task_no: row.state for row in rows}
        absent = absent_state(run.state)
        locations = [segment.locate(number) for number in range(start, stop)]
        if not segment.is_children or absent is not TaskState.PENDING:
            return [
                location for location in locations if states.get(location.task_no, absent) is state
            ]
        pending = [
            (location.task_index, location.map_index)
            for location in locations
            if states.get(location.task_no, absent) is TaskState.PENDING
        ]
        waits = await self._reader.waits(run, pending) if pending else {}
        return [
            location
            for location in locations
            if shown_state(
                states.get(location.task_no, absent),
                run.state,
                waits.get((location.task_index, location.map_index)),
            )
            is state
        ]


class Segment(msgspec.Struct, frozen=True):
    """Task instances with adjacent row numbers: unmapped tasks, or the children of one task."""

    task_index: int
    first: TaskNo
    width: int
    is_children: bool
    skipped: int = 0

    def locate(self, number: TaskNo) -> TaskLocation:
        """Return the location of a row number."""
        at = number - self.first + self.skipped
        if self.is_children:
            return TaskLocation(self.task_index, at, number)
        return TaskLocation(self.task_index + at, -1, number)

    def after(self, task_index: int, map_index: int) -> Segment | None:
        """Return the part of the segment after a location; ``None`` if nothing is left."""
        if self.is_children:
            skip = map_index + 1 if task_index == self.task_index else 0
            is_past = task_index > self.task_index
        else:
            skip, is_past = max(0, task_index - self.task_index + 1), False
        if is_past or skip >= self.width:
            return None
        return msgspec.structs.replace(
            self,
            first=self.first + skip,
            width=self.width - skip,
            skipped=self.skipped + skip,
        )


def _segments(run: RunRow, layout: RunLayout, task_id: str | None) -> Iterator[Segment]:
    alone: Segment | None = None
    for task_index, task in enumerate(layout.spec.tasks):
        is_wanted = task_id is None or task.task_id == task_id
        if is_wanted and not layout.is_expanded(task_index):
            if alone is None:
                alone = Segment(task_index, run.first_task_no + task_index, 1, is_children=False)
            else:
                alone = msgspec.structs.replace(alone, width=alone.width + 1)
            continue
        if alone is not None:
            yield alone
            alone = None
        first = layout.task_no(task_index, 0)
        if is_wanted and first is not None:
            yield Segment(task_index, first, layout.width(task_index), is_children=True)
    if alone is not None:
        yield alone


def _location_after(cursor: str) -> tuple[int, int]:
    task_index, map_index = decode_cursor("tasks", cursor, (int, int))
    return int(task_index), int(map_index)


def _after(segments: Sequence[Segment], task_index: int, map_index: int) -> list[Segment]:
    """Return the parts of segments after a location, even if the location no longer exists."""
    parts = (one.after(task_index, map_index) for one in segments)
    return [one for one in parts if one is not None]


def _window(segments: Sequence[Segment], offset: int, limit: int) -> list[TaskLocation]:
    found: list[TaskLocation] = []
    for segment in segments:
        if offset >= segment.width:
            offset -= segment.width
            continue
        upto = min(segment.width, offset + limit - len(found))
        found += [segment.locate(segment.first + at) for at in range(offset, upto)]
        offset = 0
        if len(found) >= limit:
            break
    return found


def _state(name: str) -> TaskState:
    for state in TaskState:
        if state.label == name:
            return state
    known = ", ".join(state.label for state in TaskState)
    raise RequestError(f"there is no task state {name!r}; there are {known}")


class RanOn(msgspec.Struct, frozen=True):
    """The remote worker of a try. Empty if the try ran on the daemon's machine. See ``TryView``."""

    executor: str | None = None
    host: str | None = None
    worker: str | None = None
    worker_url: str | None = None


_BESIDE_THE_DAEMON = RanOn()


def _ran_on(
    rows: Sequence[TryWorkerRow], pages: Mapping[tuple[str, WorkerLocation], str]
) -> dict[StartNo, RanOn]:
    """Return the workers of the executions that were started in a remote worker."""
    return {
        row.start_no: RanOn(
            row.executor,
            row.host or None,
            row.worker or None,
            pages.get((row.executor, WorkerLocation(row.host, row.worker))),
        )
        for row in rows
    }


def _clear_between(
    known: Sequence[tuple[Timestamp, str, str]], task_id: str, before: TryView, after: TryView
) -> ClearView:
    """Return the last clear between two tries, preferably one that named the task.

    A clear of an upstream task, or of the whole run, does not name it.
    """
    first = 0 if before.ended_at is None else instant(before.ended_at, "the end")
    end = sys.maxsize if after.started_at is None else instant(after.started_at, "the start")
    between = [one for one in known if first <= one[0] <= end]
    named = [one for one in between if task_id in one[2].split(" ")[1:]]
    for at, by, _ in reversed(named or between):
        return ClearView(at=iso(at), by=by or None)
    return ClearView(at=None, by=None)


def _tries(
    view: TaskView, tries: Sequence[TryRow], start_no: StartNo, ran_on: Mapping[StartNo, RanOn]
) -> list[TryView]:
    def made(number: int, of: StartNo, **values: Any) -> TryView:
        where = ran_on.get(of, _BESIDE_THE_DAEMON)
        return TryView(try_number=number, **values, **msgspec.structs.asdict(where))

    found = [
        made(
            number,
            one.start_no,
            state=one.state.label,
            started_at=iso(one.started_at),
            ended_at=iso(one.ended_at),
            error=None if one.failure is None else one.failure.message,
            reason=None if one.failure is None else one.failure.reason,
        )
        for number, one in enumerate(tries, start=1)
    ]
    is_listed = any(one.start_no == start_no for one in tries)
    if view.try_number and view.started_at is not None and not is_listed:
        error: ErrorView | None = view.error
        found.append(
            made(
                len(tries) + 1,
                start_no,
                state=view.state,
                started_at=view.started_at,
                ended_at=view.ended_at,
                error=None if error is None else error.message,
                reason=None if error is None else error.reason,
            )
        )
    return found


def _record(row: RecordRow) -> RecordView:
    value: Any = None
    if row.failure is not None:
        value = {"error": row.failure.message}
    elif row.answer is not None and len(row.answer) > RESULT_BYTES:
        value = {"size_bytes": len(row.answer)}
    elif row.state is RecordState.ANSWERED:
        value = plain_bytes(row.answer)
    return RecordView(
        ordinal=row.ordinal,
        kind=row.kind,
        name=row.name,
        label=row.label or None,
        at=row.source_location,
        value=value,
    )
