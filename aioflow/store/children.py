"""Reads of the children of a mapped task: counts, cells, and the slowest and failed children.

The database aggregates, so that few rows are read, however many children there are. Callers divide
a wide range into slices, so that no statement takes long.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import and_, case, func, select

from aioflow.model.children import DURATION_BOUNDS_US, NO_DURATION, Cell, ChildCount, SlowChild
from aioflow.model.ids import TaskNo
from aioflow.model.rows import TaskRow
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.store import rows, tables
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.selects import literal, number

__all__ = ("ChildrenReader",)

_task = tables.task


_ATTENTION = (
    TaskState.SUCCESS,
    TaskState.SKIPPED,
    TaskState.PENDING,
    TaskState.CANCELLED,
    TaskState.QUEUED,
    TaskState.DEFERRED,
    TaskState.SENSING,
    TaskState.RETRYING,
    TaskState.RUNNING,
    TaskState.UPSTREAM_FAILED,
    TaskState.FAILED,
)
"""The states by how much they need attention, the least first."""

_WIDEST = 1 << 32
"""A number greater than the number of children in any cell."""

_between = and_(
    _task.c.task_no >= number("first"),
    _task.c.task_no < number("end"),
    _task.c.state.in_([literal(state) for state in sorted(_ATTENTION)]),
)
_duration = _task.c.ended_at - _task.c.started_at
_has_duration = and_(
    _task.c.state.in_([literal(TaskState.SUCCESS), literal(TaskState.FAILED)]),
    _task.c.started_at.is_not(None),
    _task.c.ended_at.is_not(None),
)
_bucket = case(
    (~_has_duration, literal(NO_DURATION)),
    *((_duration < literal(bound), literal(at)) for at, bound in enumerate(DURATION_BOUNDS_US)),
    else_=literal(len(DURATION_BOUNDS_US)),
)
_is_recent = and_(_has_duration, _task.c.ended_at >= number("since"))
_each = (
    select(
        _task.c.state.label("state"),
        _bucket.label("bucket"),
        case((_is_recent, literal(1)), else_=literal(0)).label("recent"),
    )
    .where(_between)
    .subquery()
)
_COUNTS = (
    select(_each.c.state, _each.c.bucket, func.count(), func.sum(_each.c.recent))
    .group_by(_each.c.state, _each.c.bucket)
    .order_by(_each.c.state, _each.c.bucket)
)

_attention = case(
    *(
        (_task.c.state == literal(state), literal((at + 1) * _WIDEST))
        for at, state in enumerate(_ATTENTION)
    ),
    else_=literal(0),
)
_position = _task.c.task_no - number("first")
_placed = (
    select(
        (_position // number("size")).label("cell"),
        (_attention - _position % number("size")).label("attention"),
        _bucket.label("bucket"),
    )
    .where(_between)
    .subquery()
)
_CELLS = (
    select(_placed.c.cell, func.max(_placed.c.attention), func.max(_placed.c.bucket), func.count())
    .group_by(_placed.c.cell)
    .order_by(_placed.c.cell)
)
_SLOWEST = (
    select(_task.c.task_no, _task.c.state, _duration)
    .where(_between, _has_duration)
    .order_by(_duration.desc(), _task.c.task_no)
    .limit(number("limit"))
)
_FAILED = (
    select(_task)
    .where(
        _task.c.task_no >= number("first"),
        _task.c.task_no < number("end"),
        _task.c.state == literal(TaskState.FAILED),
    )
    .order_by(_task.c.task_no)
    .limit(number("limit"))
)


class ChildrenReader(QueryInterface):
    """The part of a store that reads the children of a mapped task."""

    async def count_children(
        self, first: TaskNo, end: TaskNo, *, since: Timestamp
    ) -> list[ChildCount]:
        """See ``Store``."""
        return await self._all(_child_count, _COUNTS, first=first, end=end, since=since)

    async def list_cells(self, first: TaskNo, end: TaskNo, *, size: int) -> list[Cell]:
        """See ``Store``."""
        return await self._all(_cell, _CELLS, first=first, end=end, size=size)

    async def list_slowest(self, first: TaskNo, end: TaskNo, *, limit: int) -> list[SlowChild]:
        """See ``Store``."""
        return await self._all(_slow_child, _SLOWEST, first=first, end=end, limit=limit)

    async def list_failed(self, first: TaskNo, end: TaskNo, *, limit: int) -> list[TaskRow]:
        """See ``Store``."""
        return await self._all(rows.task_row, _FAILED, first=first, end=end, limit=limit)


def _child_count(values: rows.Values) -> ChildCount:
    state, bucket, count, recent = values
    return ChildCount(TaskState(state), bucket, count, int(recent))


_BY_ATTENTION: Mapping[int, TaskState] = dict(enumerate(_ATTENTION, 1))


def _cell(values: rows.Values) -> Cell:
    index, attention, bucket, count = values
    rank = -(-attention // _WIDEST)
    return Cell(index, _BY_ATTENTION[rank], rank * _WIDEST - attention, bucket, count)


def _slow_child(values: rows.Values) -> SlowChild:
    task_no, state, duration_us = values
    return SlowChild(task_no, TaskState(state), duration_us)
