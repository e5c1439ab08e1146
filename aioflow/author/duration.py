"""Durations as authors write them: a timedelta, seconds, or ``"90s" "5m" "14h" "2d"``."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TypeAlias

from aioflow.errors import BadSchedule

__all__ = ("Duration", "as_timedelta", "microseconds")

Duration: TypeAlias = timedelta | float | str

_UNITS_US = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_LONGEST_US = 100 * 365 * _UNITS_US["d"]


def microseconds(value: Duration, what: str) -> int:
    """Return a duration in microseconds.

    A text may have several parts in any order: ``"1h30m"``.

    Args:
        value: The duration; a number means seconds.
        what: Names the duration in the error, such as ``timeout``.

    Raises:
        BadSchedule: If it is not a duration, is negative, or is longer than a hundred years.
    """
    length = _parsed(value)
    if length is None:
        raise BadSchedule(
            f"{what}={value!r} is not a duration; write seconds, a timedelta, "
            'or text such as "90s", "5m", "14h", "2d"'
        )
    if not 0 <= length <= _LONGEST_US:
        raise BadSchedule(f"{what}={value!r} must be between 0 and 100 years")
    return round(length)


def as_timedelta(value: Duration, what: str = "duration") -> timedelta:
    """Return a duration as a timedelta; see ``microseconds``."""
    return timedelta(microseconds=microseconds(value, what))


def _parsed(value: object) -> float | None:
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, str):
        return _from_text(value.replace(" ", ""))
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return value * 1_000_000


def _from_text(text: str) -> float | None:
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS_US[unit] for number, unit in parts)
