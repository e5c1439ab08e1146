"""Readers of the output of one task in segment files: by offset, by line, and of what follows.

A reader continues where it stopped. To read elsewhere, it begins at a known place (see
``task_log_index``). In a block that several children of a mapped task share, it finds the records
of its own child without examining the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

from aioflow.model.ids import StartNo
from aioflow.telemetry.task_log_index import Block, Mark, Marks
from aioflow.telemetry.task_log_records import (
    HEADER_SIZE,
    LogPiece,
    RecordHeader,
    RecordScan,
    open_log_file,
    read_header,
    record_begin,
)

__all__ = ("LogReader", "line_numbers", "offset_of_line", "read_chain")

_UNBOUNDED = 1 << 62
_NEAR_BYTES = 64 * 1024
_COUNTED_BYTES = 1024 * 1024


class _Wanted(NamedTuple):
    """A range of the output, and the pieces that were found."""

    start: int
    end: int
    found: list[LogPiece]


class LogReader:
    """Reads the output of one task from a segment file, continuing where it stopped.

    Args:
        marks: The output to read and its known places, shared with other readers of this output.
        mark: Where to begin.

    Attributes:
        position: Position in the file of a record at or before the next output.
        offset: Size of the task's output before that record.
        start_no: The execution whose output was read last; -1 if nothing was read yet.
    """

    def __init__(self, marks: Marks, mark: Mark) -> None:
        self._map_index = marks.map_index
        self._part = marks.part
        self._marks = marks
        self._move(mark)

    def _move(self, mark: Mark) -> None:
        self.offset, self.position, self.start_no = mark.offset, mark.position, mark.start_no

    def remember(self) -> None:
        """Remember where this reader has stopped, for another reader that begins there."""
        self._marks.remember(self._mark(0))

    def _mark(self, line_ends: int) -> Mark:
        return Mark(self.offset, line_ends, self.position, self.start_no)

    def begin_after(self, start_no: StartNo) -> None:
        """Take into account that an earlier file has output up to an execution."""
        self._marks.begin_after(start_no)
        if self.offset == 0:
            self.start_no = max(self.start_no, start_no)

    def read(self, start: int, limit: int | None = None) -> bytes:
        """Return up to ``limit`` bytes of output from ``start`` on; empty if there is no more."""
        return b"".join(piece.data for piece in self.read_pieces(start, limit))

    def read_pieces(self, start: int, limit: int | None = None) -> list[LogPiece]:
        """Return output as ``read`` does, in pieces that were each captured at one time."""
        file = open_log_file(self._marks.path)
        if file is None:
            return []
        with file:
            if file.seek(0, 2) < self.position:  # the file was replaced
                self._move(self._marks.before(0))
            if not self.offset <= start <= self.offset + _NEAR_BYTES:
                mark = self._marks.before(start)
                if start < self.offset or mark.position > self.position:
                    self._move(mark)
            end = start + (_UNBOUNDED if limit is None else limit)
            wanted = _Wanted(start, end, [])
            blocks = self._marks.blocks()
            while self._read_stretch(file, blocks, wanted):
                pass
            return wanted.found

    def mark_before(self, offset: int) -> Mark:
        """Return the last known place at or before an offset."""
        return self._marks.before(offset)

    def mark_before_line(self, line: int) -> Mark:
        """Return the last known place before the beginning of a line, counted from 1."""
        return self._marks.before_line(line)

    def move_to_end(self) -> Mark:
        """Read to the end of the output, and return a mark of the end."""
        mark = self._marks.before(_UNBOUNDED)
        pieces = self.read_pieces(mark.offset)
        line_ends = mark.line_ends + sum(piece.data.count(b"\n") for piece in pieces)
        return self._mark(line_ends)

    def _read_stretch(self, file: BinaryIO, blocks: Sequence[Block], wanted: _Wanted) -> bool:
        """Read the rest of a block, or all after the last one. Return whether to continue."""
        if self.offset >= wanted.end:
            return False
        place = bisect_right(blocks, self.position, key=lambda block: block.begin) - 1
        if place < 0 or self.position >= blocks[place].end:
            return self._read_records(file, _UNBOUNDED, wanted)
        block = blocks[place]
        groups = list(block.groups_of(self._map_index))
        records: list[tuple[int, RecordHeader, bytes]] | None = None
        if not any(self._part.includes(one.start_no, one.try_number) for one in groups):
            records = []
        elif block.is_shared_with(self._map_index):
            records = self._find_records(file, block, sum(one.size for one in groups))
        if records is None:
            return self._read_records(file, block.end, wanted)
        for position, record, data in records:
            if position < self.position:
                continue
            self.position = position
            if self.offset >= wanted.end:
                return False
            after = self._after(record)
            if after is not None and not self._take(record, after, data, wanted):
                return False
        self.position = block.end
        return True

    def _find_records(
        self, file: BinaryIO, block: Block, size: int
    ) -> list[tuple[int, RecordHeader, bytes]] | None:
        """Return the records of this task in a block, with their positions and data.

        Text in the output may look like a record. Then the size of the records that are found
        differs from the size in the index, and ``None`` is returned: each record has to be
        examined.

        Args:
            size: Bytes of output of this task in the block.
        """
        file.seek(block.begin)
        data = file.read(block.end - block.begin)
        begin = record_begin(self._map_index)
        found = []
        place = data.find(begin)
        while place >= 0:
            after = place + 1
            if (record := read_header(data, place)) is not None:
                after = place + HEADER_SIZE + record.length
                size -= record.length
                found.append((block.begin + place, record, data[place + HEADER_SIZE : after]))
            place = data.find(begin, after)
        return None if size else found

    def _read_records(self, file: BinaryIO, bound: int, wanted: _Wanted) -> bool:
        """Read records up to a position in the file. Return whether to continue there."""
        scan = RecordScan(file, self.position)
        while self.offset < wanted.end and scan.position < bound:
            record = scan.next_record()
            if record is None or not scan.is_complete(record.length):
                break
            after = self._after(record)
            if after is not None:
                data = scan.data(record.length) if after > wanted.start else None
                if not self._take(record, after, data, wanted):
                    break
            scan.skip(record.length)
        self.position = scan.position
        return scan.position >= bound

    def _after(self, record: RecordHeader) -> int | None:
        """Return the offset of the end of a record; ``None`` if it is not part of the output."""
        if record.map_index != self._map_index or not self._part.includes(
            record.start_no, record.try_number
        ):
            return None
        return self.offset + len(self._part.between(self.start_no, record.start_no)) + record.length

    def _take(self, record: RecordHeader, after: int, data: bytes | None, wanted: _Wanted) -> bool:
        """Add the requested part of a record. Return whether to read the next record.

        Args:
            after: The offset of the end of the record.
            data: The output; ``None`` if the record ends before the requested part.
        """
        if data is not None and after > wanted.start:
            whole = self._part.between(self.start_no, record.start_no) + data
            part = whole[max(wanted.start - self.offset, 0) : wanted.end - self.offset]
            wanted.found.append(LogPiece(record.at, record.start_no, record.is_stderr, part))
            if after > wanted.end:
                return False  # the next call reads the record from its beginning
        self.offset, self.start_no = after, max(record.start_no, self.start_no)
        return True


def read_chain(readers: Sequence[LogReader], start: int, limit: int | None) -> list[LogPiece]:
    """Return output of several files as if they were one."""
    found: list[LogPiece] = []
    base, left = 0, _UNBOUNDED if limit is None else limit
    for reader, after in zip(readers, (*readers[1:], None), strict=True):
        pieces = reader.read_pieces(max(start - base, 0), left)
        found += pieces
        left -= sum(len(piece.data) for piece in pieces)
        if after is not None:
            reader.read_pieces(_UNBOUNDED, 0)  # moves to the end, to find the size of the output
            base += reader.offset
            after.begin_after(reader.start_no)
    return found


def line_numbers(readers: Sequence[LogReader], offsets: Sequence[int]) -> list[int]:
    """Return the numbers of the lines that begin at these offsets, which must be ascending."""
    files = _with_bases(readers)
    found: list[int] = []
    at = line_ends = 0
    for offset in offsets:
        reader, base = [one for one in files if one[1].offset <= offset][-1]
        mark = reader.mark_before(offset - base.offset)
        if base.offset + mark.offset > at:
            at, line_ends = base.offset + mark.offset, base.line_ends + mark.line_ends
        while at < offset and (data := _data(readers, at, min(offset - at, _COUNTED_BYTES))):
            line_ends += data.count(b"\n")
            at += len(data)
        found.append(line_ends + 1)
    return found


def offset_of_line(readers: Sequence[LogReader], line: int) -> int:
    """Return the offset of a line, counted from 1; the end of the log if it has fewer lines."""
    if line <= 1:
        return 0
    files = [one for one in _with_bases(readers) if one[1].line_ends < line - 1]
    reader, base = files[-1]
    mark = reader.mark_before_line(line - base.line_ends)
    offset, missing = base.offset + mark.offset, line - 1 - base.line_ends - mark.line_ends
    while data := _data(readers, offset, _COUNTED_BYTES):
        count = data.count(b"\n")
        if count >= missing:
            return offset + _after_line_ends(data, missing)
        missing, offset = missing - count, offset + len(data)
    return offset


def _with_bases(readers: Sequence[LogReader]) -> list[tuple[LogReader, Mark]]:
    """Return each reader with the place at which the output of its file begins."""
    found, base = [], Mark()
    for reader, after in zip(readers, (*readers[1:], None), strict=True):
        found.append((reader, base))
        if after is not None:
            end = reader.move_to_end()
            base = Mark(base.offset + end.offset, base.line_ends + end.line_ends)
            after.begin_after(end.start_no)
    return found


def _data(readers: Sequence[LogReader], offset: int, limit: int) -> bytes:
    return b"".join(piece.data for piece in read_chain(readers, offset, limit))


def _after_line_ends(data: bytes, count: int) -> int:
    """Return the position after a number of line ends."""
    position = 0
    for _ in range(count):
        position = data.index(b"\n", position) + 1
    return position
