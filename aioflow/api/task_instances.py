"""Task instances of a run as shown to users: row numbers, states, results and logs.

A task instance is located by task index and map index, whether it has a row or not. A small result
is shown as a value, a larger one as its size. A log has one part per try. Tries are numbered across
clears.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from aioflow._threads import in_thread
from aioflow.api.schemas import (
    TaskView,
    error_view,
    iso,
    plain_bytes,
    shown_state,
    task_state_name,
    unreadable,
    wait_view,
)
from aioflow.errors import ResultDamaged, ResultMissing, StorageUnavailable
from aioflow.model.dag import DagSpec
from aioflow.model.ids import TaskNo
from aioflow.model.rows import DAMAGED, ExpansionRow, ResultRow, RunRow, TaskRow, TryRow
from aioflow.model.states import RunState, TaskState, Wait
from aioflow.results import read_items, read_one_item, result_path
from aioflow.store import Store
from aioflow.telemetry.task_log_records import WHOLE_LOG, LogPart

__all__ = (
    "RESULT_BYTES",
    "CopyResult",
    "RunLayout",
    "ShownResults",
    "TaskLocation",
    "absent_state",
    "log_part_of_try",
    "task_view",
)


class TaskLocation(msgspec.Struct, frozen=True):
    """The location of one task instance in a run."""

    task_index: int
    map_index: int
    task_no: TaskNo


class RunLayout:
    """The locations of all task instances of a run.

    Args:
        run: The run.
        spec: The DAG in the run's version.
        expansions: The known expansions. A mapped task without one counts as one instance.
    """

    def __init__(self, run: RunRow, spec: DagSpec, expansions: Sequence[ExpansionRow]) -> None:
        self.spec = spec
        self._first = run.first_task_no
        self._expansions = {  # a damaged row may name a task that the DAG does not have
            one.task_index: one for one in expansions if one.task_index < len(spec.tasks)
        }

    @property
    def total(self) -> int:
        """Number of task instances."""
        return sum(self.width(task_index) for task_index in range(len(self.spec.tasks)))

    def width(self, task_index: int) -> int:
        """Return the number of instances of a task."""
        expansion = self._expansions.get(task_index)
        return 1 if expansion is None else expansion.width

    def is_expanded(self, task_index: int) -> bool:
        """Return whether a task has children."""
        return task_index in self._expansions

    def is_open(self, task_index: int) -> bool:
        """Return whether a task has children and a stream may add more."""
        expansion = self._expansions.get(task_index)
        return expansion is not None and expansion.is_open

    def shown(self, location: TaskLocation) -> tuple[int, int]:
        """Return the map index and iteration of a task instance as shown to users."""
        if not self.is_in_loop(location.task_index):
            return location.map_index, 0
        return -1, max(location.map_index, 0)

    def is_in_loop(self, task_index: int) -> bool:
        """Return whether a task is in a loop; its ``width`` is the number of iterations begun."""
        mapped = self.spec.tasks[task_index].mapped
        return mapped is not None and mapped.until >= 0

    def last_round(self, task_index: int) -> int:
        """Return the last iteration of a task that has begun; -1 if the task is not in a loop."""
        is_round = self.is_in_loop(task_index) and self.is_expanded(task_index)
        return self.width(task_index) - 1 if is_round else -1

    def locate(self, task_index: int, map_index: int) -> TaskLocation | None:
        """Locate a task instance; ``None`` if that child or iteration does not exist.

        Args:
            map_index: The child; in a loop, the iteration. -1 means the mapped task as a whole, or
                the loop's last iteration.
        """
        is_to_come = self.is_in_loop(task_index) and not self.is_expanded(task_index)
        if map_index < 0 or (map_index == 0 and is_to_come):
            map_index = self.last_round(task_index)
        if map_index < 0:
            return TaskLocation(task_index, -1, self._first + task_index)
        task_no = self.task_no(task_index, map_index)
        return None if task_no is None else TaskLocation(task_index, map_index, task_no)

    def task_no(self, task_index: int, map_index: int) -> TaskNo | None:
        """Return the row number of a task instance; ``None`` if the index does not exist."""
        expansion = self._expansions.get(task_index)
        if expansion is None:
            return self._first + task_index if map_index < 0 else None
        return expansion.first_task_no + map_index if 0 <= map_index < expansion.width else None

    def find(self, task_no: TaskNo) -> TaskLocation | None:
        """Return the location of the row with this number; ``None`` if it is of another run."""
        task_index = task_no - self._first
        if 0 <= task_index < len(self.spec.tasks):
            return TaskLocation(task_index, -1, task_no)
        for expansion in self._expansions.values():
            map_index = task_no - expansion.first_task_no
            if 0 <= map_index < expansion.width:
                return TaskLocation(expansion.task_index, map_index, task_no)
        return None

    def after(self, task_index: int, map_index: int) -> int:
        """Return the offset of the first location after the given one, which need not exist."""
        offset = sum(self.width(at) for at in range(min(task_index, len(self.spec.tasks))))
        if task_index >= len(self.spec.tasks):
            return offset
        is_past = map_index < 0 and not self.is_expanded(task_index)
        return offset + min(1 if is_past else map_index + 1, self.width(task_index))

    def page(self, offset: int, limit: int) -> list[TaskLocation]:
        """Return the locations from ``offset`` on, at most ``limit``."""
        found: list[TaskLocation] = []
        for task_index in range(len(self.spec.tasks)):
            width = self.width(task_index)
            if offset >= width:
                offset -= width
                continue
            found.extend(self._locations(task_index, offset, offset + limit - len(found)))
            offset = 0
            if len(found) >= limit:
                break
        return found

    def _locations(self, task_index: int, start: int, end: int) -> Iterator[TaskLocation]:
        expansion = self._expansions.get(task_index)
        if expansion is None:
            yield TaskLocation(task_index, -1, self._first + task_index)
            return
        for map_index in range(start, min(end, expansion.width)):
            yield TaskLocation(task_index, map_index, expansion.first_task_no + map_index)

    @staticmethod
    def ranges(locations: Sequence[TaskLocation], longest: int) -> Iterator[tuple[TaskNo, TaskNo]]:
        """Yield ``(first, end)`` of adjacent row numbers, so that few queries cover all of them."""
        first = end = -1
        for location in locations:
            if location.task_no == end and end - first < longest:
                end += 1
                continue
            if end > first:
                yield first, end
            first, end = location.task_no, location.task_no + 1
        if end > first:
            yield first, end

    def counts(
        self, rows: Sequence[tuple[int, TaskState, int]], run_state: RunState
    ) -> dict[str, int]:
        """Return the number of task instances in each state, including those without a row.

        Args:
            rows: The counts that ``Store.count_states`` returns.
            run_state: Determines the state of task instances without a row.
        """
        counts: Counter[TaskState] = Counter()
        for _, state, count in rows:
            counts[state] += count
        absent = self.total - counts.total()
        if absent > 0:
            counts[absent_state(run_state)] += absent
        return dict(sorted((state.label, count) for state, count in counts.items()))


def absent_state(run_state: RunState) -> TaskState:
    """Return the state of a task without a row.

    The task is pending in a live run, successful in a successful run, and cancelled otherwise. A
    run that was marked manually may have ended before its tasks.
    """
    if run_state.is_live:
        return TaskState.PENDING
    return TaskState.SUCCESS if run_state is RunState.SUCCESS else TaskState.CANCELLED


def task_view(
    layout: RunLayout,
    location: TaskLocation,
    row: TaskRow | None,
    run_state: RunState,
    waits: Mapping[tuple[int, int], Wait | None],
    results: Mapping[TaskNo, Any],
    labels: Mapping[TaskNo, str],
) -> TaskView:
    """Return the JSON form of one task.

    Args:
        run_state: Determines the state of a task without a row.
        waits: The waits of tasks, by task index and map index.
        results, labels: By the row number of the task.
    """
    task = layout.spec.tasks[location.task_index]
    map_index, round_number = layout.shown(location)
    wait = waits.get((location.task_index, location.map_index))
    state = absent_state(run_state) if row is None else row.state
    shown = shown_state(state, run_state, wait)
    failed = None if row is None else row.failure
    if failed is not None and state is TaskState.SUCCESS and failed.reason != DAMAGED:
        failed = None
    return TaskView(
        task_id=task.task_id,
        map_index=map_index,
        round=round_number,
        map_label=labels.get(location.task_no),
        state=shown.label if row is None or shown is not state else task_state_name(row),
        try_number=0 if row is None else row.try_number,
        max_tries=task.retry.tries,
        interruptions=0 if row is None else row.interruptions,
        started_at=None if row is None else iso(row.started_at),
        ended_at=None if row is None else iso(row.ended_at),
        waiting_on=wait_view(wait, state),
        error=error_view(failed),
        result=results.get(location.task_no) if state is TaskState.SUCCESS else None,
    )


RESULT_BYTES = 4 * 1024
"""Maximum size of a result that is included in a response."""

_RESULT_ITEMS = 100
"""Number of stored items that are read. If a list has as many, only its length is shown."""


CopyResult: TypeAlias = Callable[[ResultRow], Awaitable[Path]]
"""Returns the path of a large result on this machine, after copying it here if needed."""


class ShownResults:
    """Reads results from the store and from the folder of large results.

    Args:
        copy: Copies results that are stored outside of the home; ``None`` if all are in the home.
    """

    def __init__(self, store: Store, folder: Path | None, copy: CopyResult | None = None) -> None:
        self._store = store
        self._folder = folder
        self._copy = copy

    async def shown(self, row: ResultRow) -> Any:
        """Return a result if it is small. A list that tasks expand over has a file of items."""
        if row.size > RESULT_BYTES:
            return {"size_bytes": row.size}
        if row.body is not None:
            return plain_bytes(row.body)
        if row.width == 0:
            return []
        if row.width is not None and row.size == 0:
            return await self._items(row)
        if row.width is None or self._folder is None:
            return {"size_bytes": row.size}
        try:
            items = await in_thread(read_items, await self._path(self._folder, row))
        except (OSError, ResultMissing, StorageUnavailable):
            return {"size_bytes": row.size}  # deleted, or on another machine
        except (ValueError, ResultDamaged) as exc:
            return unreadable(exc)
        return [plain_bytes(item) for item in items]

    async def item(self, row: ResultRow, index: int) -> Any:
        """Return one item of a list that tasks are mapped over, if the item is small."""
        if row.body is not None or self._folder is None:
            return {"index": index}
        try:
            body = await in_thread(read_one_item, await self._path(self._folder, row), index)
        except (OSError, IndexError, ResultMissing, StorageUnavailable):
            return {"index": index}  # deleted, or on another machine
        except (ValueError, ResultDamaged) as exc:
            return unreadable(exc)
        return {"size_bytes": len(body)} if len(body) > RESULT_BYTES else plain_bytes(body)

    async def _path(self, folder: Path, row: ResultRow) -> Path:
        if self._copy is None:
            return result_path(folder, row.task_no, row.start_no)
        return await self._copy(row)

    async def _items(self, row: ResultRow) -> Any:
        """Return the items that a task has stored, if they are small."""
        items = await self._store.list_items(row.task_no, limit=_RESULT_ITEMS)
        size = sum(len(item.payload) for item in items)
        if size > RESULT_BYTES or len(items) == _RESULT_ITEMS:
            return {"items": row.width}
        return [plain_bytes(item.payload) for item in items]


def log_part_of_try(
    tries: Sequence[TryRow], row: TaskRow | None, try_number: int | None
) -> LogPart | None:
    """Return the part of a log for one try, or all of it; ``None`` if there is no such try.

    Each ended try has a row, except for a first try that succeeded. The running try has no row.

    Args:
        tries: The tries of the task, in the order of their execution.
        row: The task's row, if it has one.
        try_number: Number of the try, from 1 and across clears; ``None`` for the whole log.
    """
    last = tries[-1] if tries else None
    if try_number is None:
        return LogPart(cleared=_clear_notices(tries, row))
    if try_number <= len(tries):
        after = tries[try_number - 2].start_no if try_number > 1 else WHOLE_LOG.after
        return LogPart(after=after, upto=tries[try_number - 1].start_no)
    if try_number > len(tries) + 1:
        return None
    # Log records contain the try number. This selects the records of the current try, because later
    # tries will have other numbers.
    own = try_number if row is None else row.try_number
    return LogPart(after=WHOLE_LOG.after if last is None else last.start_no, try_number=own)


def _clear_notices(tries: Sequence[TryRow], row: TaskRow | None) -> tuple[tuple[int, bytes], ...]:
    """Return the executions after which the task was cleared, each with a notice for the log.

    A clear is detected by a try number that is not greater than that of the previous execution.
    """
    counts = [(one.start_no, one.try_number) for one in tries]
    if row is not None and (not counts or row.start_no > counts[-1][0]):
        counts.append((row.start_no, max(row.try_number, 1)))
    found = []
    for at in range(1, len(counts)):
        (start_no, before), (_, number) = counts[at - 1], counts[at]
        if number <= before:
            text = f"\n[aioflow: the task was cleared; try {at + 1} follows]\n"
            found.append((start_no, text.encode()))
    return tuple(found)
