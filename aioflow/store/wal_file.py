"""The write-ahead log of a SQLite file and its index, read and written without SQLite.

The formats are those of https://sqlite.org/walformat.html, which SQLite promises to keep. The
functions are only for a file that no connection of this process has open: closing a handle of the
index would drop the locks that SQLite has on it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ("Frame", "copy_again", "frames", "log_head", "log_path", "write_again")

_HEAD = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682  # the lowest bit is set if the checksums read words as big-endian
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

    After a failed sync of the log, the system may return bytes that are not on the disk and that no
    later sync writes. Writing them again makes them dirty.

    Raises:
        OSError: If that fails, too.
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

    A checkpoint that does not reach the end of the log advances this number without a sync. The
    number survives this process while another program has the database open. Lowering it is always
    safe, even if others read or copy at the same time.

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
        is_commit: It is the last frame of its transaction.
        head: The first hundred bytes of the page.
    """

    number: int
    is_commit: bool
    head: bytes


def frames(path: Path, *, verified: bool) -> Iterator[Frame]:
    """Yield the frames that belong to the log, in order, without remains of an earlier log.

    Args:
        verified: Stop at a wrong checksum, as SQLite does. Takes a minute for a long log.
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
