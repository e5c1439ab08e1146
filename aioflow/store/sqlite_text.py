"""Reads of SQLite that return the bytes of a text that is not UTF-8, to report the damage.

The driver raises for the whole result if one text is not UTF-8. Such a statement is repeated with a
decoder that costs a call for each text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from aioflow.store.rows import Values

__all__ = ("PagedResult", "fetch_rows")

_Question = tuple[str, tuple[Any, ...]]


def fetch_rows(raw: sqlite3.Connection, question: _Question) -> list[Values]:
    """Return all rows of a result."""
    try:
        return raw.execute(*question).fetchall()
    except sqlite3.OperationalError as exc:
        if not _is_no_text(exc):
            raise
    before = raw.text_factory
    raw.text_factory = _text
    try:
        return raw.execute(*question).fetchall()
    finally:
        raw.text_factory = before


class PagedResult:
    """A result that is fetched a page at a time, within one transaction.

    Args:
        raw: A connection used only for this result.
    """

    def __init__(self, raw: sqlite3.Connection, question: _Question) -> None:
        self._raw = raw
        self._question = question
        self._cursor = raw.execute(*question)
        self._fetched = 0

    def fetch(self, count: int) -> Sequence[Values]:
        """Return up to that many of the next rows, fewer at the end of the result."""
        try:
            page = self._cursor.fetchmany(count)
        except sqlite3.OperationalError as exc:
            if not _is_no_text(exc):
                raise
            page = self._fetch_again(count)
        self._fetched += len(page)
        return page

    def _fetch_again(self, count: int) -> list[Any]:
        self._raw.text_factory = _text
        self._cursor = self._raw.execute(*self._question)
        for _ in range(self._fetched):
            self._cursor.fetchone()
        return self._cursor.fetchmany(count)


def _text(raw: bytes) -> str | tuple[bytes]:
    """Return the text, or its bytes in a tuple if it is not UTF-8.

    The tuple differs from the value of a bytes column, which would accept plain bytes.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return (raw,)


def _is_no_text(exc: sqlite3.OperationalError) -> bool:
    return str(exc).startswith("Could not decode to UTF-8")
