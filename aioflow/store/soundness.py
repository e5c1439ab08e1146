"""Whether a SQLite file is damaged, and what to do with one that is."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from aioflow.clock import SystemClock
from aioflow.errors import ForeignDatabase

__all__ = ("CHECK_SECONDS", "damage", "damage_of", "damaged")

CHECK_SECONDS = 1.0
"""How long a start after an unclean end may take for the check: enough for about 1 GB that the
system has in memory. Of a larger file the rest is checked while the daemon works."""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR}
_LISTED = 100
_SHOWN = 3
"""Lines of damage that one message tells."""

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
        rows = raw.execute(f"PRAGMA quick_check({_SHOWN})").fetchall()
    except sqlite3.DatabaseError as exc:
        code = exc.sqlite_errorcode & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            return None
        if code not in _DAMAGE:
            raise
        return [str(exc)]
    finally:
        raw.set_progress_handler(None, 0)
    return _lines(rows)


def damage_of(url: str) -> list[str]:
    """Return what is damaged in the file that a URL names, also where an index does not fit.

    What is not ours, or not there, has none: whoever opens it is told.
    """
    scheme, _, path = url.partition(":///")
    if scheme != "sqlite" or not Path(path).exists():
        return []
    try:
        uri = f"{Path(path).absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as raw:
            rows = raw.execute(f"PRAGMA integrity_check({_LISTED})").fetchall()
    except sqlite3.DatabaseError as exc:
        return [str(exc)] if exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CORRUPT else []
    return _lines(rows)


def _lines(rows: Sequence[tuple[str]]) -> list[str]:
    lines = [line for (text,) in rows for line in text.splitlines()]
    return [line for line in lines if line != "ok" and not line.startswith("***")]


def damaged(path: Path, what: str) -> ForeignDatabase:
    """Return the error of a file that is damaged: what it is, and what to do."""
    return ForeignDatabase(
        f"{path} is damaged or no SQLite database: {what}. `aioflow db check` shows what is "
        "damaged; restore the last copy, or save what can be read with `.recover` of sqlite3: "
        "docs/how-to/mend-a-database.md"
    )
