"""The children of a mapped task as the database counts them: by state, duration and cell."""

from __future__ import annotations

from typing import NamedTuple

from aioflow.model.ids import TaskNo
from aioflow.model.states import TaskState

__all__ = ("DURATION_BOUNDS_US", "NO_DURATION", "Cell", "ChildCount", "SlowChild")

_SECOND = 1_000_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE

DURATION_BOUNDS_US = (
    *(factor * 10**power for power in range(3, 7) for factor in (1, 2, 5)),
    *(10 * _SECOND, 20 * _SECOND),
    *(factor * _MINUTE for factor in (1, 2, 5, 10, 20)),
    *(factor * _HOUR for factor in (1, 2, 5, 12, 24)),
)
"""Upper limits of the duration buckets, in microseconds. One more bucket has no limit."""

NO_DURATION = -1
"""The bucket of children without a duration, because they did not end by running."""


class ChildCount(NamedTuple):
    """A number of children with the same state and the same duration bucket.

    Attributes:
        recent: How many of them ended at or after the time given in the query.
    """

    state: TaskState
    bucket: int
    children: int
    recent: int


class Cell(NamedTuple):
    """Some adjacent children that are drawn as a single cell.

    Attributes:
        position: Number of the cell, counted from 0.
        state: Among the states of children with a row, the one that most needs attention.
        offset: Position, within the cell, of the first child in that state.
        bucket: Bucket of the longest duration.
        rows: How many of the children have a row.
    """

    position: int
    state: TaskState
    offset: int
    bucket: int
    rows: int


class SlowChild(NamedTuple):
    """A child that has ended, and how long its last try took."""

    task_no: TaskNo
    state: TaskState
    duration_us: int
