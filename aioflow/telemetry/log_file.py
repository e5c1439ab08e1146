"""The records of a log segment file, and reading a part of one regardless of its size.

See ``telemetry.task_log`` for the format. Records outside the requested part are skipped, long ones
without reading them.
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

__all__ = ("ALL", "MAGIC", "LogPart", "LogReader", "header")

MAGIC = b"\x1eLOG"
_FIELDS = struct.Struct("<4siIQqI")
_CHECK = struct.Struct("<I")
_HEADER_SIZE = _FIELDS.size + _CHECK.size
_PIECE = 256 * 1024
_UNBOUNDED = 1 << 62


class LogPart(NamedTuple):
    """The executions of a task to read.

    Attributes:
        after: Only executions with a higher number.
        upto: Only executions up to this number; ``None`` for no limit.
        try_number: Only executions of the try with this number in the records; ``None`` for any.
        cleared: Numbers of the executions after which the task was cleared, each with the note
            to show before the output that follows.
    """

    after: StartNo = -1
    upto: StartNo | None = None
    try_number: int | None = None
    cleared: tuple[tuple[StartNo, bytes], ...] = ()

    def includes(self, start_no: StartNo, try_number: int) -> bool:
        """Return whether a record belongs to the part."""
        is_before = self.upto is None or start_no <= self.upto
        return self.after < start_no and is_before and self.try_number in {None, try_number}

    def between(self, before: StartNo, start_no: StartNo) -> bytes:
        """Return the note to show between the output of two executions; empty before the first."""
        said = [text for bound, text in self.cleared if before <= bound < start_no]
        return said[-1] if said and before >= 0 else b""


ALL = LogPart()


def header(map_index: int, try_number: int, start_no: int, at: Timestamp, length: int) -> bytes:
    """Return the header of a record, which precedes its data."""
    fields = _FIELDS.pack(MAGIC, map_index, try_number, start_no, at, length)
    return fields + _CHECK.pack(zlib.crc32(fields))


class LogReader:
    """Reads the output of one task from a segment file, continuing where it stopped.

    Attributes:
        position: Position of the next record in the file.
        offset: Size of the task's output before that record.
        start_no: The execution whose output was read last; -1 before the first.
    """

    def __init__(
        self,
        path: Path,
        map_index: int,
        part: LogPart = ALL,
        *,
        position: int = 0,
        offset: int = 0,
        start_no: StartNo = -1,
    ) -> None:
        self._path = path
        self._map_index = map_index
        self._part = part
        self.position = position
        self.offset = offset
        self.start_no = start_no

    @property
    def key(self) -> tuple[Path, int, LogPart]:
        """Identifies the output that it reads."""
        return self._path, self._map_index, self._part

    def read(self, start: int, limit: int | None = None) -> bytes:
        """Return up to ``limit`` bytes of output from ``start`` on; empty if there are none.

        If ``start`` is before ``offset``, reading restarts at the beginning of the file.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        except OSError as exc:
            if exc.errno != errno.ELOOP:
                raise
            return b""  # we never create links: another user wants a different file to be read
        with os.fdopen(descriptor, "rb") as file:
            if start < self.offset or file.seek(0, 2) < self.position:
                self.position, self.offset, self.start_no = 0, 0, -1
            return self._read(file, start, start + (_UNBOUNDED if limit is None else limit))

    def _read(self, file: BinaryIO, start: int, end: int) -> bytes:
        found: list[bytes] = []
        scan = _Scan(file, self.position)
        while self.offset < end and (record := scan.next_record()) is not None:
            map_index, try_number, start_no, length = record
            if map_index == self._map_index and self._part.includes(start_no, try_number):
                said = self._part.between(self.start_no, start_no)
                after = self.offset + len(said) + length
                if after > start:
                    data = scan.data(length)
                    if data is None:
                        break  # it is still being written
                    data = said + data
                    found.append(data[max(start - self.offset, 0) : end - self.offset])
                    if after > end:
                        break  # the next call reads it from its beginning
                if not scan.skip(length):
                    break
                self.offset, self.start_no = after, max(start_no, self.start_no)
            elif not scan.skip(length):
                break
        self.position = scan.position
        return b"".join(found)


class _Scan:
    """Reads a file record by record."""

    def __init__(self, file: BinaryIO, position: int) -> None:
        self._file = file
        self._size = file.seek(0, 2)
        self._buffer = b""
        self._base = file.seek(position)
        self._at = 0

    @property
    def position(self) -> int:
        """Position of the next record, or of an incomplete one."""
        return self._base + self._at

    def next_record(self) -> tuple[int, int, StartNo, int] | None:
        """Return map index, try, execution and length from the next valid header, if any."""
        while True:
            place = self._buffer.find(MAGIC, self._at)
            if place < 0:
                self._at = max(self._at, len(self._buffer) - len(MAGIC) + 1)
                if not self._has(_HEADER_SIZE):
                    return None
                continue
            self._at = place
            if not self._has(_HEADER_SIZE):
                return None
            fields = self._buffer[self._at : self._at + _FIELDS.size]
            _, map_index, try_number, start_no, _, length = _FIELDS.unpack(fields)
            checked = _CHECK.unpack_from(self._buffer, self._at + _FIELDS.size)[0]
            if checked == zlib.crc32(fields):
                return map_index, try_number, start_no, length
            self._at += 1

    def data(self, length: int) -> bytes | None:
        """Return the data of the record; ``None`` if it is incomplete."""
        if not self._has(_HEADER_SIZE + length):
            return None
        first = self._at + _HEADER_SIZE
        return self._buffer[first : first + length]

    def skip(self, length: int) -> bool:
        """Move behind the record. Return ``False`` if it is incomplete."""
        end = self.position + _HEADER_SIZE + length
        if end > self._size:
            return False
        self._at += _HEADER_SIZE + length
        if self._at > len(self._buffer):
            self._base, self._buffer, self._at = self._file.seek(end), b"", 0
        return True

    def _has(self, count: int) -> bool:
        """Fill the buffer with that many bytes. Return ``False`` if the file has fewer."""
        missing = count - (len(self._buffer) - self._at)
        if missing <= 0:
            return True
        piece = self._file.read(max(_PIECE, missing))
        self._base += self._at
        self._buffer, self._at = self._buffer[self._at :] + piece, 0
        return len(self._buffer) >= count
