"""Constructors for the columns of the tables, one for each kind of value."""

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
"""Key in the ``info`` of a numeric column: the lowest and the highest valid value."""

PLACEHOLDER = "placeholder"
"""Key in the ``info`` of a column: the substitute for an unreadable value."""

_MOST, _WIDEST = 2**53, 2**31 - 1
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # of years 1 and 9999

# Strict tables of SQLite have only one integer type.
NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_SMALL = SmallInteger().with_variant(Integer(), "sqlite")


def key(column: str) -> Column[int]:
    """Return a primary key column for numbers that the program assigns."""
    return Column(column, NUMBER, primary_key=True, autoincrement=False)


def number(
    column: str, *more: Any, null: bool = False, server_default: str | None = None
) -> Column[int]:
    """Return a column for a number of any size, such as the key of another row."""
    return Column(column, NUMBER, *more, nullable=null, server_default=server_default)


def count(column: str, *, server_default: str | None = None, placeholder: int = 0) -> Column[int]:
    """Return a column for a count."""
    info = {RANGE: (0, _MOST), PLACEHOLDER: placeholder}
    return Column(column, NUMBER, nullable=False, server_default=server_default, info=info)


def place(
    column: str, *, least: int = 0, null: bool = False, server_default: str | None = None
) -> Column[int]:
    """Return a column for an index or a width, limited because memory is allocated for each."""
    info = {RANGE: (least, _WIDEST)}
    return Column(column, NUMBER, nullable=null, server_default=server_default, info=info)


def instant(column: str, *, null: bool = False) -> Column[int]:
    """Return a column for a past time in microseconds since 1970, within years 1 to 9999.

    A future time may be later than any calendar year, so its column is a ``number``.
    """
    return Column(column, NUMBER, nullable=null, info={RANGE: (_FIRST, _LAST)})


def text(
    column: str, *more: Any, null: bool = False, server_default: str | None = None
) -> Column[str]:
    """Return a column for a text of any length."""
    return Column(column, Text(), *more, nullable=null, server_default=server_default)


def name(column: str, limit: int) -> Column[str]:
    """Return a text column as primary key.

    Its length is limited because PostgreSQL cannot index a text of more than about 2,700 bytes.
    """
    check = CheckConstraint(f"length({column}) <= {limit}")
    return Column(column, Text(), check, primary_key=True)


def blob(column: str, *, null: bool = False, placeholder: bytes = b"") -> Column[bytes]:
    """Return a column for packed or encrypted bytes."""
    info = {PLACEHOLDER: None if null else placeholder}
    return Column(column, LargeBinary(), nullable=null, info=info)


def flag(column: str, *, server_default: str | None = None) -> Column[int]:
    """Return a column for 0 or 1."""
    check = CheckConstraint(f"{column} BETWEEN 0 AND 1")
    info = {RANGE: (0, 1)}
    return Column(column, _SMALL, check, nullable=False, server_default=server_default, info=info)


def small(column: str) -> Column[int]:
    """Return a column for a small number that only the program checks."""
    return Column(column, _SMALL, nullable=False)


def state(last: int, column: str = "state") -> Column[int]:
    """Return a column for a numbered state, from 0 to ``last``."""
    check = CheckConstraint(f"{column} BETWEEN 0 AND {last}")
    return Column(column, _SMALL, check, nullable=False, info={RANGE: (0, last)})
