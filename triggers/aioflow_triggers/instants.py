"""Times and durations as authors write them, also as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from aioflow import Duration, as_timedelta

__all__ = ("instant_of", "signed_timedelta")


def instant_of(value: datetime | str, name: str) -> datetime:
    """Return a time that may be given as ISO 8601 text, such as ``current.ts``.

    Args:
        name: The name of the field, for the error.

    Raises:
        ValueError: If it is invalid, has no time zone, or is out of range in UTC.
    """
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if moment.tzinfo is None:
        raise ValueError(f"{name}={value} needs a time zone")
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{name}={value} is in no year from 1 to 9999 in UTC") from None
    return moment


def signed_timedelta(value: Duration, name: str) -> timedelta:
    """Return a duration that may be negative, such as ``-3600`` or ``"-1h"``.

    Raises:
        DagError: If it is not a duration.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str) and value.lstrip().startswith("-"):
        return -as_timedelta(value.lstrip()[1:], name)
    if isinstance(value, int | float) and value < 0:
        return -as_timedelta(-value, name)
    return as_timedelta(value, name)
