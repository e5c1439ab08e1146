"""The write-ahead log of a SQLite file, and whether file, log and home belong together.

The log and its index are read and written without SQLite, in the formats of
https://sqlite.org/walformat.html, which SQLite promises not to change. The functions must not be
used while a connection of this process has the file open, because closing a handle of the index
would drop SQLite's locks on it.

SQLite replays any log next to a file. To detect a wrong log, the file has a log number in its
header, the ``user_version``. The first transaction of each log increments it. So the number in the
file is either one that this log contains, or the number right before. The initial number is random,
so that the log of another database does not fit by accident.

A database stores the identity of the home that created it in a row of ``meta``, and the home stores
the same identity in a file. A note in the home and the log itself show how the previous use of a
database ended.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from aioflow.errors import StoreUnavailable, StrangeDatabase
from aioflow.filesystem import make_folder, write_file
from aioflow.settings.home import find_identity, identity_file, new_identity, write_identity

__all__ = (
    "Frame",
    "LastShutdown",
    "check_home",
    "check_log",
    "copy_again",
    "first_log",
    "frames",
    "log_head",
    "log_path",
    "match_identity",
    "next_log",
    "number_logs",
    "write_again",
)

_HEAD = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682  # the lowest bit is set if the checksums use big-endian words
_CHUNK_BYTES = 1024 * 1024

_COPIED_AT = 96
"""Offset in the index of the number of frames that have been copied into the database."""


def log_path(path: Path) -> Path:
    """Return the path of the log of a database file. Symbolic links are resolved."""
    return Path(f"{path.resolve()}-wal")


def log_head(path: Path) -> bytes:
    """Return the first bytes of the log. They change when the log starts over."""
    try:
        with log_path(path).open("rb", buffering=0) as log:
            return log.read(_HEAD.size)
    except FileNotFoundError:
        return b""


def write_again(path: Path) -> None:
    """Write every byte of the log again, and sync it.

    After a failed sync of the log, the system may return bytes on reading that are not on the disk
    and that no later sync writes. If these bytes are written again, the next sync writes them.

    Raises:
        OSError: If writing or syncing fails again.
    """
    handle = os.open(log_path(path), os.O_RDWR | os.O_CLOEXEC)
    try:
        at = 0
        while chunk := os.pread(handle, _CHUNK_BYTES, at):
            at += os.pwrite(handle, chunk, at)
        os.fsync(handle)
    finally:
        os.close(handle)


def copy_again(path: Path, *, keep_open: bool = False) -> None:
    """Make the next checkpoint copy every page of the log, including those copied before.

    The index stores how many frames have been copied; this function sets that number to 0. A
    checkpoint that does not reach the end of the log advances the number without a sync. If another
    program has the database open, the number outlives this process. Lowering the number is always
    safe, even if other processes read or copy at the same time.

    Args:
        keep_open: Never close the handle, because SQLite has locks on the file in this process.
    """
    try:
        handle = os.open(f"{path.resolve()}-shm", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if os.fstat(handle).st_size >= _COPIED_AT + 4:
            os.pwrite(handle, bytes(4), _COPIED_AT)
    finally:
        if not keep_open:
            os.close(handle)


class Frame(NamedTuple):
    """One version of a page in the log.

    Attributes:
        number: Number of the page; the first is 1.
        is_commit: Whether this is the last frame of its transaction.
        head: The first hundred bytes of the page.
    """

    number: int
    is_commit: bool
    head: bytes


def frames(path: Path, *, verified: bool) -> Iterator[Frame]:
    """Yield the frames that belong to the log, in order, without remains of an earlier log.

    Args:
        verified: Stop at a wrong checksum, as SQLite does. The check of a long log takes a minute.
    """
    with log_path(path).open("rb") as log:
        head = log.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return
        magic, _, size, _, *rest = _HEAD.unpack(head)
        if magic & ~1 != _MAGIC:
            return
        order = ">" if magic & 1 else "<"
        total = _checksum(head[:24], order, (0, 0))
        if total != tuple(rest[2:]):
            return
        while len(frame := log.read(_FRAME.size + size)) == _FRAME.size + size:
            number, pages, *salts, first, second = _FRAME.unpack_from(frame)
            if salts != rest[:2]:
                return
            if verified:
                total = _checksum(frame[:8], order, total)
                total = _checksum(frame[_FRAME.size :], order, total)
                if total != (first, second):
                    return
            yield Frame(number, pages > 0, frame[_FRAME.size : _FRAME.size + 100])


def _checksum(content: bytes, order: str, before: tuple[int, int]) -> tuple[int, int]:
    first, second = before
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


_SCHEMA_AT, _LOG_NUMBER_AT = 40, 60
_LOG_NUMBERS = 2**31
_NUMBER = struct.Struct(">I")
_HEADER_BYTES = 100
_FIND_IDENTITY = "SELECT value FROM meta WHERE name = 'identity'"


class _Mark(NamedTuple):
    """Log number and schema cookie of a database header.

    A copy of the database gets another schema cookie.
    """

    log_number: int
    schema: int


# ── the log ─────────────────────────────────────────────────────────────────────────────


def first_log(raw: sqlite3.Connection) -> None:
    """Set a random log number in a database that has none yet."""
    raw.execute(f"PRAGMA user_version = {random.SystemRandom().randrange(1, _LOG_NUMBERS)}")


def number_logs(raw: sqlite3.Connection) -> None:
    """Set the log number of a database that was created before log numbers existed."""
    if raw.execute("PRAGMA user_version").fetchone() == (0,):
        next_log(raw)
        first_log(raw)


def next_log(raw: sqlite3.Connection) -> None:
    """Increment the log number. Called in the first transaction of each log."""
    (number,) = raw.execute("PRAGMA user_version").fetchone()
    raw.execute(f"PRAGMA user_version = {(number + 1) % _LOG_NUMBERS}")


def check_log(path: Path, head: bytes) -> None:
    """Check that the log next to a file belongs to the file, without changing either.

    Args:
        head: The first bytes of the file; empty if the file is empty or missing.

    Raises:
        StrangeDatabase: If SQLite would replay or discard the log of another database.
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
    """Return the marks in the log, and whether it has a complete transaction and any frame."""
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

    If the identity can be read only with the log, ``match_identity`` checks it later.

    Raises:
        StrangeDatabase: If the database belongs to another home.
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


def match_identity(path: Path, home: Path, raw: sqlite3.Connection) -> None:
    """Give the home and the database the same identity, if either or both have none yet.

    Raises:
        StrangeDatabase: If they have different identities.
        HomeUnusable: If the home cannot be read or written.
    """
    known = find_identity(home)
    found = raw.execute(_FIND_IDENTITY).fetchone()
    if found is None:
        identity = known or new_identity()
        raw.execute("INSERT INTO meta (name, value) VALUES ('identity', ?)", (identity,))
    else:
        identity = found[0]
    if known is None:
        write_identity(home, identity)
    elif known != identity:
        raise _of_another_home(path, home)


def _of_another_home(path: Path, home: Path) -> StrangeDatabase:
    file = identity_file(home)
    return StrangeDatabase(
        f"{path} is the database of another home than {home}, and was not touched. Name the "
        "database of this home; or, if this home is to take it over, remove "
        f"{shlex.quote(str(file))} and bring the key of the other home"
    )


_OPEN_NOTE = "open"


class LastShutdown:
    """How the last use of the database ended, and the note that records this for the next start.

    Attributes:
        was_clean: Whether the database was closed, and its whole log was copied to the file.
        sync_failed: Message of the sync failure that ended the previous process; empty if there was
            none.
    """

    def __init__(self, path: Path, home: Path | None) -> None:
        self._log = log_path(path)
        self._note = None if home is None else home / "run" / "database"
        said = ""
        if self._note is not None:
            with contextlib.suppress(FileNotFoundError), _translated_errors(self._note):
                said = self._note.read_text(encoding="utf-8", errors="replace")
        self.was_clean = not said and not self._has_log()
        self.sync_failed = "" if said == _OPEN_NOTE else said

    def begin(self) -> None:
        """Leave a note that the database is open.

        If the process is killed, the note remains, and the next start detects that.

        Raises:
            StoreUnavailable: If the home cannot be written.
        """
        if self._note is not None:
            with _translated_errors(self._note):
                make_folder(self._note.parent)
                write_file(self._note, _OPEN_NOTE.encode())

    def fail(self, message: str) -> None:
        """Write into the note why the process is about to exit.

        If the note cannot be written, the next start detects the unclean shutdown from the log.
        """
        if self._note is not None:
            with contextlib.suppress(OSError):
                write_file(self._note, message.encode())

    def close(self) -> None:
        """Delete the note after the database was closed, unless the log is not empty."""
        if self._note is not None and not self._has_log():
            with contextlib.suppress(OSError):  # then the next start checks the file needlessly
                self._note.unlink(missing_ok=True)

    def _has_log(self) -> bool:
        return self._log.exists() and self._log.stat().st_size > 0


@contextlib.contextmanager
def _translated_errors(note: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise StoreUnavailable(f"cannot use {note}: {exc.strerror}") from exc
