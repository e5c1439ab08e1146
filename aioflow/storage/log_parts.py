"""Output of tries in an object store: the names of the objects, and their local copies.

Each segment file of a home (see ``telemetry.task_log``) is stored in parts, as it grows::

    logs/<run_no // 1000>/<run_no>/<task_index>.<segment>/<file id>/<offset>

The id of a file begins with the time of its first record, and contains the home. A file that was
deleted and created again has another id. The parts of one file are consecutive, and together are
the file. When a part is stored a second time, it may be longer than the first time. It then also
replaces the beginning of the next part, which has the same content. The files of a segment are read
in the order of their first records.
"""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.errors import ObjectMissing, StorageUnavailable
from aioflow.filesystem import make_folder, require_space
from aioflow.model.ids import RunNo
from aioflow.model.timestamps import Timestamp
from aioflow.storage.copies import evict
from aioflow.storage.objects import ObjectStore, StoredObject
from aioflow.telemetry.log import Logger
from aioflow.telemetry.task_log import RUNS_IN_BLOCK, LogSegment
from aioflow.telemetry.task_log_records import HEADER_SIZE, first_timestamp

__all__ = ("COPIES_BYTES", "LogParts", "file_id", "part_name")

COPIES_BYTES = 1024**3
"""Maximum total size of the copies of logs."""

_LISTED_US = 1_000_000
"""Minimum time between two listings of a segment's parts, while a client follows a log."""

_EXPIRY_US = 86_400_000_000
"""Time between two searches of a block for expired logs. Each search lists the whole block."""

_LISTED_SEGMENTS = 256

_log = Logger(__name__)


def file_id(path: Path, home: str) -> str | None:
    """Return the id of a home's segment file; ``None`` if the file is missing or empty.

    The header of the first record is written at once, and never changes.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEADER_SIZE)
    except FileNotFoundError:
        return None
    return f"{first_timestamp(head):016d}-{home[:16]}-{zlib.crc32(head):08x}" if head else None


def part_name(segment: LogSegment, of_file: str, offset: int) -> str:
    """Return the name of the part that begins at an offset of a file."""
    return f"{_prefix(segment)}/{of_file}/{offset:012d}"


def _prefix(segment: LogSegment) -> str:
    return f"{_run_prefix(segment.run_no)}/{segment.name}"


def _run_prefix(run_no: RunNo) -> str:
    return f"logs/{run_no // RUNS_IN_BLOCK}/{run_no}"


class _Part(NamedTuple):
    offset: int
    size: int
    name: str


class LogParts:
    """Reads and deletes stored output. Implements ``EarlierLogs``.

    Args:
        folder: The folder of copies.
        home: The identity of this home, whose own files are not copied.
    """

    def __init__(self, objects: ObjectStore, folder: Path, home: str, clock: Clock) -> None:
        self._objects = objects
        self._home = home
        self._folder = folder
        self._clock = clock
        self._listed: dict[LogSegment, tuple[int, dict[str, list[_Part]]]] = {}
        self._expired_at: dict[int, int] = {}

    async def files(self, segment: LogSegment, own: Path) -> list[Path]:
        """See ``EarlierLogs``."""
        try:
            stored = await self._stored(segment)
        except StorageUnavailable as exc:
            _log.warning("stored output cannot be listed", error=str(exc))
            return await in_thread(_copies, self._copy(segment, ""))
        mine = await in_thread(file_id, own, self._home)
        found = []
        for of_file, parts in sorted(stored.items()):
            if of_file != mine:
                copy = self._copy(segment, of_file)
                await self._fetch(copy, parts)
                found.append(copy)
        return found

    async def list_segments(self, run_no: RunNo) -> list[LogSegment]:
        """See ``EarlierLogs``."""
        try:
            names = await self._objects.list_folders(_run_prefix(run_no))
        except StorageUnavailable as exc:
            _log.warning("stored output cannot be listed", error=str(exc))
            return []
        found = [LogSegment.named(run_no, name) for name in names]
        return [segment for segment in found if segment is not None]

    async def ends(self, segment: LogSegment, of_file: str) -> int:
        """Return how much of a file is stored without gaps.

        Raises:
            StorageUnavailable: If the store does not answer.
        """
        parts = (await self._list(segment)).get(of_file, [])
        return _without_gaps(parts)

    async def _stored(self, segment: LogSegment) -> dict[str, list[_Part]]:
        now = self._clock.monotonic_us()
        listed_at, parts = self._listed.pop(segment, (0, {}))
        if not listed_at or now - listed_at > _LISTED_US:
            listed_at, parts = now, await self._list(segment)
        self._listed[segment] = listed_at, parts
        if len(self._listed) > _LISTED_SEGMENTS:
            del self._listed[next(iter(self._listed))]
        return parts

    async def _list(self, segment: LogSegment) -> dict[str, list[_Part]]:
        parts: defaultdict[str, list[_Part]] = defaultdict(list)
        async for stored in self._objects.list_objects(_prefix(segment)):
            _, of_file, offset = stored.name.rsplit("/", 2)
            if offset.isdecimal():
                parts[of_file].append(_Part(int(offset), stored.size, stored.name))
        for of_one in parts.values():
            of_one.sort()
        return dict(parts)

    async def _fetch(self, copy: Path, parts: list[_Part]) -> None:
        """Append the missing parts to a copy.

        If a part cannot be fetched now, leave the copy as it is.
        """
        try:
            size = await in_thread(_size, copy)
            for part in parts:
                if part.offset > size:
                    return  # a part is missing
                if part.offset + part.size > size:
                    data = await self._objects.get(part.name, part.size)
                    size = await in_thread(_extend, copy, data, part.offset)
        except (StorageUnavailable, ObjectMissing, OSError) as exc:
            _log.warning("stored output cannot be fetched", error=str(exc))

    def _copy(self, segment: LogSegment, of_file: str) -> Path:
        folder = self._folder / str(segment.run_no // RUNS_IN_BLOCK) / str(segment.run_no)
        return folder / segment.name / of_file

    async def trim(self) -> None:
        """Delete the least recently read copies, if all together are too large."""
        await in_thread(evict, self._folder, COPIES_BYTES)

    # ── deletion ────────────────────────────────────────────────────────────────────────

    async def delete(self, run_no: RunNo) -> None:
        """See ``EarlierLogs``."""
        names = [one.name async for one in self._objects.list_objects(_run_prefix(run_no))]
        await self._objects.delete(names)
        folder = self._folder / str(run_no // RUNS_IN_BLOCK) / str(run_no)
        await in_thread(_delete_tree, folder)

    async def list_blocks(self) -> list[int]:
        """See ``EarlierLogs``."""
        try:
            names = await self._objects.list_folders("logs")
        except StorageUnavailable as exc:
            _log.warning("stored output cannot be listed", error=str(exc))
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    async def delete_old(
        self, block: int, *, before: Timestamp, retained: Collection[RunNo], dry_run: bool = False
    ) -> int:
        """See ``TaskLog.delete_old``. A block is searched at most once a day."""
        now = self._clock.monotonic_us()
        last = self._expired_at.get(block)
        if not dry_run and last is not None and now - last < _EXPIRY_US:
            return 0
        try:
            of_runs: defaultdict[int, list[StoredObject]] = defaultdict(list)
            async for stored in self._objects.list_objects(f"logs/{block}"):
                name = stored.name.split("/")[2]
                if name.isdecimal():
                    of_runs[int(name)].append(stored)
            old = {
                run_no: objects
                for run_no, objects in of_runs.items()
                if run_no not in retained and max(one.stored_at for one in objects) < before
            }
            if not dry_run:
                for run_no, objects in old.items():
                    await self._objects.delete([one.name for one in objects])
                    del of_runs[run_no]
                self._expired_at[block] = now
                if not of_runs:
                    del self._expired_at[block]
        except StorageUnavailable as exc:
            _log.warning("expired output cannot be deleted now", error=str(exc))
            return 0
        return len(old)


def _without_gaps(parts: Iterable[_Part]) -> int:
    end = 0
    for part in parts:
        if part.offset > end:
            break
        end = max(end, part.offset + part.size)
    return end


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _extend(path: Path, data: bytes, offset: int) -> int:
    """Write data at an offset of a copy. Return the copy's new size.

    Raises:
        OSError: If the copy was deleted in the meantime, so that its beginning is missing.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC
    if not offset:
        make_folder(path.parent)
        flags |= os.O_CREAT
    require_space(path.parent, len(data))
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if os.fstat(descriptor).st_size < offset:  # another reader has started over
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        file.seek(offset)
        file.write(data)
    return _size(path)


def _copies(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _delete_tree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
