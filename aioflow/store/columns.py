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

__all__ = ("NUMBER", "blob", "flag", "key", "name", "number", "small", "state", "text")

# A strict table of SQLite knows one integer type only.
NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_SMALL = SmallInteger().with_variant(Integer(), "sqlite")


def key(column: str) -> Column[int]:
    """Return a number that is the key of its table, and that we give out ourselves."""
    return Column(column, NUMBER, primary_key=True, autoincrement=False)


def number(
    column: str, *more: Any, null: bool = False, server_default: str | None = None
) -> Column[int]:
    """Return a number, or an instant."""
    return Column(column, NUMBER, *more, nullable=null, server_default=server_default)


def text(
    column: str, *more: Any, null: bool = False, server_default: str | None = None
) -> Column[str]:
    """Return a text of any length."""
    return Column(column, Text(), *more, nullable=null, server_default=server_default)


def name(column: str, limit: int) -> Column[str]:
    """Return a text that is a key; PostgreSQL cannot index one of more than some 2,700 bytes."""
    check = CheckConstraint(f"length({column}) <= {limit}")
    return Column(column, Text(), check, primary_key=True)


def blob(column: str, *, null: bool = False) -> Column[bytes]:
    """Return bytes: what is packed, or sealed."""
    return Column(column, LargeBinary(), nullable=null)


def flag(column: str, *, server_default: str | None = None) -> Column[int]:
    """Return 0 or 1."""
    check = CheckConstraint(f"{column} BETWEEN 0 AND 1")
    return Column(column, _SMALL, check, nullable=False, server_default=server_default)


def small(column: str) -> Column[int]:
    """Return a small number that only we check."""
    return Column(column, _SMALL, nullable=False)


def state(last: int, column: str = "state") -> Column[int]:
    """Return one of a few numbered states, from 0 on."""
    check = CheckConstraint(f"{column} BETWEEN 0 AND {last}")
    return Column(column, _SMALL, check, nullable=False)
