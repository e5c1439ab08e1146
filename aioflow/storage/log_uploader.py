"""Upload of the output of tries to an object store, in parts, while it is written.

Output is written to a file of the home first. A part is stored when a file has grown for two
seconds, when it has grown by 256 KiB, or when a try has ended, but at most every two seconds per
file. A part never changes. So if a node dies, at most the output of its last two seconds is only on
its disk, and its next start stores that.

The progress of each file is recorded in ``<logs>/uploaded.<digest of the URL>``, one line per part,
which the next start reads. If that file is lost, or another store is used, the stored parts are
listed. A file that is stored completely, and has not grown for a day, is deleted from the home.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.errors import StorageUnavailable
from aioflow.filesystem import create_file
from aioflow.storage.log_parts import LogParts, file_id, part_name
from aioflow.storage.objects import ObjectStore
from aioflow.telemetry.log import Logger
from aioflow.telemetry.task_log import LogSegment, TaskLog
from aioflow.telemetry.task_log_index import delete_log_file

__all__ = ("LOCAL_SECONDS", "PART_BYTES", "UPLOAD_SECONDS", "LogUploader")

UPLOAD_SECONDS = 2.0
"""Time after which a grown file is stored. It is also the minimum time between two of its parts."""

PART_BYTES = 256 * 1024
"""Growth of a file at which its next part is stored earlier."""

LOCAL_SECONDS = 86_400.0
"""Time without growth after which a stored file is deleted from the home."""

UPLOADS = 8
_LARGEST_PART = 8 * 1024 * 1024
_SWEEP_SECONDS = 3_600.0
_TICK_SECONDS = 0.1
_FORGOTTEN_US = 3_600_000_000
"""Time without growth after which the progress of a file is forgotten.

If the file grows later, its stored parts are listed.
"""

_RETRY_US = 5_000_000
_SILENCE_US = 10_000_000
_NOTES = "uploaded"
_DELETED_AT_ONCE = 100
"""Number of files that are deleted in one go. No output can be written meanwhile."""


_log = Logger(__name__)


class _Progress(msgspec.Struct):
    """How much of a segment file is stored.

    Attributes:
        size: Its size, without a record that is being written.
        uploaded: How much of it is stored; -1 if unknown.
        of_file: The id of the file.
        due_us: When its next part is to be stored; ``None`` if it has not grown.
        last_us: When its last part was stored.
    """

    size: int = 0
    uploaded: int = -1
    of_file: str = ""
    due_us: int | None = None
    last_us: int = 0
    is_busy: bool = False


class LogUploader:
    """Stores the logs of one home.

    Args:
        url: The URL of the store.
        home: The identity of the home.
    """

    def __init__(
        self,
        objects: ObjectStore,
        url: str,
        parts: LogParts,
        tasklog: TaskLog,
        folder: Path,
        home: str,
        clock: Clock,
    ) -> None:
        self._objects = objects
        self._parts = parts
        self._tasklog = tasklog
        self._folder = folder
        self._notes = folder / f"{_NOTES}.{hashlib.sha256(url.encode()).hexdigest()[:16]}"
        self._home = home
        self._clock = clock
        self._files: dict[LogSegment, _Progress] = {}
        self._due: dict[LogSegment, None] = {}
        self._has_due = anyio.Event()
        self._limiter = anyio.Semaphore(UPLOADS)
        self._silent_until = 0
        tasklog.on_written = self.on_written
        tasklog.on_closed = self.on_closed

    def on_written(self, sizes: Mapping[LogSegment, int]) -> None:
        """Record that files have grown."""
        now = self._clock.monotonic_us()
        for segment, size in sizes.items():
            progress = self._files.setdefault(segment, _Progress())
            progress.size = size
            is_large = size - max(progress.uploaded, 0) >= PART_BYTES
            self._plan(segment, progress, now if is_large else now + _us(UPLOAD_SECONDS))

    def on_closed(self, segment: LogSegment) -> None:
        """Record that a try has printed its last output, although it may not be on the disk yet."""
        progress = self._files.get(segment)
        if progress is not None and progress.due_us is not None:
            self._plan(segment, progress, self._clock.monotonic_us())

    def _plan(self, segment: LogSegment, progress: _Progress, due_us: int) -> None:
        due_us = max(due_us, progress.last_us + _us(UPLOAD_SECONDS))
        if progress.due_us is None or due_us < progress.due_us:
            progress.due_us = due_us
        self._due[segment] = None
        self._has_due.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Store output until cancelled. Then make one attempt to store the rest."""
        await self._resume()
        task_status.started()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._sweep)
                while True:
                    self._start_due(group)
                    if not self._due:
                        self._has_due = anyio.Event()
                        await self._has_due.wait()
                    await self._clock.sleep(_TICK_SECONDS)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(UPLOAD_SECONDS):
                for segment in list(self._due):
                    if (progress := self._files.get(segment)) is not None:
                        await self._upload(segment, progress)

    def _start_due(self, group: TaskGroup) -> None:
        now = self._clock.monotonic_us()
        for segment in list(self._due):
            progress = self._files.get(segment)
            if progress is None or progress.due_us is None:
                del self._due[segment]
            elif progress.due_us <= now and not progress.is_busy:
                progress.is_busy = True
                group.start_soon(self._upload_one, segment, progress)

    async def _upload_one(self, segment: LogSegment, progress: _Progress) -> None:
        try:
            async with self._limiter:
                await self._upload(segment, progress)
        finally:
            progress.is_busy = False

    async def _upload(self, segment: LogSegment, progress: _Progress) -> None:
        """Store the output that was appended to a file since its last part."""
        path, now = self._tasklog.segment_path(segment), self._clock.monotonic_us()
        progress.last_us = now
        try:
            await self._identify(segment, progress, path)
            end = progress.size  # later output belongs to the next part
            while progress.of_file and progress.uploaded < end:
                data = await in_thread(_read, path, progress.uploaded, end)
                if not data:
                    break  # the run was deleted
                name = part_name(segment, progress.of_file, progress.uploaded)
                await self._objects.put(name, data)
                if await in_thread(file_id, path, self._home) != progress.of_file:
                    # The run was deleted, and its stored parts were listed before this part was
                    # stored.
                    await self._objects.delete([name])
                    break
                progress.uploaded += len(data)
                line = _line(segment, progress)
                await in_thread(_note, self._notes, line)
        except (StorageUnavailable, OSError) as exc:
            progress.due_us = now + _RETRY_US
            self._note_outage(exc)
            return
        progress.due_us = None
        if progress.uploaded < progress.size and progress.of_file and path.exists():
            self._plan(segment, progress, now)

    async def _identify(self, segment: LogSegment, progress: _Progress, path: Path) -> None:
        """Determine the id of a segment's file, and how much of the file is stored already."""
        of_file = await in_thread(file_id, path, self._home) or ""
        if of_file != progress.of_file or progress.uploaded < 0:
            uploaded = await self._parts.ends(segment, of_file) if of_file else 0
            progress.of_file, progress.uploaded = of_file, min(uploaded, progress.size)

    def _note_outage(self, exc: Exception) -> None:
        now = self._clock.monotonic_us()
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE_US
            _log.warning("output cannot be stored, retrying", error=str(exc), files=len(self._due))

    # ── files of an earlier process, and old ones ───────────────────────────────────────

    async def _resume(self) -> None:
        """Schedule the output that an earlier process has not stored."""
        now = self._clock.monotonic_us()
        for segment, progress in await in_thread(
            _unfinished, self._folder, self._notes, self._home
        ):
            self._files[segment] = progress
            self._plan(segment, progress, now)

    async def _sweep(self) -> None:
        """Delete files that no longer grow, and forget their progress, every hour."""
        while True:
            await self._clock.sleep(_SWEEP_SECONDS)
            try:
                count = await self._delete_old()
                if count:
                    _log.info("stored logs deleted from the home", files=count)
                await self._parts.trim()
            except OSError as exc:
                _log.warning("stored logs cannot be deleted from the home", error=str(exc))
            now = self._clock.monotonic_us()
            for segment, progress in list(self._files.items()):
                if progress.due_us is None and now - progress.last_us > _FORGOTTEN_US:
                    del self._files[segment]

    async def _delete_old(self) -> int:
        """Delete the old files that are stored completely. Return the number of deleted files."""
        before_us = self._clock.now() - _us(LOCAL_SECONDS)
        old = await in_thread(_stored_files, self._folder, self._notes, self._home, before_us)
        count = 0
        for first in range(0, len(old), _DELETED_AT_ONCE):
            async with self._tasklog.writing:
                batch = old[first : first + _DELETED_AT_ONCE]
                count += await in_thread(_delete_unchanged, batch)
        return count


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _read(path: Path, start: int, end: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(min(end - start, _LARGEST_PART))
    except FileNotFoundError:
        return b""


def _line(segment: LogSegment, progress: _Progress) -> str:
    run_no, task_index, number = segment
    return f"{run_no} {task_index} {number} {progress.of_file} {progress.uploaded}\n"


def _note(notes: Path, line: str) -> None:
    descriptor = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _read_notes(notes: Path) -> dict[tuple[int, int, int], tuple[str, int]]:
    """Return the id and the stored size of each file. The last note about a file counts."""
    found = {}
    with suppress(FileNotFoundError), notes.open(errors="replace") as file:
        for line in file:
            with suppress(ValueError):  # cut by a crash
                run_no, task_index, number, of_file, uploaded = line.split()
                key = int(run_no), int(task_index), int(number)
                found[key] = of_file, int(uploaded)
    return found


def _segments(folder: Path) -> Iterator[tuple[LogSegment, os.DirEntry[str]]]:
    for block in _entries(folder):
        for run in _entries(block.path) if block.name.isdecimal() else ():
            for file in _entries(run.path) if run.name.isdecimal() else ():
                if (segment := LogSegment.of_file(int(run.name), file.name)) is not None:
                    yield segment, file


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _unfinished(folder: Path, notes: Path, home: str) -> list[tuple[LogSegment, _Progress]]:
    """Return the files that are not known to be stored completely."""
    noted, found = _read_notes(notes), []
    for segment, file in _segments(folder):
        with suppress(FileNotFoundError):
            size = file.stat(follow_symlinks=False).st_size
            of_file, uploaded = noted.get(segment, ("", -1))
            if uploaded != size or of_file != file_id(Path(file.path), home):
                found.append((segment, _Progress(size=size)))
    return found


def _stored_files(folder: Path, notes: Path, home: str, before_us: int) -> list[tuple[Path, int]]:
    """Return the old files that are stored completely, with their sizes.

    Rewrite the notes without files that do not exist any more. If a note is written at the same
    time, it is lost, and the next start must list the parts of its file.
    """
    noted, found = _read_notes(notes), []
    temporary = notes.with_suffix(f"{notes.suffix}-new")
    with create_file(temporary) as rewritten:
        for segment, file in _segments(folder):
            of_file, uploaded = noted.get(segment, ("", -1))
            if not of_file:
                continue
            rewritten.write(_line(segment, _Progress(uploaded=uploaded, of_file=of_file)).encode())
            with suppress(FileNotFoundError):
                about, path = file.stat(follow_symlinks=False), Path(file.path)
                is_old = about.st_mtime_ns // 1_000 < before_us
                if is_old and uploaded == about.st_size and of_file == file_id(path, home):
                    found.append((path, uploaded))
    temporary.rename(notes)
    return found


def _delete_unchanged(files: Sequence[tuple[Path, int]]) -> int:
    """Delete files that still have the given sizes, and folders that are then empty."""
    count = 0
    for path, size in files:
        with suppress(FileNotFoundError):
            if path.stat().st_size == size:
                delete_log_file(path)
                count += 1
                for empty in (path.parent, path.parent.parent):
                    with suppress(OSError):  # the folder contains other logs
                        empty.rmdir()
    return count
