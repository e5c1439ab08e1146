"""The SQLite file: ownership, schema, connections, integrity, and translation of its errors.

In this module, damage means damage to the pages of the file. A value that its column does not allow
affects only its row. It is reported when the row is read, see ``columns``.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import StaticPool, create_engine

from aioflow.clock import SystemClock
from aioflow.errors import (
    BatchRefused,
    ForeignDatabase,
    SchemaMismatch,
    StoreUnavailable,
    StrangeDatabase,
    SyncFailed,
)
from aioflow.filesystem import full_disk
from aioflow.store.sqlite import wal_file
from aioflow.store.sqlite.lock import FileLock
from aioflow.store.sqlite.wal_file import (
    check_home,
    check_log,
    first_log,
    match_identity,
    next_log,
    number_logs,
)
from aioflow.store.tables import (
    REVISION_TABLE,
    check_revision,
    sqlite_schema_script,
    upgrade_schema,
)

__all__ = (
    "APPLICATION_ID",
    "BUSY_MS",
    "CHECK_SECONDS",
    "check_reader",
    "damaged_file",
    "full_check",
    "is_input_output_error",
    "is_sync_failure",
    "open_checkpointer",
    "open_reader",
    "open_writer",
    "prepare_file",
    "quick_check",
    "translated_errors",
)

CHECK_SECONDS = 1.0
"""Time limit for the check of the file during a start after an unclean shutdown.

It is enough for some hundred megabytes in the system's cache. The rest of a larger file is checked
while the daemon works.
"""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR}
_LISTED = 100
_SHOWN = 3
"""Maximum number of lines about damage in one message."""

_OF_VALUES = re.compile(
    r"(NULL|NUMERIC|TEXT|non-[A-Z]+) value in |CHECK constraint failed in ", re.ASCII
)
"""Matches the beginning of a line that reports a value in a row, not damage to a page."""

_MORE = 100
"""Factor by which the number of requested lines is raised if lines about values fill the limit."""

_STEPS_BETWEEN_LOOKS = 20_000

_clock = SystemClock()


def quick_check(raw: sqlite3.Connection, seconds: float | None = None) -> list[str] | None:
    """Return one line for each damage in the file.

    Args:
        seconds: Time limit. If it is exceeded, or if the connection is interrupted, the result is
            ``None``. SQLite before 3.40 checks the time only between two statements.
    """
    if seconds is not None:
        until = _clock.monotonic_us() + round(seconds * 1e6)
        raw.set_progress_handler(lambda: _clock.monotonic_us() > until, _STEPS_BETWEEN_LOOKS)
    try:
        return _lines_of_check(raw, "quick_check", _SHOWN)
    except sqlite3.OperationalError as exc:
        if exc.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return None
    finally:
        raw.set_progress_handler(None, 0)


def full_check(url: str) -> list[str]:
    """Return the damage in the file that a URL names, including inconsistent indexes.

    The result is empty for a missing file, and for a file that is not a SQLite database. Opening
    such a file reports the problem.
    """
    scheme, _, path = url.partition(":///")
    if scheme != "sqlite" or not Path(path).exists():
        return []
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as raw:
            return _lines_of_check(raw, "quick_check", _LISTED) or _lines_of_check(
                raw, "integrity_check", _LISTED
            )
    except sqlite3.Error:
        return []


def _lines_of_check(raw: sqlite3.Connection, check: str, limit: int) -> list[str]:
    """Run a SQLite check and return the lines it reports, except those about values in rows."""
    try:
        rows = _rows_of_check(raw, check, limit)
    except sqlite3.DatabaseError as exc:
        if exc.sqlite_errorcode & 0xFF not in _DAMAGE:
            raise
        return _first_line_of_check(raw, check) or [str(exc)]
    found = _lines_about_pages(rows)
    if len(rows) < limit or len(found) == len(rows):
        return found
    return _lines_of_check(raw, check, limit * _MORE)[:limit]


def _first_line_of_check(raw: sqlite3.Connection, check: str) -> list[str]:
    """Return the first line of a check that fails later on.

    When a check fails, SQLite discards the lines that it has found before.
    """
    try:
        return _lines_about_pages(
            _rows_of_check(raw, check, 1)
        )  # with a limit of one line, the check ends before it fails
    except sqlite3.DatabaseError:
        return []


def _rows_of_check(raw: sqlite3.Connection, check: str, limit: int) -> list[str]:
    return [text for (text,) in raw.execute(f"PRAGMA {check}({limit})")]


def _lines_about_pages(rows: list[str]) -> list[str]:
    found = [line for text in rows for line in text.splitlines()]
    return [
        line
        for line in found
        if line != "ok" and not line.startswith("***") and not _OF_VALUES.match(line)
    ]


def damaged_file(path: Path, what: str) -> ForeignDatabase:
    """Return the error for a damaged file, with the remedy."""
    return ForeignDatabase(
        f"{path} is damaged or not a SQLite database: {what}. `aioflow db check` shows what is "
        "damaged; restore the last copy, or save what can be read with `.recover` of sqlite3: "
        "docs/how-to/repair-a-database.md"
    )


APPLICATION_ID = int.from_bytes(b"aiof", "big")
"""Number in the file's header by which ``file(1)`` and aioflow recognize an aioflow database."""

BUSY_MS = 5_000
"""Time in milliseconds to wait for a lock, because another program may be reading the file."""

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_APPLICATION_ID_AT = 68
_WRITER_CACHE_KIB = 8 * 1024
"""Size of the writer's page cache.

If 200,000 tasks change in random order, updates touch pages all over the file. With 4 MiB they take
a sixth longer; 16 MiB is no faster than 8. For updates in order, the size does not matter.
"""
_CACHE_KIB = 2 * 1024
"""Size of the page cache of each reader and the checkpointer, which need each page only once."""
_WAL_LIMIT_BYTES = 4 * 1024 * 1024


def prepare_file(path: Path, lock: FileLock, home: Path | None = None) -> None:
    """Check that aioflow created the file and its schema is current. Fill an empty file.

    A file that aioflow did not create is only read, through the handle of the lock. SQLite could
    change such a file just by opening it, if the file was left in the middle of a transaction or
    has the log of another database.

    Args:
        path: The file.
        lock: The lock on the file.
        home: The home that the file must belong to.

    Raises:
        ForeignDatabase: If aioflow did not create the file, or the file is damaged.
        SchemaMismatch: If the schema is newer than this version of aioflow.
        StrangeDatabase: If the file belongs to another log or another home.
        StoreUnavailable: If the file cannot be written.
        SyncFailed: If a sync failed.
    """
    header = lock.head(_HEADER_BYTES)
    if header and not _is_ours(header):
        raise ForeignDatabase(f"{path} is a file that aioflow did not create; it is not touched")
    check_log(path, header)
    if home is not None:
        check_home(path, home)
    with translated_errors(path):
        _rewrite_log(path)
        with closing(_connect(path, "synchronous = FULL", "wal_autocheckpoint = 0")) as raw:
            _complete(path, lock, raw)
            if home is not None:
                match_identity(path, home, raw)


def _rewrite_log(path: Path) -> None:
    """Write and sync the whole log of an earlier process again, so that SQLite copies it again.

    There is no record of earlier failed syncs, nor of the processes in which they failed.
    """
    if not wal_file.log_head(path):
        return
    try:
        wal_file.write_again(path)
        wal_file.copy_again(path)
    except OSError as exc:
        raise SyncFailed(f"the log of {path} cannot be written again: {exc.strerror}") from exc


def _complete(path: Path, lock: FileLock, raw: sqlite3.Connection) -> None:
    # Query the id instead of reading it from the header. If a process was killed while it set the
    # id, SQLite now rolls that page back, and the file is empty afterwards.
    if _application_id(raw) != APPLICATION_ID:
        if lock.head(1):
            raise ForeignDatabase(f"{path} became another file while it was opened")
        # Set the id first, before the log exists. If the process is killed after that, the file is
        # either still empty or recognizable as ours.
        raw.execute("BEGIN IMMEDIATE")
        raw.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        first_log(raw)
        raw.execute("COMMIT")
    (mode,) = raw.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnavailable(f"{path} is on a file system without a write-ahead log")
    number_logs(raw)
    if _is_empty(raw):
        next_log(raw)
        raw.executescript(sqlite_schema_script())
    elif not _is_current(path, raw):
        next_log(raw)
        _migrate(raw)


def _is_empty(raw: sqlite3.Connection) -> bool:
    return raw.execute("SELECT name FROM sqlite_master").fetchone() is None


def _is_ours(header: bytes) -> bool:
    place = slice(_APPLICATION_ID_AT, _APPLICATION_ID_AT + 4)
    return header.startswith(_MAGIC) and header[place] == APPLICATION_ID.to_bytes(4, "big")


def _application_id(raw: sqlite3.Connection) -> int:
    number: int = raw.execute("PRAGMA application_id").fetchone()[0]
    return number


def _is_current(path: Path, raw: sqlite3.Connection) -> bool:
    names = {name for (name,) in raw.execute("SELECT name FROM sqlite_master")}
    if not names:
        return False
    product = revision = None
    if {"meta", REVISION_TABLE} <= names:
        product = raw.execute("SELECT value FROM meta WHERE name = 'product'").fetchone()
        revision = raw.execute(f"SELECT version_num FROM {REVISION_TABLE}").fetchone()
    return check_revision(str(path), product and product[0], revision and revision[0])


def _migrate(raw: sqlite3.Connection) -> None:
    """Migrate in one transaction.

    If the process is killed during the migration, the old schema remains.
    """
    engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
    # SQLAlchemy commits or rolls back. Alembic does not touch a transaction that is already open.
    with engine.begin() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        upgrade_schema(connection)


def check_reader(path: Path, raw: sqlite3.Connection) -> None:
    """Check that aioflow created a file opened for reading, and that its schema is current.

    Raises:
        ForeignDatabase: If aioflow did not create the file.
        SchemaMismatch: If the schema is not the one that this version of aioflow needs.
    """
    if _application_id(raw) != APPLICATION_ID:
        raise ForeignDatabase(f"{path} is a file that aioflow did not create")
    if not _is_current(path, raw):
        raise SchemaMismatch(f"{path} has an older schema; start the daemon once to migrate it")


# ── connections ─────────────────────────────────────────────────────────────────────────


def open_writer(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """Open the writing connection, without automatic checkpoints."""
    return _connect(
        path,
        f"synchronous = {synchronous}",
        "foreign_keys = ON",
        "wal_autocheckpoint = 0",
        f"journal_size_limit = {_WAL_LIMIT_BYTES}",
        cache_kib=_WRITER_CACHE_KIB,
    )


def open_checkpointer(path: Path) -> sqlite3.Connection:
    """Open a connection for checkpoints."""
    return _connect(path, "wal_autocheckpoint = 0")


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a read-only connection."""
    return _connect(path, "query_only = ON", mode="ro")


def _connect(
    path: Path, *pragmas: str, mode: str = "rw", cache_kib: int = _CACHE_KIB
) -> sqlite3.Connection:
    # A connection is created in one thread and used in another, but never in two at the same time.
    # The mode is rw, not rwc, so that a deleted file is not created again, empty.
    raw = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    ours = (f"busy_timeout = {BUSY_MS}", f"cache_size = -{cache_kib}", "mmap_size = 0")
    try:
        for pragma in (*ours, *pragmas):
            raw.execute(f"PRAGMA {pragma}")
    except BaseException:
        raw.close()  # the first pragma reads the file, and fails if it is damaged
        raise
    return raw


# ── errors ──────────────────────────────────────────────────────────────────────────────


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Translate errors of SQLite to errors of the store."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, UnicodeError) as exc:
        raise BatchRefused(f"the database refused the batch: {exc}") from exc
    except sqlite3.Error as exc:
        raise _meaning(path, exc) from exc


def _meaning(path: Path, exc: sqlite3.Error) -> Exception:
    code = getattr(exc, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_READONLY_DBMOVED:
        return StrangeDatabase(f"the database file {path} was moved away: {exc}")
    if is_sync_failure(exc):
        return SyncFailed(f"the disk failed to sync the database {path}: {exc}")
    match code & 0xFF:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return damaged_file(path, str(exc))
        case sqlite3.SQLITE_ERROR | sqlite3.SQLITE_SCHEMA:
            return StrangeDatabase(f"{path} is a different database: {exc}")
        case sqlite3.SQLITE_FULL:
            full = full_disk(path) or f"no space is left for the database {path}"
            return StoreUnavailable(f"{full}; free some, work then resumes by itself ({exc})")
        case _:
            full = full_disk(path)
            why = f"{full}; {exc}" if full else str(exc)
            return StoreUnavailable(f"the database {path} cannot be used: {why}")


def is_input_output_error(exc: BaseException | None) -> bool:
    """Return whether the disk failed. If so, the connection must not be used any more."""
    code: int = getattr(exc, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_IOERR


def is_sync_failure(exc: BaseException | None) -> bool:
    """Return whether a sync failed. If so, the content of the file is unknown."""
    code: int = getattr(exc, "sqlite_errorcode", 0)
    return code in {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}
