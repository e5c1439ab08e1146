"""Whether a SQLite file is damaged, and what to do with one that is.

Damage is what concerns the pages of the file. A single value that its column does not allow is
none: it affects only its row, which is named where it is read, see ``checking``.
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
"""How long a start after an unclean end may take for the check: enough for some hundred megabytes
that the system has in memory. Of a larger file the rest is checked while the daemon works."""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR}
_LISTED = 100
_SHOWN = 3
"""Lines of damage that one message tells."""

_OF_VALUES = re.compile(
    r"(NULL|NUMERIC|TEXT|non-[A-Z]+) value in |CHECK constraint failed in ", re.ASCII
)
"""How lines begin that tell of a value in a row."""

_MORE = 100
"""How many times as many lines are asked for where those of values leave no room for others."""

_STEPS_BETWEEN_LOOKS = 20_000

_clock = SystemClock()


def damage(raw: sqlite3.Connection, seconds: float | None = None) -> list[str] | None:
    """Return what is damaged in the file, a line each.

    Args:
        seconds: After which it is given up, with ``None``; also if the connection is interrupted.
            SQLite before 3.40 looks at the time only between two statements.
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
    """Return what is damaged in the file that a URL names, also where an index does not fit.

    What is no SQLite file, or not there, has none: whoever opens it is told.
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
    """Return the lines of a check, without those of values."""
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
    """Return the first line of a check that cannot go on, which loses the line before that."""
    try:
        return _of_pages(_rows(raw, check, 1))  # it ends by itself after that one
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
    """Return the error of a file that is damaged: what it is, and what to do."""
    return ForeignDatabase(
        f"{path} is damaged or no SQLite database: {what}. `aioflow db check` shows what is "
        "damaged; restore the last copy, or save what can be read with `.recover` of sqlite3: "
        "docs/how-to/mend-a-database.md"
    )
