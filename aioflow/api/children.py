"""The children of a mapped task: as cells, by duration, the slowest, and grouped by error.

A response is bounded, however many children there are. If there are more than 10,000, a cell
represents several children. A task with many children is read in slices, so that other queries can
run in between.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from aioflow._threads import in_thread
from aioflow.api.queries import RunReader
from aioflow.api.task_instances import RunLayout, absent_state
from aioflow.clock import Clock
from aioflow.errors import UnknownTask
from aioflow.model.children import DURATION_BOUNDS_US, NO_DURATION, ChildCount, SlowChild
from aioflow.model.ids import TaskNo
from aioflow.model.rows import RunRow, TaskRow
from aioflow.model.states import Failure, TaskState

__all__ = (
    "CLEARED_CHILDREN",
    "CellsView",
    "Children",
    "ChildrenView",
    "DurationCountView",
    "ErrorGroupView",
    "ErrorGroupsView",
    "SlowChildView",
    "grouped",
    "ranges_text",
    "shape_of",
)

CELLS = 10_000
"""Maximum number of cells in a response."""

CLEARED_CHILDREN = 5_000
"""Maximum number of failed children that are grouped. One request clears at most as many."""

_SLICE = 50_000
_SLOWEST = 20
_GROUPS = 100
_MINUTE_US = 60_000_000
_ENDED_FOR_ESTIMATE = 10


class DurationCountView(msgspec.Struct, frozen=True, kw_only=True):
    """The number of children in one bucket of durations.

    Attributes:
        upto_seconds: The upper limit of the bucket, not included; ``None`` for no limit.
    """

    upto_seconds: float | None
    count: int


class SlowChildView(msgspec.Struct, frozen=True, kw_only=True):
    """A child whose last try took especially long."""

    map_index: int
    map_label: str | None
    state: str
    seconds: float


class ChildrenView(msgspec.Struct, frozen=True, kw_only=True):
    """The children of a mapped task in numbers.

    Attributes:
        width: The number of children known so far.
        is_open: Whether a stream may add more.
        is_loop: Whether they are the rounds of a loop.
        durations: The buckets of durations, from the first to the last with a child. A child is
            counted by its last try.
        slowest: The 20 children that took longest, the slowest first.
        ended_last_minute: How many children ended by their own work in the last 60 seconds.
        seconds_left: The children that have not ended divided by the rate of the last minute;
            ``None`` if fewer than 10 have ended, if more may be added, or if the rate is 0.
    """

    task_id: str
    width: int
    is_open: bool
    is_loop: bool
    counts: dict[str, int]
    durations: list[DurationCountView]
    slowest: list[SlowChildView]
    ended_last_minute: int
    seconds_left: float | None


class CellsView(msgspec.Struct, frozen=True, kw_only=True):
    """The children of a mapped task as cells, one character each.

    Attributes:
        size: The number of children in each cell; the last may have fewer.
        letters: The state that each letter in ``states`` stands for.
        states: For each cell, the state in it that needs attention most.
        durations: For each cell the bucket of the longest duration, from ``A`` on; ``.`` for none.
        offsets: For each cell, the position of the first child in that state; empty if ``size`` is
            1.
        bounds_seconds: The upper limits of the buckets. A last bucket has no limit.
    """

    task_id: str
    width: int
    size: int
    letters: dict[str, str]
    states: str
    durations: str
    offsets: list[int]
    bounds_seconds: list[float]


class ErrorGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """Failed children whose errors have the same type and shape.

    Attributes:
        shape: The message with placeholders for numbers, ids, quoted parts and hexadecimals.
        message: The message of the first child.
        children: The map indexes of the children, as ranges: ``3,7-9``.
    """

    type: str
    reason: str
    shape: str
    message: str
    count: int
    children: str


class ErrorGroupsView(msgspec.Struct, frozen=True, kw_only=True):
    """The failed children of a mapped task, grouped by their errors, the largest group first.

    Attributes:
        failed: The number of failed children.
        grouped: The number of failed children that were read: the first ones, at most 5,000.
        more: The number of smaller groups that are left out.
    """

    failed: int
    grouped: int
    more: int
    items: list[ErrorGroupView]


class _Mapped(NamedTuple):
    """A mapped task of a run, and the location of its children's rows."""

    run: RunRow
    layout: RunLayout
    task_index: int
    first: TaskNo
    width: int

    def slices(self, size: int = 1) -> Iterator[tuple[TaskNo, TaskNo]]:
        """Yield ranges of rows. All lengths except the last are multiples of ``size``."""
        step = _SLICE - _SLICE % size or size
        for at in range(0, self.width, step):
            yield self.first + at, self.first + min(at + step, self.width)


class Children:
    """Reads the children of mapped tasks."""

    def __init__(self, reader: RunReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock

    async def summary(self, run_id: str, task_id: str) -> ChildrenView:
        """Return the children of a mapped task in numbers.

        Raises:
            UnknownTask: If the run has no such task. One without children has a width of 0.
        """
        mapped = await self._mapped(run_id, task_id)
        since = self._clock.now() - _MINUTE_US
        found: list[ChildCount] = []
        slowest: list[SlowChild] = []
        for first, end in mapped.slices():
            found += await self._reader.store.count_children(first, end, since=since)
            slowest += await self._reader.store.list_slowest(first, end, limit=_SLOWEST)
            slowest = sorted(slowest, key=lambda one: (-one.duration_us, one.task_no))[:_SLOWEST]
        counts = _counts(mapped, found)
        recent = sum(one.recent for one in found)
        is_open = mapped.layout.is_open(mapped.task_index)
        return ChildrenView(
            task_id=task_id,
            width=mapped.width,
            is_open=is_open,
            is_loop=mapped.layout.is_in_loop(mapped.task_index),
            counts=counts,
            durations=_durations(found),
            slowest=await self._slow_views(mapped, slowest),
            ended_last_minute=recent,
            seconds_left=None if is_open else _seconds_left(counts, recent),
        )

    async def cells(self, run_id: str, task_id: str) -> CellsView:
        """Return the children of a mapped task as at most 10,000 cells."""
        mapped = await self._mapped(run_id, task_id)
        size = max(1, -(-mapped.width // CELLS))
        count = -(-mapped.width // size)
        absent = absent_state(mapped.run.state)
        states = bytearray(_letter(absent) * count)
        durations = bytearray(b"." * count)
        offsets = [0] * count if size > 1 else []
        for first, end in mapped.slices(size):
            before = (first - mapped.first) // size
            for cell in await self._reader.store.list_cells(first, end, size=size):
                at = before + cell.position
                covered = min(size, mapped.width - at * size)
                is_quiet = cell.state in _QUIET and cell.rows < covered
                states[at : at + 1] = _letter(absent if is_quiet else cell.state)
                if cell.bucket != NO_DURATION:
                    durations[at] = ord("A") + cell.bucket
                if size > 1 and not is_quiet:
                    offsets[at] = cell.offset
        return CellsView(
            task_id=task_id,
            width=mapped.width,
            size=size,
            letters={_letter(state).decode(): state.label for state in TaskState},
            states=states.decode(),
            durations=durations.decode(),
            offsets=offsets,
            bounds_seconds=[bound / 1e6 for bound in DURATION_BOUNDS_US],
        )

    async def errors(self, run_id: str, task_id: str) -> ErrorGroupsView:
        """Return the failed children of a mapped task, grouped by their errors."""
        mapped = await self._mapped(run_id, task_id)
        rows: list[TaskRow] = []
        failed = 0
        store = self._reader.store
        for first, end in mapped.slices():
            failed += await store.count_tasks_in(first, end, TaskState.FAILED)
            missing = CLEARED_CHILDREN - len(rows)
            if missing:
                rows += await store.list_failed(first, end, limit=missing)
        errors = [
            (row.task_no - mapped.first, row.failure) for row in rows if row.failure is not None
        ]
        groups = await in_thread(grouped, errors)
        return ErrorGroupsView(
            failed=failed,
            grouped=len(errors),
            more=max(0, len(groups) - _GROUPS),
            items=groups[:_GROUPS],
        )

    async def _mapped(self, run_id: str, task_id: str) -> _Mapped:
        run = await self._reader.run(run_id)
        layout = await self._reader.layout(run)
        for task_index, task in enumerate(layout.spec.tasks):
            if task.task_id == task_id:
                first = layout.task_no(task_index, 0)
                width = 0 if first is None else layout.width(task_index)
                return _Mapped(run, layout, task_index, first or 0, width)
        raise UnknownTask(run_id, task_id)

    async def _slow_views(
        self, mapped: _Mapped, slowest: Sequence[SlowChild]
    ) -> list[SlowChildView]:
        labels = await self._reader.store.find_labels([one.task_no for one in slowest])
        return [
            SlowChildView(
                map_index=one.task_no - mapped.first,
                map_label=labels.get(one.task_no),
                state=one.state.label,
                seconds=one.duration_us / 1e6,
            )
            for one in slowest
        ]


_QUIET = frozenset({TaskState.SUCCESS, TaskState.SKIPPED})
"""Cell states with a lower priority than a child without a row."""


def _letter(state: TaskState) -> bytes:
    return bytes((ord("a") + state,))


def _counts(mapped: _Mapped, found: Sequence[ChildCount]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for one in found:
        counts[one.state.label] += one.children
    absent = mapped.width - counts.total()
    if absent > 0:
        counts[absent_state(mapped.run.state).label] += absent
    return dict(sorted(counts.items()))


def _durations(found: Sequence[ChildCount]) -> list[DurationCountView]:
    counts: Counter[int] = Counter()
    for one in found:
        if one.bucket != NO_DURATION:
            counts[one.bucket] += one.children
    if not counts:
        return []
    bounds = [bound / 1e6 for bound in DURATION_BOUNDS_US]
    return [
        DurationCountView(
            upto_seconds=bounds[bucket] if bucket < len(bounds) else None, count=counts[bucket]
        )
        for bucket in range(min(counts), max(counts) + 1)
    ]


def _seconds_left(counts: dict[str, int], recent: int) -> float | None:
    """Return the estimated time left; ``None`` if too little is known."""
    left = sum(counts.get(state.label, 0) for state in TaskState if state.is_live)
    ended = counts.get("success", 0) + counts.get("failed", 0)
    if not left or not recent or ended < _ENDED_FOR_ESTIMATE:
        return None
    return round(60 * left / recent, 1)


_SHAPED = 400
"""How many characters at the beginning of a message determine its shape."""

_VARYING = re.compile(
    r"""(?P<text>(?<!\w)(?:'[^'\n]*'|"[^"\n]*"|`[^`\n]*`)(?!\w))
      | (?P<id>\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b)
      | (?P<hex>\b0[xX][0-9a-fA-F]+\b
        | \b(?=[a-fA-F]*[0-9])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{8,}\b)
      | (?P<n>[0-9]+(?:[.,:][0-9]+)*)""",
    re.VERBOSE,
)


def shape_of(message: str) -> str:
    """Return a message with placeholders for the parts that differ between similar errors."""
    return _VARYING.sub(lambda match: f"<{match.lastgroup}>", message[:_SHAPED])


def grouped(errors: Sequence[tuple[int, Failure]]) -> list[ErrorGroupView]:
    """Group errors by type, reason and shape of the message, the largest group first.

    Args:
        errors: The map index and the error of each child, by map index.
    """
    shapes: dict[str, str] = {}
    groups: dict[tuple[str, str, str], list[tuple[int, Failure]]] = {}
    for index, failure in errors:
        shape = shapes.get(failure.message)
        if shape is None:
            shape = shapes[failure.message] = shape_of(failure.message)
        groups.setdefault((failure.type, failure.reason, shape), []).append((index, failure))
    found = [
        ErrorGroupView(
            type=type_,
            reason=reason,
            shape=shape,
            message=members[0][1].message,
            count=len(members),
            children=ranges_text([index for index, _ in members]),
        )
        for (type_, reason, shape), members in groups.items()
    ]
    return sorted(found, key=lambda group: -group.count)


def ranges_text(indexes: Sequence[int]) -> str:
    """Return sorted numbers as ranges: ``3,7-9``."""
    pieces: list[list[int]] = []
    for index in indexes:
        if pieces and index == pieces[-1][1] + 1:
            pieces[-1][1] = index
        else:
            pieces.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in pieces)
