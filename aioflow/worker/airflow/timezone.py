"""``airflow.sdk.timezone``: UTC by default. Timestamps are plain ``datetime`` objects."""

from __future__ import annotations

import datetime as dt
from typing import Any

__all__ = (
    "convert_to_utc",
    "datetime",
    "is_localized",
    "is_naive",
    "make_aware",
    "make_naive",
    "parse",
    "utc",
    "utcnow",
)

utc = dt.UTC


def utcnow() -> dt.datetime:
    """Return the current time in UTC."""
    return dt.datetime.now(tz=utc)


def is_localized(value: dt.datetime) -> bool:
    """Return whether a ``datetime`` has a time zone."""
    return value.utcoffset() is not None


def is_naive(value: dt.datetime) -> bool:
    """Return whether a ``datetime`` has no time zone."""
    return value.utcoffset() is None


def convert_to_utc(value: dt.datetime | None) -> dt.datetime | None:
    """Convert a ``datetime`` to UTC. A naive one is assumed to be in UTC."""
    if value is None:
        return None
    aware = value if is_localized(value) else make_aware(value)
    return aware.astimezone(utc)


def make_aware(value: dt.datetime, timezone: Any = None) -> dt.datetime:
    """Attach a time zone to a naive ``datetime``.

    Raises:
        ValueError: If the ``datetime`` already has a time zone.
    """
    if is_localized(value):
        raise ValueError(f"make_aware expects a naive datetime, got {value}")
    return value.replace(tzinfo=timezone or utc)


def make_naive(value: dt.datetime, timezone: Any = None) -> dt.datetime:
    """Convert an aware ``datetime`` to a time zone and remove the zone.

    Raises:
        ValueError: If the ``datetime`` has no time zone.
    """
    if is_naive(value):
        raise ValueError(f"make_naive expects an aware datetime, got {value}")
    return value.astimezone(timezone or utc).replace(tzinfo=None)


def parse(string: str, timezone: Any = None) -> dt.datetime:
    """Parse an ISO 8601 timestamp.

    Raises:
        ValueError: If the text has another format.
    """
    value = dt.datetime.fromisoformat(string)
    return value if is_localized(value) else make_aware(value, timezone)


def datetime(*args: Any, **kwargs: Any) -> dt.datetime:
    """Create a ``datetime``, in UTC unless ``tzinfo`` is given."""
    kwargs.setdefault("tzinfo", utc)
    return dt.datetime(*args, **kwargs)  # noqa: DTZ001 - see above
