"""The output of all tasks of a run, merged in the order in which it was captured.

Each segment file already has its records in this order, for all children in the file together. So
the files of a run can be merged: there is one per task, or per thousand children of a mapped task.
A file is opened when its first record is due. Few files are open at a time: for a closed file, the
position and the header of its next record are remembered.

The key of a record consists of its time, file and position. Reading continues after the key of the
last record that was returned. So another process can continue, and output that was captured later
is found. If the clock was set back, so that a record's time is before that of the previous record
of its file, the record counts as captured at the same time as the previous one.
"""

from __future__ import annotations

import heapq
import os
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from aioflow.model.ids import StartNo
from aioflow.model.timestamps import Timestamp
from aioflow.telemetry.task_log_index import LogIndexes
from aioflow.telemetry.task_log_records import (
    HEADER_SIZE,
    RecordHeader,
    RecordScan,
    first_timestamp,
    open_log_file,
)

__all__ = ("BEGIN", "RunLogFiles", "RunLogKey", "RunPiece", "RunSegment")

_OPEN_FILES = 32
_TAIL_BYTES = 64 * 1024
_TAIL_FILES = 64
_RECORDS = 10_000
_CLOCK_STEP_US = 60_000_000
"""Maximum backward step of the clock after which new output is still found."""


class RunSegment(NamedTuple):
    """A segment file of a run, and its place in the order of files."""

    task_index: int
    number: int
    order: int
    path: Path


class RunLogKey(NamedTuple):
    """Identifies a record, and its place in the order of all records of a run."""

    at: Timestamp
    task_index: int
    number: int
    order: int
    position: int

    def before(self) -> RunLogKey:
        """Return a key after which the record with this key is the next one."""
        return self._replace(position=self.position - 1)


BEGIN = RunLogKey(-1, -2, 0, 0, 0)
"""A key before all records."""


class RunPiece(NamedTuple):
    """The data of a record, and the task and execution that it belongs to."""

    key: RunLogKey
    map_index: int
    start_no: StartNo
    at: Timestamp
    is_stderr: bool
    data: bytes


class _OpenFiles:
    """A cache of open files. The least recently used files are closed."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, BinaryIO] = OrderedDict()

    def get(self, path: Path) -> BinaryIO | None:
        """Return the file, opened for reading; ``None`` if it does not exist."""
        file = self._files.pop(path, None) or open_log_file(path)
        if file is None:
            return None
        self._files[path] = file
        if len(self._files) > _OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        return file

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()


class _Source:
    """Reads the records of one file in order.

    Args:
        at: The highest time of the records before ``position``, or the time of the first record.

    Attributes:
        key: Key of the next record. Until ``find`` was called, a lower bound of that key.
    """

    def __init__(
        self,
        files: _OpenFiles,
        segment: RunSegment,
        at: Timestamp,
        position: int,
    ) -> None:
        self._files = files
        self._segment = segment
        self._at = at
        self._file: BinaryIO | None = None
        self._scan: RecordScan | None = None
        self._next: RecordHeader | None = None
        self._is_found = False
        self.key = self._key(position)

    def _key(self, position: int) -> RunLogKey:
        segment = self._segment
        return RunLogKey(self._at, segment.task_index, segment.number, segment.order, position)

    def is_late(self, after: RunLogKey) -> bool:
        """Return whether ``find`` has to be called before ``take``."""
        return not self._is_found or self.key < after

    def find(self, after: RunLogKey) -> bool:
        """Find the next record with a higher key. Return whether there is one."""
        self._is_found = True
        while (scan := self._opened()) and (header := scan.next_record()):
            self._next, self._at = header, max(self._at, header.at)
            self.key = self._key(scan.position)
            if self.key > after:
                return True
            if not self._pass(scan, header):
                return False
        return False

    def take(self) -> RunPiece | None:
        """Return the record that was found, and move past it; ``None`` if it is incomplete."""
        scan, header = self._opened(), self._next
        if scan is None or header is None:
            return None
        data, key = scan.data(header.length), self.key
        if data is None or not self._pass(scan, header):
            return None
        return RunPiece(key, header.map_index, header.start_no, header.at, header.is_stderr, data)

    def _pass(self, scan: RecordScan, header: RecordHeader) -> bool:
        if not scan.skip(header.length):
            return False
        self.key = self._key(scan.position)
        return True

    def _opened(self) -> RecordScan | None:
        file = self._files.get(self._segment.path)
        if file is None:
            return None
        if self._scan is None or file is not self._file:
            self._file, self._scan = file, RecordScan(file, self.key.position)
        return self._scan


class RunLogFiles:
    """Reads the files of runs. The methods block.

    Args:
        indexes: The indexes of the files, which allow a read to begin in the middle of a large one.
    """

    def __init__(self, indexes: LogIndexes) -> None:
        self._indexes = indexes

    def read(
        self, segments: Sequence[RunSegment], after: RunLogKey, limit_bytes: int
    ) -> tuple[list[RunPiece], bool]:
        """Return the records after a key, in order, and whether there are no more at the moment.

        Args:
            limit_bytes: Number of bytes of output after which to stop.
        """
        files = _OpenFiles()
        try:
            heap = [(source.key, source) for source in self._sources(files, segments, after)]
            return _merge(heap, after, limit_bytes)
        finally:
            files.close()

    def read_end(self, segments: Sequence[RunSegment]) -> tuple[list[RunPiece], bool]:
        """Return the last records of a run in order, and whether these are all.

        Only the end of each file is read. The result begins at the latest time at which one of
        these ends begins, so that it has no gaps.
        """
        sizes = sorted(_sizes(segments), reverse=True)
        begin = max((at for at, _, _ in sizes[_TAIL_FILES:]), default=-1)
        files = _OpenFiles()
        try:
            sources = []
            for _, size, segment in sizes[:_TAIL_FILES]:
                start = max(size - _TAIL_BYTES, 0)
                source = _Source(files, segment, 0, start)
                if source.find(BEGIN):
                    sources.append((source.key, source))
                    begin = max(begin, source.key.at if start else -1)
            found, _ = _merge(sources, BEGIN._replace(at=begin), _TAIL_FILES * _TAIL_BYTES)
            return found, begin < 0
        finally:
            files.close()

    def _sources(
        self, files: _OpenFiles, segments: Sequence[RunSegment], after: RunLogKey
    ) -> Iterator[_Source]:
        for segment in segments:
            with_head = _head(segment.path)
            if with_head is None:
                continue
            first_at, written_at = with_head
            if written_at + _CLOCK_STEP_US < after.at:
                continue  # the whole file is before the key
            blocks = self._indexes.blocks(segment.path)
            passed = bisect_left(blocks, after.at, key=lambda block: block.at)
            begin = (blocks[passed - 1].at, blocks[passed - 1].end) if passed else (first_at, 0)
            yield _Source(files, segment, *begin)


def _merge(
    heap: list[tuple[RunLogKey, _Source]], after: RunLogKey, limit_bytes: int
) -> tuple[list[RunPiece], bool]:
    heapq.heapify(heap)
    found: list[RunPiece] = []
    while heap:
        _, source = heap[0]
        if not source.is_late(after):
            if limit_bytes <= 0 or len(found) >= _RECORDS:
                return found, False
            piece = source.take()
            if piece is None:
                heapq.heappop(heap)
                continue
            found.append(piece)
            limit_bytes -= len(piece.data)
        if source.find(after):
            heapq.heapreplace(heap, (source.key, source))
        else:
            heapq.heappop(heap)
    return found, True


def _head(path: Path) -> tuple[Timestamp, Timestamp] | None:
    """Return the time of the first record of a file, and the time of the last write to it."""
    file = open_log_file(path)
    if file is None:
        return None
    with file:
        written_at = os.fstat(file.fileno()).st_mtime_ns // 1_000
        return first_timestamp(file.read(HEADER_SIZE)), written_at


def _sizes(segments: Sequence[RunSegment]) -> Iterator[tuple[Timestamp, int, RunSegment]]:
    for segment in segments:
        try:
            status = segment.path.stat()
        except FileNotFoundError:
            continue
        yield status.st_mtime_ns // 1_000, status.st_size, segment
