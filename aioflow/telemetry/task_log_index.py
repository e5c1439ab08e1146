"""The index of a segment file: what each block of about a megabyte contains.

The index is beside the file, with the suffix ``.index``. It begins with the header of the first
record of the file, so that the index of a file that was replaced is not used. Then one entry per
block follows, with the number of bytes and line ends of each execution that printed in the block.
So any line, offset or time is found by reading the index and one block of the file.

The index can be computed from the file alone. The writer of logs extends it whenever a block is
full. Entries that are missing, because the process was killed or the file is a copy, are computed
when they are needed.
"""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple

from aioflow.model.ids import StartNo
from aioflow.model.timestamps import Timestamp
from aioflow.telemetry.task_log_records import HEADER_SIZE, LogPart, RecordScan, open_log_file

__all__ = ("BLOCK_BYTES", "Block", "LogIndexes", "Mark", "Marks", "delete_log_file")

BLOCK_BYTES = 1024 * 1024

_HEAD_FIELDS = struct.Struct("<QQqI")
_CHECKSUM = struct.Struct("<I")
_HEAD = struct.Struct(_HEAD_FIELDS.format + "I")
_GROUP = struct.Struct("<iIQQQ")
_MAP_INDEX = struct.Struct("<i")
_CACHED_BYTES = 16 * 1024 * 1024
_CACHED_FILES = 4_096
_BLOCK_COST = 256
"""Memory of a block without its groups, in bytes."""

_STOPPED_READERS = 8
"""Maximum number of remembered places at which readers of one log have stopped."""


class _Group(NamedTuple):
    """The output of one execution in a block."""

    map_index: int
    try_number: int
    start_no: StartNo
    size: int
    line_ends: int


class Block(NamedTuple):
    """A part of a file. It begins and ends between two records.

    Attributes:
        at: The highest time of all records up to the end.
        groups: The executions, packed and ordered by map index. Executions of one child are in the
            order of their first output.
    """

    begin: int
    end: int
    at: Timestamp
    groups: bytes

    @property
    def _count(self) -> int:
        return len(self.groups) // _GROUP.size

    def is_shared_with(self, map_index: int) -> bool:
        """Return whether the block has output of any other child.

        The groups are sorted by map index, so it is enough to check the first and the last one.
        """
        return not self._map_index(0) == map_index == self._map_index(self._count - 1)

    def groups_of(self, map_index: int) -> Iterator[_Group]:
        """Yield the executions of one child, or of a task that is not mapped."""
        count = self._count
        place = bisect_left(range(count), map_index, key=self._map_index)
        while place < count and self._map_index(place) == map_index:
            yield _Group(*_GROUP.unpack_from(self.groups, place * _GROUP.size))
            place += 1

    def _map_index(self, place: int) -> int:
        found: int = _MAP_INDEX.unpack_from(self.groups, place * _GROUP.size)[0]
        return found

    def encode(self) -> bytes:
        """Return the block as an entry of an index."""
        head = _HEAD_FIELDS.pack(self.begin, self.end, self.at, self._count)
        return head + _CHECKSUM.pack(zlib.crc32(head + self.groups)) + self.groups


def _scan(file: BinaryIO, begin: int, at: Timestamp) -> Iterator[Block]:
    """Yield the full blocks from a position on.

    Args:
        at: The highest time of the records before that position.
    """
    scan = RecordScan(file, begin)
    found: dict[tuple[int, int, StartNo], list[int]] = {}
    while (record := scan.next_record()) is not None:
        data = scan.data(record.length)
        if data is None or not scan.skip(record.length):
            return
        sums = found.setdefault((record.map_index, record.try_number, record.start_no), [0, 0])
        sums[0] += record.length
        sums[1] += data.count(b"\n")
        at = max(at, record.at)
        if (end := scan.position) >= begin + BLOCK_BYTES:
            ordered = sorted(found.items(), key=lambda one: one[0][0])  # the sort is stable
            groups = b"".join(_GROUP.pack(*key, *one) for key, one in ordered)
            yield Block(begin, end, at, groups)
            begin, found = end, {}


def _parse(data: bytes) -> tuple[list[Block], int]:
    """Return the blocks of an index, given without its header, and the size of its valid part."""
    blocks: list[Block] = []
    end = place = 0
    while place + _HEAD.size <= len(data):
        begin, block_end, at, count, checksum = _HEAD.unpack_from(data, place)
        after = place + _HEAD.size + count * _GROUP.size
        groups = data[place + _HEAD.size : after]
        head = data[place : place + _HEAD_FIELDS.size]
        if after > len(data) or zlib.crc32(head + groups) != checksum:
            break
        if begin == end:  # otherwise two processes have added the block
            blocks.append(Block(begin, block_end, at, groups))
            end = block_end
        place = after
    return blocks, place


def delete_log_file(path: Path) -> None:
    """Delete a segment file and its index."""
    path.unlink()
    _index_path(path).unlink(missing_ok=True)


def _index_path(path: Path) -> Path:
    return path.with_suffix(".index")


class _Known:
    """The known blocks of a file."""

    def __init__(self, head: bytes, blocks: Sequence[Block]) -> None:
        self.head = head
        self.blocks = blocks
        self.cost = sum(len(block.groups) + _BLOCK_COST for block in blocks)

    @property
    def end(self) -> int:
        return self.blocks[-1].end if self.blocks else 0

    @property
    def at(self) -> Timestamp:
        return self.blocks[-1].at if self.blocks else 0


class LogIndexes:
    """Reads and extends the indexes of segment files.

    Its methods block, and may be called from several threads.

    Args:
        folder: Indexes are stored only beside files in this folder; ``None`` to store none.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._cached: OrderedDict[Path, _Known] = OrderedDict()
        self._cached_bytes = 0
        self._lock = Lock()

    def blocks(self, path: Path) -> Sequence[Block]:
        """Return the full blocks of a file, in order. The rest is shorter than two blocks.

        Blocks that the stored index lacks are added to it.
        """
        file = open_log_file(path)
        if file is None:
            return ()
        with file:
            size = os.fstat(file.fileno()).st_size
            if size < 2 * BLOCK_BYTES:
                return ()
            head = file.read(HEADER_SIZE)
            known = self._cached.get(path)
            if known is None or known.head != head or known.end > size:
                known = self._stored(path, head, size)
            if size >= known.end + 2 * BLOCK_BYTES:
                known = self._extended(path, file, known)
            self._cache(path, known)
            return known.blocks

    def _is_stored(self, path: Path) -> bool:
        """Return whether the index of a file is stored beside it."""
        return self._folder is not None and path.is_relative_to(self._folder)

    def _stored(self, path: Path, head: bytes, size: int) -> _Known:
        file = open_log_file(_index_path(path)) if self._is_stored(path) else None
        if file is None:
            return _Known(head, [])
        with file:
            data = file.read()
        blocks, valid = _parse(data[HEADER_SIZE:])
        if data[:HEADER_SIZE] != head or (blocks and blocks[-1].end > size):
            _index_path(path).unlink(missing_ok=True)
            return _Known(head, [])
        if HEADER_SIZE + valid < len(data):  # the last block was cut by a crash
            os.truncate(_index_path(path), HEADER_SIZE + valid)
        return _Known(head, blocks)

    def _extended(self, path: Path, file: BinaryIO, known: _Known) -> _Known:
        added = list(_scan(file, known.end, known.at))
        if added and self._is_stored(path):
            start = b"" if known.blocks else known.head
            with suppress(OSError):  # without an index, everything is found more slowly
                _append(_index_path(path), start + b"".join(block.encode() for block in added))
        return _Known(known.head, [*known.blocks, *added]) if added else known

    def _cache(self, path: Path, known: _Known) -> None:
        with self._lock:
            before = self._cached.pop(path, None)
            self._cached[path] = known
            self._cached_bytes += known.cost - (before.cost if before else 0)
            while self._cached_bytes > _CACHED_BYTES or len(self._cached) > _CACHED_FILES:
                self._cached_bytes -= self._cached.popitem(last=False)[1].cost


def _append(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


class Mark(NamedTuple):
    """A known place in the output of a log.

    Attributes:
        offset: Number of bytes of output before this place.
        line_ends: Number of line ends before this place.
        position: Position in the file of a record at or before the next output.
        start_no: The execution whose output was read last; -1 if there is none.
    """

    offset: int = 0
    line_ends: int = 0
    position: int = 0
    start_no: StartNo = -1


class Marks:
    """The known places of one log in one file, at most about a megabyte of the file apart.

    The places where readers have stopped are remembered, too. They may be anywhere, and have no
    ``line_ends``.

    Attributes:
        path, map_index, part: The file, and the output in it.
    """

    def __init__(self, indexes: LogIndexes, path: Path, map_index: int, part: LogPart) -> None:
        self.path = path
        self.map_index = map_index
        self.part = part
        self._indexes = indexes
        self._first = Mark()
        self._all = [self._first]
        self._blocks: Sequence[Block] = ()
        self._stopped: dict[int, Mark] = {}

    def remember(self, mark: Mark) -> None:
        """Add a place where a reader has stopped, for another reader that begins there."""
        self._stopped.pop(mark.offset, None)  # it is inserted at the end, so it is evicted last
        self._stopped[mark.offset] = mark
        if len(self._stopped) > _STOPPED_READERS:
            del self._stopped[next(iter(self._stopped))]

    def stopped_before(self, offset: int) -> Mark:
        """Return the last place at or before an offset where a reader has stopped."""
        at = max((at for at in self._stopped if at <= offset), default=0)
        return self._stopped.get(at, Mark())

    def begin_after(self, start_no: StartNo) -> None:
        """Set the last execution with output in an earlier file."""
        if start_no != self._first.start_no:
            self._first, self._blocks = Mark(start_no=start_no), ()
            self._all = [self._first]

    def blocks(self) -> Sequence[Block]:
        """Return the full blocks of the file, in order."""
        return self._indexes.blocks(self.path)

    def before(self, offset: int) -> Mark:
        """Return the last known place at or before an offset."""
        found = self._known()
        return found[bisect_right(found, offset, key=lambda mark: mark.offset) - 1]

    def before_line(self, line: int) -> Mark:
        """Return the last known place before the beginning of a line, counted from 1."""
        found = self._known()
        return found[max(bisect_left(found, line - 1, key=lambda mark: mark.line_ends) - 1, 0)]

    def _known(self) -> list[Mark]:
        blocks = self.blocks()
        done = len(self._blocks)
        if len(blocks) > done or blocks[:1] != self._blocks[:1]:
            found = list(self._all)
            if done and blocks[done - 1 : done] != self._blocks[-1:]:  # the file was replaced
                found, done = [self._first], 0
            for block in blocks[done:]:
                self._add(found, block)
            self._all, self._blocks = found, blocks
        return self._all

    def _add(self, found: list[Mark], block: Block) -> None:
        offset, line_ends, _, start_no = before = found[-1]
        for group in block.groups_of(self.map_index):
            if self.part.includes(group.start_no, group.try_number):
                note = self.part.between(start_no, group.start_no)
                offset += len(note) + group.size
                line_ends += note.count(b"\n") + group.line_ends
                start_no = max(start_no, group.start_no)
        mark = Mark(offset, line_ends, block.end, start_no)
        if offset == before.offset:
            found[-1] = mark
        else:
            found.append(mark)
