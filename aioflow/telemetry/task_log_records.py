"""The records in which task logs are stored, and a reader of the records of one task.

After a damaged record, a reader continues with the next valid one. It skips records outside the
requested part, and does not even read long ones, so that a part of a log can be read regardless of
the log's size.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from bisect import bisect_right
from collections.abc import Sequence
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
    "LogReader",
    "Marks",
    "RecordHeader",
    "RecordScan",
    "first_timestamp",
    "open_log_file",
    "read_chain",
    "record_header",
)

RECORD_MAGIC = b"\x1eLOG"
_HEADER_FIELDS = struct.Struct("<4siIQqI")
_HEADER_CHECKSUM = struct.Struct("<I")
HEADER_SIZE = _HEADER_FIELDS.size + _HEADER_CHECKSUM.size
PIECE_BYTES = 256 * 1024
_UNBOUNDED = 1 << 62
_MARK_BYTES = 1024 * 1024
_MOST_MARKS = 4_096
_STDERR = 1 << 31
"""Added to the number of the try in the records of what was written to ``sys.stderr``."""


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
    """The header of a record. ``length`` is that of the data that follow."""

    map_index: int
    try_number: int
    start_no: StartNo
    at: Timestamp
    length: int
    is_stderr: bool


class Marks:
    """Known positions in a file, about one for each megabyte of the output of a log.

    Readers of the same log share them, also in several threads, so that no reader has to examine a
    large file from its beginning.
    """

    def __init__(self) -> None:
        self._all: list[tuple[int, int, StartNo]] = []

    def note(self, offset: int, position: int, start_no: StartNo) -> None:
        """Note the position of the record that begins at an offset of the output."""
        last = self._all[-1][0] if self._all else 0
        if offset >= last + _MARK_BYTES and len(self._all) < _MOST_MARKS:
            self._all.append((offset, position, start_no))

    def before(self, offset: int) -> tuple[int, int, StartNo]:
        """Return the last known offset up to this one, its position, and the execution before."""
        known = self._all
        at = bisect_right(known, offset, key=lambda mark: mark[0])
        return known[at - 1] if at else (0, 0, -1)

    def clear(self) -> None:
        """Forget all positions, because the file was replaced."""
        self._all = []


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


def first_timestamp(head: bytes) -> Timestamp:
    """Return the time of the first record of a file; 0 if its header is damaged."""
    if len(head) < HEADER_SIZE:
        return 0
    fields = head[: _HEADER_FIELDS.size]
    magic, _, _, _, at, _ = _HEADER_FIELDS.unpack(fields)
    checked = _HEADER_CHECKSUM.unpack_from(head, _HEADER_FIELDS.size)[0] == zlib.crc32(fields)
    return int(at) if checked and magic == RECORD_MAGIC else 0


def open_log_file(path: Path) -> BinaryIO | None:
    """Open a file for reading; return ``None`` if there is none, or if it is a link.

    aioflow never creates links: another user may have redirected the read.
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


class LogReader:
    """Reads the output of one task from a segment file, continuing where it stopped.

    Attributes:
        position: Position of the next record in the file.
        offset: Size of the task's output before that record.
        start_no: The execution whose output was read last; -1 if nothing was read yet.
    """

    def __init__(
        self,
        path: Path,
        map_index: int,
        part: LogPart = WHOLE_LOG,
        *,
        position: int = 0,
        offset: int = 0,
        start_no: StartNo = -1,
        marks: Marks | None = None,
    ) -> None:
        self._path = path
        self._map_index = map_index
        self._part = part
        self._marks = marks or Marks()
        self.position = position
        self.offset = offset
        self.start_no = start_no

    @property
    def key(self) -> tuple[Path, int, LogPart]:
        """The file, map index and part that it reads."""
        return self._path, self._map_index, self._part

    def read(self, start: int, limit: int | None = None) -> bytes:
        """Return up to ``limit`` bytes of output from ``start`` on; empty if there is no more."""
        return b"".join(piece.data for piece in self.read_pieces(start, limit))

    def read_pieces(self, start: int, limit: int | None = None) -> list[LogPiece]:
        """Return output as ``read`` does, divided where it was captured at different times.

        If ``start`` is before ``offset``, reading restarts at a known position before it.
        """
        file = open_log_file(self._path)
        if file is None:
            return []
        with file:
            if file.seek(0, 2) < self.position:
                self._marks.clear()
                self.position, self.offset, self.start_no = 0, 0, -1
            known = self._marks.before(start)
            if start < self.offset or known[0] > self.offset:
                self.offset, self.position, self.start_no = known
            return self._read(file, start, start + (_UNBOUNDED if limit is None else limit))

    def _read(self, file: BinaryIO, start: int, end: int) -> list[LogPiece]:
        found: list[LogPiece] = []
        scan = RecordScan(file, self.position)
        while self.offset < end and (record := scan.next_record()) is not None:
            length, start_no = record.length, record.start_no
            if record.map_index == self._map_index and self._part.includes(
                start_no, record.try_number
            ):
                said = self._part.between(self.start_no, start_no)
                after = self.offset + len(said) + length
                if after > start:
                    data = scan.data(length)
                    if data is None:
                        break  # the record is still being written
                    part = (said + data)[max(start - self.offset, 0) : end - self.offset]
                    found.append(LogPiece(record.at, start_no, record.is_stderr, part))
                    if after > end:
                        break  # the next call reads the record from its beginning
                if not scan.skip(length):
                    break
                self.offset, self.start_no = after, max(start_no, self.start_no)
                self._marks.note(self.offset, scan.position, self.start_no)
            elif not scan.skip(length):
                break
        self.position = scan.position
        return found


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
            fields = self._buffer[self._at : self._at + _HEADER_FIELDS.size]
            _, map_index, number, start_no, at, length = _HEADER_FIELDS.unpack(fields)
            checked = _HEADER_CHECKSUM.unpack_from(self._buffer, self._at + _HEADER_FIELDS.size)[0]
            if checked == zlib.crc32(fields):
                try_number, is_stderr = number & ~_STDERR, bool(number & _STDERR)
                return RecordHeader(map_index, try_number, start_no, at, length, is_stderr)
            self._at += 1

    def data(self, length: int) -> bytes | None:
        """Return the data of the record; ``None`` if the record is incomplete."""
        if not self._has(HEADER_SIZE + length):
            return None
        first = self._at + HEADER_SIZE
        return self._buffer[first : first + length]

    def skip(self, length: int) -> bool:
        """Move to the end of the record. Return ``False`` if the record is incomplete."""
        end = self.position + HEADER_SIZE + length
        if end > self._size:
            return False
        self._at += HEADER_SIZE + length
        if self._at > len(self._buffer):
            self._base, self._buffer, self._at = self._file.seek(end), b"", 0
        return True

    def _has(self, count: int) -> bool:
        """Fill the buffer with that many bytes. Return ``False`` if the file has fewer."""
        missing = count - (len(self._buffer) - self._at)
        if missing <= 0:
            return True
        piece = self._file.read(max(PIECE_BYTES, missing))
        self._base += self._at
        self._buffer, self._at = self._buffer[self._at :] + piece, 0
        return len(self._buffer) >= count


def read_chain(readers: Sequence[LogReader], start: int, limit: int | None) -> list[LogPiece]:
    """Return output of several files as if they were one."""
    found: list[LogPiece] = []
    base, left = 0, _UNBOUNDED if limit is None else limit
    for reader, after in zip(readers, (*readers[1:], None), strict=True):
        pieces = reader.read_pieces(max(start - base, 0), left)
        found += pieces
        left -= sum(len(piece.data) for piece in pieces)
        if after is not None:
            reader.read_pieces(_UNBOUNDED, 0)  # moves to its end, to find the size of its output
            base += reader.offset
            if after.offset == 0:
                after.start_no = max(after.start_no, reader.start_no)
    return found
