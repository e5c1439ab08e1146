"""Timestamps: microseconds since 1970-01-01 UTC, as rows and messages hold them, and as datetimes.

Names of lengths of time in the same unit end in ``_us``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Self, TypeAlias

__all__ = ("EARLIEST_DATE", "LATEST_DATE", "Moment", "Timestamp", "to_datetime", "to_timestamp")

Timestamp: TypeAlias = int

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Moment(NamedTuple):
    """One moment as several clocks show it, microseconds.

    Steady time is the wall clock without its steps: it advances with the monotonic clock. Every
    length of time is measured in it, so that its end can be stored as an instant; what people
    schedule, and what they read, is wall time.

    Attributes:
        now: The wall clock.
        steady: Steady time.
        monotonic: The monotonic clock of the machine.
        shift: By how much the wall clock is ahead of steady time because it has stepped.
    """

    now: int
    steady: int
    monotonic: int
    shift: int = 0

    @classmethod
    def of(cls, now: int) -> Self:
        """Return a moment of a wall clock that has never stepped."""
        return cls(now, now, now)


def to_timestamp(moment: datetime) -> int:
    """Return a datetime, which has a time zone, as an instant; what is finer is cut off."""
    return (moment - _EPOCH) // _MICROSECOND


def to_datetime(instant: int) -> datetime:
    """Return an instant in UTC.

    Raises:
        OverflowError: If no calendar has it.
    """
    return _EPOCH + instant * _MICROSECOND


EARLIEST_DATE = to_timestamp(datetime(1, 1, 2, tzinfo=UTC))
LATEST_DATE = to_timestamp(datetime(9999, 12, 31, tzinfo=UTC)) - 1
"""Between these the clock of every time zone has a date for an instant."""
