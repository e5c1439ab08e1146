"""Columns as the tables make them: one maker for each kind of thing that is kept."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Integer,
    LargeBinary,
    SmallInteger,
    Text,
)

__all__ = (
    "NUMBER",
    "PLACEHOLDER",
    "RANGE",
    "blob",
    "count",
    "flag",
    "instant",
    "key",
    "name",
    "number",
    "place",
    "small",
    "state",
    "text",
)

RANGE = "range"
"""In the ``info`` of a column of numbers: the least and the largest that make sense there."""

PLACEHOLDER = "placeholder"
"""In the ``info`` of a column: what stands for its value where that cannot be read."""

_MOST, _WIDEST = 2**53, 2**31 - 1
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # of years 1 and 9999

# A strict table of SQLite knows one integer type only.
NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_SMALL = SmallInteger().with_variant(Integer(), "sqlite")


def key(column: str) -> Column[int]:
    """Return a number that is the key of its table, and that we give out ourselves."""
    return Column(column, NUMBER, primary_key=True, autoincrement=False)


def number(
    column: str, *more: Any, null: bool = False, server_default: str | None = None
) -> Column[int]:
    """Return a number of any size, such as the key of another row."""
    return Column(column, NUMBER, *more, nullable=null, server_default=server_default)


def count(column: str, *, server_default: str | None = None, placeholder: int = 0) -> Column[int]:
    """Return a number that counts something."""
    info = {RANGE: (0, _MOST), PLACEHOLDER: placeholder}
    return Column(column, NUMBER, nullable=False, server_default=server_default, info=info)


def place(
    column: str, *, least: int = 0, null: bool = False, server_default: str | None = None
) -> Column[int]:
    """Return a place among others, or how many places there are: memory is taken for each."""
    info = {RANGE: (least, _WIDEST)}
    return Column(column, NUMBER, nullable=null, server_default=server_default, info=info)


def instant(column: str, *, null: bool = False) -> Column[int]:
    """Return when something happened, in microseconds since 1970: a year that a calendar has.

    What is to happen may lie behind all calendars, and is a ``number``.
    """
    return Column(column, NUMBER, nullable=null, info={RANGE: (_FIRST, _LAST)})


def text(
    column: str, *more: Any, null: bool = False, server_default: str | None = None
) -> Column[str]:
    """Return a text of any length."""
    return Column(column, Text(), *more, nullable=null, server_default=server_default)


def name(column: str, limit: int) -> Column[str]:
    """Return a text that is a key; PostgreSQL cannot index one of more than some 2,700 bytes."""
    check = CheckConstraint(f"length({column}) <= {limit}")
    return Column(column, Text(), check, primary_key=True)


def blob(column: str, *, null: bool = False, placeholder: bytes = b"") -> Column[bytes]:
    """Return bytes: what is packed, or sealed."""
    info = {PLACEHOLDER: None if null else placeholder}
    return Column(column, LargeBinary(), nullable=null, info=info)


def flag(column: str, *, server_default: str | None = None) -> Column[int]:
    """Return 0 or 1."""
    check = CheckConstraint(f"{column} BETWEEN 0 AND 1")
    info = {RANGE: (0, 1)}
    return Column(column, _SMALL, check, nullable=False, server_default=server_default, info=info)


def small(column: str) -> Column[int]:
    """Return a small number that only we check."""
    return Column(column, _SMALL, nullable=False)


def state(last: int, column: str = "state") -> Column[int]:
    """Return one of a few numbered states, from 0 on."""
    check = CheckConstraint(f"{column} BETWEEN 0 AND {last}")
    return Column(column, _SMALL, check, nullable=False, info={RANGE: (0, last)})
