"""The records in which task logs are stored, and a scan of a file record by record.

After a damaged record, a scan continues with the next valid one. It skips long records without
reading them.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

from aioflow.model.ids import StartNo
from aioflow.model.timestamps import Timestamp

__all__ = (
    "HEADER_SIZE",
    "PIECE_BYTES",
    "RECORD_MAGIC",
    "WHOLE_LOG",
    "LogPart",
    "LogPiece",
    "RecordHeader",
    "RecordScan",
    "first_timestamp",
    "open_log_file",
    "read_header",
    "record_begin",
    "record_header",
)

RECORD_MAGIC = b"\x1eLOG"
_HEADER_FIELDS = struct.Struct("<4siIQqI")
_MAP_INDEX = struct.Struct("<i")
_HEADER_CHECKSUM = struct.Struct("<I")
_HEADER = struct.Struct(_HEADER_FIELDS.format + "I")
HEADER_SIZE = _HEADER.size
PIECE_BYTES = 256 * 1024
_STDERR = 1 << 31
"""Added to the try number in the header of a record that was written to ``sys.stderr``."""


class LogPart(NamedTuple):
    """The executions of a task whose output is to be read.

    Attributes:
        after: Only executions with a higher number.
        upto: Only executions up to this number; ``None`` for no limit.
        try_number: Only executions of the try with this number; ``None`` for any try.
        cleared: Numbers of executions after which the task was cleared, each with the note to show
            before the output that follows.
    """

    after: StartNo = -1
    upto: StartNo | None = None
    try_number: int | None = None
    cleared: tuple[tuple[StartNo, bytes], ...] = ()

    def includes(self, start_no: StartNo, try_number: int) -> bool:
        """Return whether a record of this execution and try belongs to the part."""
        is_before = self.upto is None or start_no <= self.upto
        return self.after < start_no and is_before and self.try_number in {None, try_number}

    def between(self, before: StartNo, start_no: StartNo) -> bytes:
        """Return the note to show between the output of two executions; empty if there is none."""
        said = [text for bound, text in self.cleared if before <= bound < start_no]
        return said[-1] if said and before >= 0 else b""


WHOLE_LOG = LogPart()


class LogPiece(NamedTuple):
    """Output of one execution that was captured at one time.

    Attributes:
        at: When it was captured.
        is_stderr: Whether it is known to have been written to ``sys.stderr``.
    """

    at: Timestamp
    start_no: StartNo
    is_stderr: bool
    data: bytes


class RecordHeader(NamedTuple):
    """The header of a record. ``length`` is the size of the data that follows it."""

    map_index: int
    try_number: int
    start_no: StartNo
    at: Timestamp
    length: int
    is_stderr: bool


def record_header(
    map_index: int,
    try_number: int,
    start_no: int,
    at: Timestamp,
    length: int,
    *,
    is_stderr: bool = False,
) -> bytes:
    """Return the header of a record, which precedes its data."""
    number = try_number | _STDERR if is_stderr else try_number
    fields = _HEADER_FIELDS.pack(RECORD_MAGIC, map_index, number, start_no, at, length)
    return fields + _HEADER_CHECKSUM.pack(zlib.crc32(fields))


def record_begin(map_index: int) -> bytes:
    """Return the bytes with which the records of one child begin."""
    return RECORD_MAGIC + _MAP_INDEX.pack(map_index)


def read_header(data: bytes, place: int) -> RecordHeader | None:
    """Return the header at a place; ``None`` if there is none, or it is damaged."""
    if len(data) < place + HEADER_SIZE:
        return None
    magic, map_index, number, start_no, at, length, checksum = _HEADER.unpack_from(data, place)
    if magic != RECORD_MAGIC or checksum != zlib.crc32(data[place : place + _HEADER_FIELDS.size]):
        return None
    is_stderr = bool(number & _STDERR)
    return RecordHeader(map_index, number & ~_STDERR, start_no, at, length, is_stderr)


def first_timestamp(head: bytes) -> Timestamp:
    """Return the time of the first record of a file; 0 if its header is damaged."""
    header = read_header(head, 0)
    return 0 if header is None else header.at


def open_log_file(path: Path) -> BinaryIO | None:
    """Open a file for reading; return ``None`` if there is none, or if it is a link.

    aioflow never creates links, so another user may have created this one to redirect the read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as exc:
        if exc.errno != errno.ELOOP:
            raise
        return None
    return os.fdopen(descriptor, "rb")


class RecordScan:
    """Reads a file record by record."""

    def __init__(self, file: BinaryIO, position: int) -> None:
        self._file = file
        self._size = file.seek(0, 2)
        self._buffer = b""
        self._base = file.seek(position)
        self._at = 0

    @property
    def position(self) -> int:
        """Position of the next record, which may be incomplete."""
        return self._base + self._at

    def next_record(self) -> RecordHeader | None:
        """Return the next valid header, if any."""
        while True:
            place = self._buffer.find(RECORD_MAGIC, self._at)
            if place < 0:
                self._at = max(self._at, len(self._buffer) - len(RECORD_MAGIC) + 1)
                if not self._has(HEADER_SIZE):
                    return None
                continue
            self._at = place
            if not self._has(HEADER_SIZE):
                return None
            if (header := read_header(self._buffer, self._at)) is not None:
                return header
            self._at += 1

    def data(self, length: int) -> bytes | None:
        """Return the data of the record; ``None`` if the record is incomplete."""
        if not self._has(HEADER_SIZE + length):
            return None
        first = self._at + HEADER_SIZE
        return self._buffer[first : first + length]

    def is_complete(self, length: int) -> bool:
        """Return whether the file contains all of the record."""
        return self.position + HEADER_SIZE + length <= self._size

    def skip(self, length: int) -> bool:
        """Move to the end of the record. Return ``False`` if the record is incomplete."""
        if not self.is_complete(length):
            return False
        self._at += HEADER_SIZE + length
        if self._at > len(self._buffer):
            self._base, self._buffer, self._at = self._file.seek(self.position), b"", 0
        return True

    def _has(self, count: int) -> bool:
        """Fill the buffer with at least ``count`` bytes. Return ``False`` if the file has fewer."""
        missing = count - (len(self._buffer) - self._at)
        if missing <= 0:
            return True
        piece = self._file.read(max(PIECE_BYTES, missing))
        self._base += self._at
        self._buffer, self._at = self._buffer[self._at :] + piece, 0
        return len(self._buffer) >= count
