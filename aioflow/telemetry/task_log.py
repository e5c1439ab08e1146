"""The output of tries: limited in size, readable at once, and attributed to its try.

Children of a mapped task share one segment file per thousand map indexes,
``<folder>/<run_no // 1000>/<run_no>/<task_index>.<segment>.log``. It holds records::

    0x1e "LOG"  map_index: i32  try_number: u32  start_no: u64  instant: i64  length: u32
    crc32 of the header so far: u32  data

All numbers are little-endian. After a damaged record, a reader continues with the next valid one.
It skips records outside the requested part, and does not even read long ones, so that a part of a
log can be read regardless of the log's size.

Only one thread writes, a batch at a time. The data that waits for the disk is limited.
``TryLog.write`` waits while the limit is reached, so a child that prints faster than the disk
writes is slowed down by its own pipe.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import struct
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.filesystem import make_folder
from aioflow.model.ids import RunNo, StartNo, TaskNo
from aioflow.model.timestamps import Timestamp
from aioflow.redaction import Masks, Stream

__all__ = (
    "CAP_BYTES",
    "HEADER_SIZE",
    "RECORD_MAGIC",
    "RUNS_IN_BLOCK",
    "WHOLE_LOG",
    "Attribution",
    "EarlierLogs",
    "LogKey",
    "LogPart",
    "LogReader",
    "LogSegment",
    "TaskLog",
    "TryLog",
    "first_timestamp",
    "record_header",
)

RECORD_MAGIC = b"\x1eLOG"
_HEADER_FIELDS = struct.Struct("<4siIQqI")
_HEADER_CHECKSUM = struct.Struct("<I")
HEADER_SIZE = _HEADER_FIELDS.size + _HEADER_CHECKSUM.size
_PIECE = 256 * 1024
_UNBOUNDED = 1 << 62


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


def record_header(
    map_index: int, try_number: int, start_no: int, at: Timestamp, length: int
) -> bytes:
    """Return the header of a record, which precedes its data."""
    fields = _HEADER_FIELDS.pack(RECORD_MAGIC, map_index, try_number, start_no, at, length)
    return fields + _HEADER_CHECKSUM.pack(zlib.crc32(fields))


def first_timestamp(head: bytes) -> Timestamp:
    """Return the time of the first record of a file; 0 if its header is damaged."""
    if len(head) < HEADER_SIZE:
        return 0
    fields = head[: _HEADER_FIELDS.size]
    magic, _, _, _, at, _ = _HEADER_FIELDS.unpack(fields)
    checked = _HEADER_CHECKSUM.unpack_from(head, _HEADER_FIELDS.size)[0] == zlib.crc32(fields)
    return int(at) if checked and magic == RECORD_MAGIC else 0


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
    ) -> None:
        self._path = path
        self._map_index = map_index
        self._part = part
        self.position = position
        self.offset = offset
        self.start_no = start_no

    @property
    def key(self) -> tuple[Path, int, LogPart]:
        """The file, map index and part that it reads."""
        return self._path, self._map_index, self._part

    def read(self, start: int, limit: int | None = None) -> bytes:
        """Return up to ``limit`` bytes of output from ``start`` on; empty if there is no more.

        If ``start`` is before ``offset``, reading restarts at the beginning of the file.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        except OSError as exc:
            if exc.errno != errno.ELOOP:
                raise
            return b""  # aioflow never creates links: another user may have redirected the read
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
                        break  # the record is still being written
                    data = said + data
                    found.append(data[max(start - self.offset, 0) : end - self.offset])
                    if after > end:
                        break  # the next call reads the record from its beginning
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
        """Position of the next record, which may be incomplete."""
        return self._base + self._at

    def next_record(self) -> tuple[int, int, StartNo, int] | None:
        """Return the map index, try, execution and length in the next valid header, if any."""
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
            _, map_index, try_number, start_no, _, length = _HEADER_FIELDS.unpack(fields)
            checked = _HEADER_CHECKSUM.unpack_from(self._buffer, self._at + _HEADER_FIELDS.size)[0]
            if checked == zlib.crc32(fields):
                return map_index, try_number, start_no, length
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
        piece = self._file.read(max(_PIECE, missing))
        self._base += self._at
        self._buffer, self._at = self._buffer[self._at :] + piece, 0
        return len(self._buffer) >= count


CAP_BYTES = 10 * 1024 * 1024
SEGMENT_WIDTH = 1_000
RUNS_IN_BLOCK = 1_000
WAITING_BYTES = 8 * 1024 * 1024
"""Maximum size of the data that waits for the disk, for all tries together."""

_CACHED_LOGS = 256
_CACHED_POSITIONS = 8
"""Number of read positions to remember for each of ``_CACHED_LOGS`` logs."""

_OPEN_ATTEMPTS = 100
_CATCH_UP_SECONDS = 1.0

_logger = logging.getLogger(__name__)


class LogKey(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the output of one execution of a task."""

    run_no: RunNo
    task_index: int
    map_index: int
    task_no: TaskNo
    start_no: StartNo
    try_number: int


class _Record(msgspec.Struct, frozen=True):
    path: Path
    log: TryLog
    data: bytes


class TryLog:
    """The output of one execution. Use ``write`` for a pipe, ``offer`` where waiting is impossible.

    If the data ends with the possible beginning of a secret, that end is written only with more
    data or ``close``.
    """

    __slots__ = ("_left_bytes", "_log", "_lost", "_masked", "key")

    def __init__(self, log: TaskLog, key: LogKey, cap_bytes: int) -> None:
        self.key = key
        self._log = log
        self._left_bytes = cap_bytes
        self._lost = ""
        self._masked = Stream(log.masks)

    async def write(self, data: bytes) -> None:
        """Append the data, then wait until less than the limit waits for the disk.

        Data that exceeds the maximum size of the log is dropped and replaced by a note.
        """
        if self._left_bytes >= 0:
            self._append(self._masked.feed(data))
            await self._log.wait_for_capacity()

    def offer(self, data: bytes) -> None:
        """Append the data without waiting.

        If too much data waits for the disk, drop this data and leave a note.
        """
        if self._log.is_full:
            self.mark_lost("the disk is too slow")
        elif self._left_bytes >= 0:
            self._append(self._masked.feed(data))

    def close(self) -> None:
        """Append the end that was not written yet. More data may still follow."""
        if self._left_bytes >= 0:
            self._append(self._masked.finish())
        if self._log.on_closed is not None:
            self._log.on_closed(_segment_of(self.key))

    def mark_lost(self, why: str) -> None:
        """Note that output is missing. The note is written before the next output."""
        self._lost = why

    def _append(self, data: bytes) -> None:
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
        # Compute the path late: most tries print nothing, and it costs more than all else here.
        path = self._log.path(self.key.run_no, self.key.task_index, self.key.map_index)
        self._log.put(_Record(path, self, data))


def _segment_of(key: LogKey) -> LogSegment:
    return LogSegment(key.run_no, key.task_index, max(key.map_index, 0) // SEGMENT_WIDTH)


def _note(text: str) -> bytes:
    return f"\n[aioflow: {text}]\n".encode()


class LogSegment(NamedTuple):
    """Names a segment file: the output of a task, or of a thousand children of a mapped task."""

    run_no: RunNo
    task_index: int
    number: int


class EarlierLogs(Protocol):
    """Output that is not in the files of this home, because another home has stored it."""

    async def files(self, segment: LogSegment, own: Path) -> list[Path]:
        """Return files with the stored output of a segment, in order, without that of ``own``.

        They are copied to this machine if needed. While that is impossible, those that are here are
        returned.
        """

    async def delete(self, run_no: RunNo) -> None:
        """Delete the stored output of a run. Idempotent.

        Raises:
            StorageUnavailable: If that is impossible now.
        """

    async def list_blocks(self) -> list[int]:
        """Return the blocks of runs with stored output."""

    async def delete_old(
        self, block: int, *, before: Timestamp, retained: Collection[RunNo], dry_run: bool = False
    ) -> int:
        """See ``TaskLog.delete_old``."""


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
        self._positions: dict[tuple[Path, int, LogPart], dict[int, tuple[int, StartNo]]] = {}
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
        return self.segment_path(LogSegment(run_no, task_index, max(map_index, 0) // SEGMENT_WIDTH))

    def segment_path(self, segment: LogSegment) -> Path:
        """Return the path of a segment file."""
        block = self._folder / str(segment.run_no // RUNS_IN_BLOCK)
        return block / str(segment.run_no) / f"{segment.task_index}.{segment.number}.log"

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Write data as it arrives, until cancelled. Then write what is still waiting."""
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
    ) -> Callable[[int, int | None], Awaitable[bytes]]:
        """Return a function that reads the same log repeatedly, for a client that follows it.

        Each call continues where the previous call stopped, regardless of other readers. So no part
        of a large log is scanned twice.
        """
        path = self.path(run_no, task_index, map_index)
        if self.earlier is not None:
            segment = LogSegment(run_no, task_index, max(map_index, 0) // SEGMENT_WIDTH)
            return self._reading_all(segment, path, map_index, part)
        reader: LogReader | None = None

        async def read(offset: int, limit: int | None) -> bytes:
            nonlocal reader
            if reader is None or offset < reader.offset:
                reader = self._reader(path, map_index, part, offset)
            with anyio.move_on_after(_CATCH_UP_SECONDS):
                await self._catch_up()
            data = await in_thread(reader.read, offset, limit, limiter=self._threads)
            self._remember_position(reader)
            return data

        return read

    def _reading_all(
        self, segment: LogSegment, path: Path, map_index: int, part: LogPart
    ) -> Callable[[int, int | None], Awaitable[bytes]]:
        """Return a function that reads what is stored elsewhere, and then the file of this home."""
        readers: dict[Path, LogReader] = {}

        async def read(offset: int, limit: int | None) -> bytes:
            assert self.earlier is not None  # noqa: S101 - checked by the caller
            with anyio.move_on_after(_CATCH_UP_SECONDS):
                await self._catch_up()
            files = [*await self.earlier.files(segment, path), path]
            chain = [readers.setdefault(file, LogReader(file, map_index, part)) for file in files]
            return await in_thread(_read_chain, chain, offset, limit, limiter=self._threads)

        return read

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
        reader = self._reader(path, map_index, part, offset)
        while True:
            # Register before reading, so that a write during the read wakes this reader.
            changed = self._followed.setdefault(path, anyio.Event())
            if data := await in_thread(reader.read, offset, _PIECE, limiter=self._threads):
                offset += len(data)
                yield data
            else:
                await changed.wait()

    def _reader(self, path: Path, map_index: int, part: LogPart, offset: int) -> LogReader:
        """Return a reader that starts at the nearest known position at or before ``offset``."""
        known = self._positions.get((path, map_index, part), {})
        before = max((at for at in known if at <= offset), default=0)
        position, start_no = known.get(before, (0, -1))
        return LogReader(path, map_index, part, position=position, offset=before, start_no=start_no)

    def _remember_position(self, reader: LogReader) -> None:
        known = self._positions.pop(reader.key, {})
        known.pop(reader.offset, None)  # insert it again at the end, so that it is evicted last
        known[reader.offset] = reader.position, reader.start_no
        if len(known) > _CACHED_POSITIONS:
            del known[next(iter(known))]
        self._positions[reader.key] = known
        if len(self._positions) > _CACHED_LOGS:
            del self._positions[next(iter(self._positions))]

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
                    sizes = await in_thread(_write, batch, now, limiter=self._threads)
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


def _blocks(folder: Path) -> list[int]:
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdecimal())


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
    """Return the time of the last write to any file in a run's folder."""
    written = [entry.stat().st_mtime_ns for entry in os.scandir(run)]
    return max(written, default=run.stat().st_mtime_ns) // 1_000


def _read_chain(readers: Sequence[LogReader], start: int, limit: int | None) -> bytes:
    """Return output of several files as if they were one."""
    found: list[bytes] = []
    base, left = 0, _UNBOUNDED if limit is None else limit
    for reader, after in zip(readers, (*readers[1:], None), strict=True):
        data = reader.read(max(start - base, 0), left)
        found.append(data)
        left -= len(data)
        if after is not None:
            reader.read(_UNBOUNDED, 0)  # moves to its end, to find the size of its output
            base += reader.offset
            if after.offset == 0:
                after.start_no = max(after.start_no, reader.start_no)
    return b"".join(found)


def _write(batch: list[_Record], now: Timestamp) -> dict[LogSegment, int]:
    """Write records to their files. Return the new size of each file."""
    sizes: dict[LogSegment, int] = {}
    by_path: dict[Path, list[_Record]] = {}
    for record in batch:
        by_path.setdefault(record.path, []).append(record)
    for path, records in by_path.items():
        try:
            size = _append(path, b"".join(_encode(record, now) for record in records))
            sizes[_segment_of(records[0].log.key)] = size
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


def _encode(record: _Record, now: Timestamp) -> bytes:
    key = record.log.key
    start = record_header(key.map_index, key.try_number, key.start_no, now, len(record.data))
    return start + record.data


class Attribution:
    r"""Splits a worker's output at the markers that its host writes before each execution.

    A marker is ``\x1e``, the nonce that only this worker knows, and the numbers of task and
    execution. A marker may arrive in pieces: if the data ends with the possible beginning of a
    marker, that end is returned only with more data or ``finish``.
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
        """Return the position at which a marker may begin at the end of the data; else the end."""
        start = data.rfind(b"\x1e", max(at, len(data) - self._longest))
        if start < 0:
            return len(data)
        tail = data[start:]
        if len(tail) <= len(self._head):
            return start if self._head.startswith(tail) else len(data)
        numbers = tail[len(self._head) :]
        could_be = tail.startswith(self._head) and re.fullmatch(rb"\d*( \d*)?", numbers)
        return start if could_be else len(data)
