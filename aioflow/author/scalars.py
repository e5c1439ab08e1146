"""The msgpack form of values without items, and the extension codes for other types."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Rounded
from pathlib import PurePath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from msgspec.msgpack import Ext

__all__ = (
    "BASES",
    "EXTENSIONS",
    "INT_HIGH",
    "INT_LOW",
    "Misfit",
    "Tag",
    "based",
    "checked_float",
    "has_more_digits",
    "packed_int",
)

INT_LOW, INT_HIGH = -(1 << 63), (1 << 64) - 1
"""The range of integers in msgpack."""

BASES = (str, int, float, bytes, datetime, date, PurePath, Decimal)
"""Instances of subclasses of these, such as the str of a template library, are encoded as these."""

_DIGITS_PER_BYTE = 3  # a Decimal holds 19 digits in 8 bytes
_encoder = msgspec.msgpack.Encoder()


class Misfit(Exception):
    """A value cannot be serialized; the caller adds its location.

    Attributes:
        value_type: The name of its type.
        why: The reason.
    """

    def __init__(self, value_type: str, why: str) -> None:
        super().__init__(value_type, why)
        self.value_type = value_type
        self.why = why


class Tag:
    """Codes of the msgpack extensions. They are stored: never change or reuse one."""

    INT = 1
    DATE = 2
    DATETIME = 3
    TIME = 4
    TIMEDELTA = 5
    DECIMAL = 6
    UUID = 7
    PATH = 8
    TUPLE = 9
    SET = 10
    FROZENSET = 11
    MAP = 12


def checked_float(value: float) -> float:
    """Return a finite number.

    Raises:
        Misfit: If it is infinite or NaN.
    """
    if not math.isfinite(value):
        raise Misfit("float", f"{value} is no number")
    return value


def packed_int(value: int) -> int | Ext:
    """Return an integer, as an extension if it is out of the range of msgpack."""
    if INT_LOW <= value <= INT_HIGH:
        return value
    return Ext(Tag.INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def has_more_digits(value: Decimal, count: int) -> bool:
    """Return whether the text of a finite number is longer than ``count``, without creating it."""
    if _DIGITS_PER_BYTE * Decimal.__sizeof__(value) <= count:
        return False
    context = Context(prec=max(1, min(count, MAX_PREC)), Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
    context.plus(value)
    return bool(context.flags[Rounded])


def based(value: Any) -> Any:
    """Return an instance of a subclass of text or a number as the base type, else itself."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return value


def _decimal(value: Decimal) -> bytes:
    if not value.is_finite():
        raise Misfit("Decimal", f"{Decimal.__format__(value, '')[:20]} is no number")
    return Decimal.__str__(value).encode()


def _datetime(value: datetime) -> bytes:
    """Encode the local time, the name of its zone if it has one, and the ``fold``."""
    zone = getattr(value.tzinfo, "key", None)
    if isinstance(value.tzinfo, ZoneInfo) and zone is not None:
        wall = datetime.isoformat(value.replace(tzinfo=None))
        return f"{wall};{value.fold};{zone}".encode()
    return f"{datetime.isoformat(value)};{value.fold};".encode()


def _time(value: time) -> bytes:
    if value.tzinfo is not None and not isinstance(value.tzinfo, timezone):
        raise Misfit("time with a zone", "its offset depends on the day")
    return f"{value.isoformat()};{value.fold}".encode()


EXTENSIONS: tuple[tuple[type, int, Callable[[Any], bytes]], ...] = (
    (datetime, Tag.DATETIME, _datetime),
    (date, Tag.DATE, lambda value: date.isoformat(value).encode()),
    (time, Tag.TIME, _time),
    (
        timedelta,
        Tag.TIMEDELTA,
        lambda value: _encoder.encode((value.days, value.seconds, value.microseconds)),
    ),
    (Decimal, Tag.DECIMAL, _decimal),
    (UUID, Tag.UUID, lambda value: value.bytes),
    (PurePath, Tag.PATH, lambda value: os.fsencode(str(value))),
)
"""Classes, their codes, and their encoders; a subclass comes before its base class."""
