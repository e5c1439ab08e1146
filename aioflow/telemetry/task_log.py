"""The output of tries: limited in size, readable at once, and attributed to the try.

Children of a mapped task share one segment file per thousand map indexes,
``<folder>/<run_no // 1000>/<run_no>/<task_index>.<segment>.log``. It holds records::

    0x1e "LOG"  map_index: i32  try_number: u32  start_no: u64  instant: i64  length: u32
    crc32 of the header so far: u32  data

All numbers are little-endian. If a record is known to have been written to ``sys.stderr``, the
highest bit of its try number is set. After a damaged record, a reader continues with the next valid
one. It skips records outside the requested part, and does not even read long ones, so that a part
of a log can be read regardless of the log's size.

Only one thread writes, a batch at a time. The data that waits for the disk is limited.
``TryLog.write`` waits while the limit is reached, so a child that prints faster than the disk
writes is slowed down by its own pipe.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeVar, TypeVarTuple, Unpack

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.filesystem import make_folder
from aioflow.model.ids import RunNo, StartNo, TaskNo
from aioflow.model.timestamps import Timestamp
from aioflow.redaction import Masks, Stream
from aioflow.telemetry.task_log_index import BLOCK_BYTES, LogIndexes, Marks
from aioflow.telemetry.task_log_reader import (
    LogReader,
    line_numbers,
    offset_of_line,
    read_chain,
)
from aioflow.telemetry.task_log_records import (
    PIECE_BYTES,
    WHOLE_LOG,
    LogPart,
    LogPiece,
    record_header,
)

__all__ = (
    "CAP_BYTES",
    "RUNS_IN_BLOCK",
    "Attribution",
    "EarlierLogs",
    "LogKey",
    "LogSegment",
    "OpenLog",
    "TaskLog",
    "TryLog",
)

CAP_BYTES = 10 * 1024 * 1024
SEGMENT_WIDTH = 1_000
RUNS_IN_BLOCK = 1_000
WAITING_BYTES = 8 * 1024 * 1024
"""Maximum size of the data that waits for the disk, for all tries together."""

_JOINED_BYTES = 16 * 1024
"""Maximum size of a record of joined output, because a record that a crash has cut is lost."""

_CACHED_LOGS = 256
"""Number of logs whose known places are cached."""

_OPEN_ATTEMPTS = 100
_CATCH_UP_SECONDS = 1.0
_END = 1 << 62
_SEGMENT_NAME = re.compile(r"(-?\d{1,18})\.(\d{1,18})")
_SUFFIX = ".log"

_logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Arguments = TypeVarTuple("Arguments")


class LogKey(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the output of one execution of a task."""

    run_no: RunNo
    task_index: int
    map_index: int
    task_no: TaskNo
    start_no: StartNo
    try_number: int

    @property
    def segment(self) -> LogSegment:
        """The segment with this output."""
        return LogSegment.of(self.run_no, self.task_index, self.map_index)


class _Record(msgspec.Struct, frozen=True):
    path: Path
    log: TryLog
    data: bytes
    is_stderr: bool


class TryLog:
    """The output of one execution. Use ``write`` for a pipe, ``offer`` where waiting is impossible.

    If the data ends with what may be the beginning of a secret, that end is held back until more
    data follows or ``close`` is called.
    """

    __slots__ = ("_left_bytes", "_log", "_lost", "_masked", "key")

    def __init__(self, log: TaskLog, key: LogKey, cap_bytes: int) -> None:
        self.key = key
        self._log = log
        self._left_bytes = cap_bytes
        self._lost = ""
        self._masked = Stream(log.masks)

    async def write(self, data: bytes) -> None:
        """Append the data, then wait until the data that waits for the disk is below its limit.

        Data that exceeds the maximum size of the log is dropped and replaced by a note.
        """
        if self._left_bytes >= 0:
            self._append(self._masked.feed(data))
            await self._log.wait_for_capacity()

    def offer(self, data: bytes, *, is_stderr: bool = False) -> None:
        """Append the data without waiting.

        If too much data waits for the disk, drop this data and leave a note.
        """
        if self._log.is_full:
            self.mark_lost("the disk is too slow")
        elif self._left_bytes >= 0:
            self._append(self._masked.feed(data), is_stderr=is_stderr)

    def close(self) -> None:
        """Append the end that was held back. More data may still follow."""
        if self._left_bytes >= 0:
            self._append(self._masked.finish())
        if self._log.on_closed is not None:
            self._log.on_closed(self.key.segment)

    def mark_lost(self, why: str) -> None:
        """Note that output is missing. The note is written before the next output."""
        self._lost = why

    def _append(self, data: bytes, *, is_stderr: bool = False) -> None:
        if not data:
            return
        if self._lost:
            data = _note(f"some output is missing: {self._lost}") + data
            self._lost = ""
        if len(data) > self._left_bytes:
            data = data[: self._left_bytes] + _note("the output was truncated here: it is too long")
            self._left_bytes = -1
        else:
            self._left_bytes -= len(data)
        # Compute the path only now: most tries print nothing, and it is the most expensive step
        # here.
        path = self._log.segment_path(self.key.segment)
        self._log.put(_Record(path, self, data, is_stderr))


def _note(text: str) -> bytes:
    return f"\n[aioflow: {text}]\n".encode()


class LogSegment(NamedTuple):
    """Names a segment file: the output of a task, or of a thousand children of a mapped task."""

    run_no: RunNo
    task_index: int
    number: int

    @classmethod
    def of(cls, run_no: RunNo, task_index: int, map_index: int) -> Self:
        """Return the segment with the output of a task, or of one child."""
        return cls(run_no, task_index, max(map_index, 0) // SEGMENT_WIDTH)

    @classmethod
    def named(cls, run_no: RunNo, name: str) -> Self | None:
        """Return the segment with this name in a run; ``None`` if no segment has such a name."""
        found = _SEGMENT_NAME.fullmatch(name)
        return None if found is None else cls(run_no, int(found[1]), int(found[2]))

    @classmethod
    def of_file(cls, run_no: RunNo, name: str) -> Self | None:
        """Return the segment that has this file name in the folder of a run; see ``named``."""
        return cls.named(run_no, name.removesuffix(_SUFFIX)) if name.endswith(_SUFFIX) else None

    @property
    def name(self) -> str:
        """The name of the segment, unique within its run."""
        return f"{self.task_index}.{self.number}"


class EarlierLogs(Protocol):
    """Output that is not in the files of this home, because another home has stored it."""

    async def files(self, segment: LogSegment, own: Path) -> list[Path]:
        """Return files with the stored output of a segment, in order, without the file ``own``.

        Missing files are copied to this machine. While that is impossible, only the files that are
        here are returned.
        """

    async def list_segments(self, run_no: RunNo) -> list[LogSegment]:
        """Return the segments with output of a run; an empty list if the store is unavailable."""

    async def delete(self, run_no: RunNo) -> None:
        """Delete the stored output of a run. Idempotent.

        Raises:
            StorageUnavailable: If the storage cannot be used now.
        """

    async def list_blocks(self) -> list[int]:
        """Return the blocks of runs with stored output."""

    async def delete_old(
        self, block: int, *, before: Timestamp, retained: Collection[RunNo], dry_run: bool = False
    ) -> int:
        """See ``TaskLog.delete_old``."""


class OpenLog:
    """The output of one task, or of some of its executions, that is read repeatedly."""

    def __init__(self, log: TaskLog, segment: LogSegment, map_index: int, part: LogPart) -> None:
        self._log = log
        self._segment = segment
        self._map_index = map_index
        self._part = part
        self._readers: dict[Path, LogReader] = {}

    @property
    def key(self) -> tuple[LogSegment, int, LogPart]:
        """The segment, map index and part that identify the output."""
        return self._segment, self._map_index, self._part

    async def __call__(self, offset: int, limit: int | None) -> bytes:
        """Return output from byte ``offset`` on; see ``TaskLog.read``."""
        return b"".join(piece.data for piece in await self.pieces(offset, limit))

    async def pieces(self, offset: int, limit: int | None) -> list[LogPiece]:
        """Return output from byte ``offset`` on, in pieces that were each captured at one time."""
        readers = await self._opened(offset)
        pieces = await self._log.in_thread(read_chain, readers, offset, limit)
        if len(readers) == 1:
            readers[0].remember()
        return pieces

    async def size(self) -> int:
        """Return the number of bytes that can be read now."""
        readers = await self._opened(_END)
        await self._log.in_thread(read_chain, readers, _END, 0)
        return sum(reader.offset for reader in readers)

    async def line_numbers(self, offsets: Sequence[int]) -> list[int]:
        """Return the numbers of the lines that begin at these offsets, which must be ascending."""
        if not offsets:
            return []
        readers = await self._opened(0)
        return await self._log.in_thread(line_numbers, readers, offsets)

    async def offset_of_line(self, line: int) -> int:
        """Return the offset of a line, counted from 1; the end of the log if it has fewer lines."""
        readers = await self._opened(0)
        return await self._log.in_thread(offset_of_line, readers, line)

    async def _opened(self, offset: int) -> list[LogReader]:
        """Return the readers of the files with the output."""
        await self._log.catch_up()
        files = await self._log.files_of(self._segment)
        for file in files:
            if file not in self._readers:
                begin = offset if len(files) == 1 else 0
                self._readers[file] = self._log.reader(file, self._map_index, self._part, begin)
        return [self._readers[file] for file in files]


class TaskLog:
    """All task logs of one home. Data is written to disk only while ``run`` is running.

    Attributes:
        masks: Redacts secrets in all logs, before output is truncated.
        written_bytes: Number of bytes of output written since this object was created.
        earlier: Output that is stored outside of the home; ``None`` if none is.
        on_written: Called with the new sizes of files that have grown.
        on_closed: Called with the segment of a try whose output has ended.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        cap_bytes: int = CAP_BYTES,
        masks: Masks | None = None,
    ) -> None:
        self.masks = masks or Masks()
        self._folder = folder
        self._clock = clock
        self._cap_bytes = cap_bytes
        self._waiting: list[_Record] = []
        self._waiting_bytes = 0
        self._put_bytes = self.written_bytes = 0
        self._work = anyio.Event()
        self._drained = anyio.Event()
        self._followed: dict[Path, anyio.Event] = {}
        self.indexes = LogIndexes(folder)
        self._marks: dict[tuple[Path, int, LogPart], Marks] = {}
        self.earlier: EarlierLogs | None = None
        self.on_written: Callable[[Mapping[LogSegment, int]], None] | None = None
        self.on_closed: Callable[[LogSegment], None] | None = None
        # Held while files are written, or deleted because they are stored elsewhere.
        self.writing = anyio.Lock()
        # Separate threads, so that logs and other disk work do not delay each other.
        self._threads = anyio.CapacityLimiter(2)

    @property
    def is_full(self) -> bool:
        """Whether the data that waits for the disk has reached its limit."""
        return self._waiting_bytes >= WAITING_BYTES

    def open(self, key: LogKey) -> TryLog:
        """Return the log for the output of one execution. Each returned log may reach the cap."""
        return TryLog(self, key, self._cap_bytes)

    def path(self, run_no: RunNo, task_index: int, map_index: int = -1) -> Path:
        """Return the segment file with the output of a task or mapped task."""
        return self.segment_path(LogSegment.of(run_no, task_index, map_index))

    def segment_path(self, segment: LogSegment) -> Path:
        """Return the path of a segment file."""
        block = self._folder / str(segment.run_no // RUNS_IN_BLOCK)
        return block / str(segment.run_no) / f"{segment.name}{_SUFFIX}"

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Write data as it arrives, until cancelled. Then write the rest."""
        task_status.started()
        try:
            while True:
                await self._work.wait()
                await self._write_waiting()
        finally:
            with anyio.CancelScope(shield=True):
                await self._write_waiting()

    async def read(
        self,
        run_no: RunNo,
        task_index: int,
        map_index: int = -1,
        *,
        part: LogPart = WHOLE_LOG,
        offset: int = 0,
        limit: int | None = None,
    ) -> bytes:
        """Return the output of one task, starting at byte ``offset``.

        It includes all output that has arrived before the call, unless the disk is very slow.

        Args:
            part: The executions of the task whose output counts; by default all of them.
            offset: Position in the output of these executions together.
            limit: Maximum number of bytes; ``None`` for no limit.
        """
        reading = self.reading(run_no, task_index, map_index, part=part)
        return await reading(offset, limit)

    def reading(
        self, run_no: RunNo, task_index: int, map_index: int = -1, *, part: LogPart = WHOLE_LOG
    ) -> OpenLog:
        """Return a log that is read repeatedly, for a client that follows it.

        Each read continues where the previous one stopped, regardless of other readers. So no part
        of a large log is scanned twice.
        """
        segment = LogSegment.of(run_no, task_index, map_index)
        return OpenLog(self, segment, map_index, part)

    async def files_of(self, segment: LogSegment) -> list[Path]:
        """Return the files with the output of a segment, in order. Copy stored ones if needed."""
        path = self.segment_path(segment)
        return [path] if self.earlier is None else [*await self.earlier.files(segment, path), path]

    async def list_segments(self, run_no: RunNo) -> list[LogSegment]:
        """Return the segments with output of a run, in order."""
        folder = self.path(run_no, 0).parent
        found = set(await in_thread(_segments, folder, run_no, limiter=self._threads))
        if self.earlier is not None:
            found.update(await self.earlier.list_segments(run_no))
        return sorted(found)

    async def catch_up(self) -> None:
        """Wait until all output received so far is on disk, unless the disk is very slow."""
        with anyio.move_on_after(_CATCH_UP_SECONDS):
            await self._catch_up()

    async def in_thread(
        self, function: Callable[[Unpack[Arguments]], Answer], *arguments: *Arguments
    ) -> Answer:
        """Run a function that reads files, in one of the threads that are reserved for logs."""
        return await in_thread(function, *arguments, limiter=self._threads)

    async def follow(
        self,
        run_no: RunNo,
        task_index: int,
        map_index: int = -1,
        *,
        part: LogPart = WHOLE_LOG,
        offset: int = 0,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the output of one task in pieces, as it is printed. Run until closed."""
        path = self.path(run_no, task_index, map_index)
        reader = self.reader(path, map_index, part, offset)
        while True:
            # Register before reading, so that a write during the read wakes this reader.
            changed = self._followed.setdefault(path, anyio.Event())
            if data := await in_thread(reader.read, offset, PIECE_BYTES, limiter=self._threads):
                offset += len(data)
                yield data
            else:
                await changed.wait()

    def reader(self, path: Path, map_index: int, part: LogPart, offset: int) -> LogReader:
        """Return a reader that starts at the nearest known position at or before ``offset``."""
        marks = self._marks_of((path, map_index, part))
        return LogReader(marks, marks.stopped_before(offset))

    def _marks_of(self, key: tuple[Path, int, LogPart]) -> Marks:
        marks = self._marks.pop(key, None) or Marks(self.indexes, *key)
        self._marks[key] = marks
        if len(self._marks) > _CACHED_LOGS:
            del self._marks[next(iter(self._marks))]
        return marks

    async def delete(self, run_no: RunNo) -> None:
        """Delete the logs of all tasks of a run. Idempotent."""
        folder = self.path(run_no, 0).parent
        await in_thread(_delete, folder, limiter=self._threads)
        if self.earlier is not None:
            await self.earlier.delete(run_no)

    async def list_blocks(self) -> list[int]:
        """Return the numbers of the blocks of ``RUNS_IN_BLOCK`` runs that have logs, in order."""
        blocks = await in_thread(_blocks, self._folder, limiter=self._threads)
        if self.earlier is not None:
            blocks = sorted({*blocks, *await self.earlier.list_blocks()})
        return blocks

    async def delete_old(
        self, block: int, *, before: Timestamp, retained: Collection[RunNo], dry_run: bool = False
    ) -> int:
        """Delete the expired logs in a block of runs. Return the number of runs with such logs.

        Args:
            before: The logs of a run have expired if none of them was written at or after this
                time.
            retained: Runs whose logs are not deleted.
            dry_run: Count the runs without deleting anything.
        """
        folder = self._folder / str(block)
        work = partial(_delete_old, folder, before, frozenset(retained), dry_run=dry_run)
        count = await in_thread(work, limiter=self._threads)
        if self.earlier is not None:
            count += await self.earlier.delete_old(
                block, before=before, retained=retained, dry_run=dry_run
            )
        return count

    def put(self, record: _Record) -> None:
        """Queue a record for the disk. Called by ``TryLog``."""
        self._waiting.append(record)
        self._waiting_bytes += len(record.data)
        self._put_bytes += len(record.data)
        self._work.set()

    async def wait_for_capacity(self) -> None:
        """Wait until the data that waits for the disk is below its limit."""
        while self.is_full:
            await self._drained.wait()

    async def _catch_up(self) -> None:
        """Wait until the data that arrived before the call is on the disk."""
        wanted = self._put_bytes
        while self.written_bytes < wanted:
            await self._drained.wait()

    async def _write_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            size = sum(len(record.data) for record in batch)
            now = self._clock.now()
            with anyio.CancelScope(shield=True):
                async with self.writing:
                    sizes = await in_thread(_write, batch, now, self.indexes, limiter=self._threads)
            if self.on_written is not None:
                self.on_written(sizes)
            self._waiting_bytes -= size
            self.written_bytes += size
            self._drained.set()
            self._drained = anyio.Event()
            for path in {record.path for record in batch} & self._followed.keys():
                self._followed.pop(path).set()
        self._work = anyio.Event()


def _delete(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        for file in list(folder.iterdir()):
            file.unlink(missing_ok=True)
        folder.rmdir()
    with contextlib.suppress(OSError):  # the folder has logs of other runs
        folder.parent.rmdir()


def _segments(folder: Path, run_no: RunNo) -> list[LogSegment]:
    found = [LogSegment.of_file(run_no, name) for name in _names(folder)]
    return [segment for segment in found if segment is not None]


def _blocks(folder: Path) -> list[int]:
    return sorted(int(name) for name in _names(folder) if name.isdecimal())


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []


def _delete_old(
    block: Path, before: Timestamp, retained: Collection[RunNo], *, dry_run: bool
) -> int:
    count = 0
    with contextlib.suppress(FileNotFoundError):
        for run in list(os.scandir(block)):
            if run.name.isdecimal() and int(run.name) not in retained:
                count += _delete_if_old(run, before, dry_run=dry_run)
    return count


def _delete_if_old(run: os.DirEntry[str], before: Timestamp, *, dry_run: bool) -> bool:
    try:
        if _last_at(run) >= before:
            return False
        if not dry_run:
            _delete(Path(run.path))
    except FileNotFoundError:
        return False  # the run has just been deleted
    except OSError as exc:
        _logger.warning("cannot delete the logs in %s: %s", run.path, exc)
        return False
    return True


def _last_at(run: os.DirEntry[str]) -> Timestamp:
    """Return the time of the last output in a run's folder.

    Only log files count, because reading may have added an index.
    """
    files = [entry for entry in os.scandir(run) if entry.name.endswith(_SUFFIX)]
    written = [entry.stat().st_mtime_ns for entry in files]
    return max(written, default=run.stat().st_mtime_ns) // 1_000


def _write(batch: list[_Record], now: Timestamp, indexes: LogIndexes) -> dict[LogSegment, int]:
    """Write records to their files. Return the new size of each file."""
    sizes: dict[LogSegment, int] = {}
    by_path: dict[Path, list[_Record]] = {}
    for record in batch:
        by_path.setdefault(record.path, []).append(record)
    for path, records in by_path.items():
        try:
            data = b"".join(_encoded(records, now))
            size = sizes[records[0].log.key.segment] = _append(path, data)
            if size // BLOCK_BYTES > (size - len(data)) // BLOCK_BYTES:
                indexes.blocks(path)  # adds the blocks that are full now
        except OSError as exc:
            # A full disk loses output, but must never fail the task that printed it.
            _logger.warning("cannot write to %s: %s", path, exc)
            for record in records:
                record.log.mark_lost(str(exc))
    return sizes


def _opened(path: Path) -> int:
    """Open a file for appending and create its folder.

    Both steps are repeated if the folder, which is empty at first, is deleted before the file is
    created.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    for _ in range(_OPEN_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags, 0o600)
        with contextlib.suppress(FileNotFoundError):
            make_folder(path.parent)
    return os.open(path, flags, 0o600)


def _append(path: Path, data: bytes) -> int:
    """Append to a file, and return its new size."""
    descriptor = _opened(path)
    try:
        before, view = os.fstat(descriptor).st_size, memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError:
            with contextlib.suppress(OSError):  # the first error is more useful
                os.ftruncate(descriptor, before)  # half a record is useless
            raise
        return before + len(data)
    finally:
        os.close(descriptor)


def _encoded(records: Iterable[_Record], now: Timestamp) -> Iterator[bytes]:
    """Yield records as they are stored. Short output of one execution is joined into one record."""
    for (log, is_stderr), group in groupby(records, key=lambda one: (one.log, one.is_stderr)):
        joined = b""
        for record in group:
            if joined and len(joined) + len(record.data) > _JOINED_BYTES:
                yield _encode(log.key, joined, now, is_stderr=is_stderr)
                joined = b""
            joined += record.data
        yield _encode(log.key, joined, now, is_stderr=is_stderr)


def _encode(key: LogKey, data: bytes, now: Timestamp, *, is_stderr: bool) -> bytes:
    start = record_header(
        key.map_index, key.try_number, key.start_no, now, len(data), is_stderr=is_stderr
    )
    return start + data


class Attribution:
    r"""Splits a worker's output at the markers that its host writes before each execution.

    A marker is ``\x1e``, the nonce that only this worker knows, and the numbers of task and
    execution. A marker may arrive in pieces. If the data ends with what may be the beginning of a
    marker, that end is held back until more data follows or ``finish`` is called.
    """

    def __init__(self, nonce: str) -> None:
        head = b"\x1e" + nonce.encode() + b" "
        self._marker = re.compile(re.escape(head) + rb"(\d{1,20}) (\d{1,20})\n")
        self._head = head
        self._longest = len(head) + 42
        self._held = b""
        self._current: tuple[TaskNo, StartNo] | None = None

    def feed(self, data: bytes) -> list[tuple[tuple[TaskNo, StartNo] | None, bytes]]:
        """Return pairs of an execution and its output, in order.

        A pair with empty output marks the start of the execution.
        """
        data = self._held + data
        pieces: list[tuple[tuple[TaskNo, StartNo] | None, bytes]] = []
        at = 0
        for marker in self._marker.finditer(data):
            if marker.start() > at:
                pieces.append((self._current, data[at : marker.start()]))
            self._current = (int(marker[1]), int(marker[2]))
            pieces.append((self._current, b""))
            at = marker.end()
        keep = self._unfinished(data, at)
        if keep > at:
            pieces.append((self._current, data[at:keep]))
        self._held = data[keep:]
        return pieces

    def finish(self) -> list[tuple[tuple[TaskNo, StartNo] | None, bytes]]:
        """Return the end of the stream that ``feed`` has not returned."""
        held, self._held = self._held, b""
        return [(self._current, held)] if held else []

    def _unfinished(self, data: bytes, at: int) -> int:
        """Return where a marker that is still incomplete may begin; the length if nowhere."""
        start = data.rfind(b"\x1e", max(at, len(data) - self._longest))
        if start < 0:
            return len(data)
        tail = data[start:]
        if len(tail) <= len(self._head):
            return start if self._head.startswith(tail) else len(data)
        numbers = tail[len(self._head) :]
        could_be = tail.startswith(self._head) and re.fullmatch(rb"\d*( \d*)?", numbers)
        return start if could_be else len(data)
