"""``airflow.sdk.timezone``: UTC unless something else is said. Instants are plain ``datetime``."""

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
    """Return the time it is."""
    return dt.datetime.now(tz=utc)


def is_localized(value: dt.datetime) -> bool:
    """Say whether an instant knows its zone."""
    return value.utcoffset() is not None


def is_naive(value: dt.datetime) -> bool:
    """Say whether it does not."""
    return value.utcoffset() is None


def convert_to_utc(value: dt.datetime | None) -> dt.datetime | None:
    """Return an instant in UTC; one without a zone is taken to be."""
    if value is None:
        return None
    aware = value if is_localized(value) else make_aware(value)
    return aware.astimezone(utc)


def make_aware(value: dt.datetime, timezone: Any = None) -> dt.datetime:
    """Return an instant with a zone.

    Raises:
        ValueError: If it has one.
    """
    if is_localized(value):
        raise ValueError(f"make_aware expects a naive datetime, got {value}")
    return value.replace(tzinfo=timezone or utc)


def make_naive(value: dt.datetime, timezone: Any = None) -> dt.datetime:
    """Return what clocks in a zone showed, without saying which.

    Raises:
        ValueError: If it has no zone.
    """
    if is_naive(value):
        raise ValueError(f"make_naive expects an aware datetime, got {value}")
    return value.astimezone(timezone or utc).replace(tzinfo=None)


def parse(string: str, timezone: Any = None) -> dt.datetime:
    """Return the instant a text says, in ISO 8601.

    Raises:
        ValueError: If it is written in another way.
    """
    value = dt.datetime.fromisoformat(string)
    return value if is_localized(value) else make_aware(value, timezone)


def datetime(*args: Any, **kwargs: Any) -> dt.datetime:
    """Return an instant, in UTC unless ``tzinfo`` is given."""
    kwargs.setdefault("tzinfo", utc)
    return dt.datetime(*args, **kwargs)  # noqa: DTZ001 - see above
