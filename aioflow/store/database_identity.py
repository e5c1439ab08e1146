"""Checks that a database file, its write-ahead log and a home belong together.

SQLite replays any log next to a file. To detect a wrong log, the header of the file has a number,
its ``user_version``, and the first transaction of each log increments it. Hence the file has either
the number right before this log, or one that this log contains. The initial number is random, so
that the log of another database does not fit by accident.

A database stores the identity of the home that created it in a row of ``meta``. The home has the
same identity in a file.
"""

from __future__ import annotations

import random
import shlex
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from aioflow.errors import StoreUnavailable, StrangeDatabase
from aioflow.settings.identity import draw_identity, find_identity, identity_file, keep_identity
from aioflow.store.wal_file import frames, log_path

__all__ = (
    "check_home",
    "check_log",
    "first_log",
    "next_log",
    "number_logs",
    "settle_identity",
)

_SCHEMA_AT, _LOG_NUMBER_AT = 40, 60
_LOG_NUMBERS = 2**31
_NUMBER = struct.Struct(">I")
_HEADER_BYTES = 100
_FIND_IDENTITY = "SELECT value FROM meta WHERE name = 'identity'"


class _Mark(NamedTuple):
    """Log number and schema cookie of a database header.

    A copy of the database has another schema cookie.
    """

    log_number: int
    schema: int


# ── the log ─────────────────────────────────────────────────────────────────────────────


def first_log(raw: sqlite3.Connection) -> None:
    """Set a random log number, for a database that is new or has none."""
    raw.execute(f"PRAGMA user_version = {random.SystemRandom().randrange(1, _LOG_NUMBERS)}")


def number_logs(raw: sqlite3.Connection) -> None:
    """Set the log number of a database that was created before log numbers existed."""
    if raw.execute("PRAGMA user_version").fetchone() == (0,):
        next_log(raw)
        first_log(raw)


def next_log(raw: sqlite3.Connection) -> None:
    """Increment the log number, in the first transaction of a log or as that transaction."""
    (number,) = raw.execute("PRAGMA user_version").fetchone()
    raw.execute(f"PRAGMA user_version = {(number + 1) % _LOG_NUMBERS}")


def check_log(path: Path, head: bytes) -> None:
    """Check that the log next to a file belongs to it. Neither is changed.

    Args:
        head: The first bytes of the file, empty if the file is empty or missing.

    Raises:
        StrangeDatabase: If SQLite would replay the log of another database, or discard one.
        StoreUnavailable: If the log cannot be read.
    """
    try:
        if _fits(path, head, verified=False) or _fits(path, head, verified=True):
            return
    except OSError as exc:
        raise StoreUnavailable(f"cannot read {log_path(path)}: {exc.strerror}") from exc
    log = log_path(path)
    aside = shlex.join(["mv", str(log), f"{log}.other"])
    raise StrangeDatabase(
        f"{log} is the log of another database than {path}: one of them was replaced, and neither "
        "was touched. Put back the file that the log belongs to; or, if the database was replaced "
        f"on purpose (a copy restored), move the log of the old one away: {aside}"
    )


def _fits(path: Path, head: bytes, *, verified: bool) -> bool:
    if not log_path(path).exists():
        return True
    marks, is_whole, has_frames = _marks(path, verified=verified)
    if not has_frames or (verified and not is_whole):
        return True  # SQLite would replay nothing
    if len(head) < _HEADER_BYTES:
        return False
    mark = _mark(head)
    if not marks or mark in marks:
        return True
    before = (marks[0].log_number - 1) % _LOG_NUMBERS
    return mark == (before, marks[0].schema)


def _marks(path: Path, *, verified: bool) -> tuple[Sequence[_Mark], bool, bool]:
    """Return the marks in the log, whether it has a whole transaction, and any frame."""
    marks: list[_Mark] = []
    is_whole = has_frames = False
    uncommitted: list[_Mark] = []
    for frame in frames(path, verified=verified):
        has_frames = True
        if frame.number == 1:
            uncommitted.append(_mark(frame.head))
        if frame.is_commit:
            marks += uncommitted
            uncommitted.clear()
            is_whole = True
    return marks, is_whole, has_frames


def _mark(head: bytes) -> _Mark:
    (number,) = _NUMBER.unpack_from(head, _LOG_NUMBER_AT)
    (schema,) = _NUMBER.unpack_from(head, _SCHEMA_AT)
    return _Mark(number % _LOG_NUMBERS, schema)


# ── the home ────────────────────────────────────────────────────────────────────────────


def check_home(path: Path, home: Path) -> None:
    """Check that a database does not belong to another home, before SQLite opens it for writing.

    An identity that is readable only with the log is checked later, by ``settle_identity``.

    Raises:
        StrangeDatabase: If it belongs to another home.
        HomeUnusable: If the identity of the home cannot be read.
    """
    known = find_identity(home)
    if known is None or not path.exists() or not path.stat().st_size:
        return
    try:
        # With ``immutable``, SQLite neither reads nor creates the log and its index.
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as raw:
            found = raw.execute(_FIND_IDENTITY).fetchone()
    except sqlite3.Error:
        return
    if found is not None and found[0] != known:
        raise _of_another_home(path, home)


def settle_identity(path: Path, home: Path, raw: sqlite3.Connection) -> None:
    """Record the shared identity where the home or the database lacks it.

    Raises:
        StrangeDatabase: If their identities differ.
        HomeUnusable: If the home cannot be read or written.
    """
    known = find_identity(home)
    found = raw.execute(_FIND_IDENTITY).fetchone()
    if found is None:
        identity = known or draw_identity()
        raw.execute("INSERT INTO meta (name, value) VALUES ('identity', ?)", (identity,))
    else:
        identity = found[0]
    if known is None:
        keep_identity(home, identity)
    elif known != identity:
        raise _of_another_home(path, home)


def _of_another_home(path: Path, home: Path) -> StrangeDatabase:
    file = identity_file(home)
    return StrangeDatabase(
        f"{path} is the database of another home than {home}, and was not touched. Name the "
        "database of this home; or, if this home is to take it over, remove "
        f"{shlex.quote(str(file))} and bring the key of the other home"
    )
