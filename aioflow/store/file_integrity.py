"""Integrity check of a SQLite file.

Damage means damage to the pages of the file. A single value that its column does not allow is none.
It affects only its row and is reported when that is read, see ``checking``.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from aioflow.clock import SystemClock
from aioflow.errors import ForeignDatabase

__all__ = ("CHECK_SECONDS", "damage", "damage_of", "damaged")

CHECK_SECONDS = 1.0
"""Time limit for the check at a start after an unclean shutdown.

It suffices for some hundred megabytes in the system's cache. The rest of a larger file is checked
while the daemon works.
"""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR}
_LISTED = 100
_SHOWN = 3
"""Number of lines of damage in one message."""

_OF_VALUES = re.compile(
    r"(NULL|NUMERIC|TEXT|non-[A-Z]+) value in |CHECK constraint failed in ", re.ASCII
)
"""Beginnings of lines that report a value in a row."""

_MORE = 100
"""Factor for the number of lines to request if lines about values leave no room for others."""

_STEPS_BETWEEN_LOOKS = 20_000

_clock = SystemClock()


def damage(raw: sqlite3.Connection, seconds: float | None = None) -> list[str] | None:
    """Return the damage in the file, one line each.

    Args:
        seconds: Time limit. The result is ``None`` if it is exceeded, or if the connection is
            interrupted. SQLite before 3.40 checks the time only between two statements.
    """
    if seconds is not None:
        until = _clock.monotonic_us() + round(seconds * 1e6)
        raw.set_progress_handler(lambda: _clock.monotonic_us() > until, _STEPS_BETWEEN_LOOKS)
    try:
        return _found(raw, "quick_check", _SHOWN)
    except sqlite3.OperationalError as exc:
        if exc.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return None
    finally:
        raw.set_progress_handler(None, 0)


def damage_of(url: str) -> list[str]:
    """Return the damage in the file that a URL names, including inconsistent indexes.

    A file that is missing or no SQLite database has none. Opening it reports that.
    """
    scheme, _, path = url.partition(":///")
    if scheme != "sqlite" or not Path(path).exists():
        return []
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as raw:
            return _found(raw, "quick_check", _LISTED) or _found(raw, "integrity_check", _LISTED)
    except sqlite3.Error:
        return []


def _found(raw: sqlite3.Connection, check: str, limit: int) -> list[str]:
    """Return the lines of a check, without those about values."""
    try:
        rows = _rows(raw, check, limit)
    except sqlite3.DatabaseError as exc:
        if exc.sqlite_errorcode & 0xFF not in _DAMAGE:
            raise
        return _found_until_it_fails(raw, check) or [str(exc)]
    found = _of_pages(rows)
    if len(rows) < limit or len(found) == len(rows):
        return found
    return _found(raw, check, limit * _MORE)[:limit]


def _found_until_it_fails(raw: sqlite3.Connection, check: str) -> list[str]:
    """Return the first line of a check that fails later.

    A failing check loses the lines before its failure.
    """
    try:
        return _of_pages(_rows(raw, check, 1))  # the check ends by itself after one line
    except sqlite3.DatabaseError:
        return []


def _rows(raw: sqlite3.Connection, check: str, limit: int) -> list[str]:
    return [text for (text,) in raw.execute(f"PRAGMA {check}({limit})")]


def _of_pages(rows: list[str]) -> list[str]:
    found = [line for text in rows for line in text.splitlines()]
    return [
        line
        for line in found
        if line != "ok" and not line.startswith("***") and not _OF_VALUES.match(line)
    ]


def damaged(path: Path, what: str) -> ForeignDatabase:
    """Return the error for a damaged file, with the remedy."""
    return ForeignDatabase(
        f"{path} is damaged or no SQLite database: {what}. `aioflow db check` shows what is "
        "damaged; restore the last copy, or save what can be read with `.recover` of sqlite3: "
        "docs/how-to/repair-a-database.md"
    )
