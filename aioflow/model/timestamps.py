"""Timestamps: microseconds since 1970-01-01 UTC, in rows and messages, and as datetimes.

Names of durations in microseconds end in ``_us``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Self, TypeAlias

__all__ = ("EARLIEST_DATE", "LATEST_DATE", "Moment", "Timestamp", "to_datetime", "to_timestamp")

Timestamp: TypeAlias = int

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Moment(NamedTuple):
    """One moment on several clocks, in microseconds.

    Steady time is the wall clock without its steps: it advances with the monotonic clock. Every
    duration is measured in steady time, so that its end can be stored as a timestamp. Times that
    people schedule or read are wall time.

    Attributes:
        now: The wall clock.
        steady: Steady time.
        monotonic: The monotonic clock of the machine.
        shift: How far the wall clock is ahead of steady time, because it was stepped.
    """

    now: int
    steady: int
    monotonic: int
    shift: int = 0

    @classmethod
    def of(cls, now: int) -> Self:
        """Return a moment for a wall clock that was never stepped."""
        return cls(now, now, now)


def to_timestamp(moment: datetime) -> int:
    """Return the timestamp of a time-zone-aware datetime, rounded down to microseconds."""
    return (moment - _EPOCH) // _MICROSECOND


def to_datetime(instant: int) -> datetime:
    """Return a timestamp as a datetime in UTC.

    Raises:
        OverflowError: If it is outside the range of datetimes.
    """
    return _EPOCH + instant * _MICROSECOND


EARLIEST_DATE = to_timestamp(datetime(1, 1, 2, tzinfo=UTC))
LATEST_DATE = to_timestamp(datetime(9999, 12, 31, tzinfo=UTC)) - 1
"""The earliest and latest timestamp that have a date in every time zone."""
