"""An instant as rows and messages hold it, microseconds since 1970, and as a datetime."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ("as_datetime", "as_instant")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def as_instant(moment: datetime) -> int:
    """Return a datetime, which has a time zone, as an instant; what is finer is cut off."""
    return (moment - _EPOCH) // _MICROSECOND


def as_datetime(instant: int) -> datetime:
    """Return an instant in UTC.

    Raises:
        OverflowError: If no calendar has it.
    """
    return _EPOCH + instant * _MICROSECOND
