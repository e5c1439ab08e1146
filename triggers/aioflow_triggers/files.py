"""Triggers that wait for files."""

from __future__ import annotations

import math
import os.path
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypedDict, TypeVar

from aioflow import Duration, Share, Trigger, TriggerEvent, Watch, as_timedelta
from aioflow_triggers.folders import (
    Crowd,
    FolderPoll,
    FoundFile,
    Leaving,
    NameOrGlob,
    Seat,
    matches,
    watching,
)
from aioflow_triggers.paths import absolute, in_key, in_one_folder, parted

__all__ = (
    "Arrivals",
    "FileGone",
    "FileGoneTrigger",
    "FileSeen",
    "FileTrigger",
    "FilesSeen",
    "FilesTrigger",
    "GoneFiles",
    "NewFile",
    "NewFiles",
    "RestingFiles",
    "has_rested",
)


class Arrivals:
    """Tracks which files are new and complete.

    Args:
        rest_seconds: How long a file must not have changed to be complete.
        horizon_ns: Files that were last changed before this time are not new. In ns since 1970.

    Attributes:
        due_in: Seconds from the last poll until another file may be complete.
    """

    def __init__(self, rest_seconds: float, horizon_ns: int) -> None:
        self.due_in = math.inf
        self._rest_seconds = rest_seconds
        self._horizon_ns = horizon_ns
        self._resting: dict[str, tuple[FoundFile, float]] = {}
        self._received: dict[str, tuple[int, int]] = {}

    def see(self, at: float, files: dict[str, FoundFile]) -> list[tuple[str, FoundFile]]:
        """Return the files that became complete, in the order of their last changes."""
        self._received = {name: told for name, told in self._received.items() if name in files}
        resting: dict[str, tuple[FoundFile, float]] = {}
        complete = []
        for name, found in files.items():
            if found.changed_ns < self._horizon_ns or self._received.get(name) == _file_version(
                found
            ):
                continue
            before, since = self._resting.get(name, (found, at))
            if _file_version(before) != _file_version(found):
                since = at
            if has_rested(at - since, self._rest_seconds):
                complete.append((name, found))
                self._received[name] = _file_version(found)
            else:
                resting[name] = (found, since)
        self._resting = resting
        first = min((since for _, since in resting.values()), default=math.inf)
        self.due_in = first + self._rest_seconds - at
        return sorted(complete, key=lambda arrival: (arrival[1].changed_ns, arrival[0]))


def _file_version(found: FoundFile) -> tuple[int, int]:
    return found.size_bytes, found.modified_ns


def has_rested(rested: float, wanted: float) -> bool:
    """Return whether a file has been unchanged for the required time."""
    # Tolerates float errors: the difference of two times that are one period apart may be slightly
    # less than the period.
    return rested >= wanted * 0.999


T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_COARSEST_CLOCK_NS = 2_000_000_000
"""Tolerance for the times of files: some file systems store times in units of two seconds, and no
file system is exact."""

_SKEW_NS = 60_000_000_000
"""Maximum difference between the clocks of machines that write into one folder."""


class FileSeen(TypedDict):
    """A file that was found."""

    path: str
    size_bytes: int


class FilesSeen(TypedDict):
    """Files that were found; ``size_bytes`` is the total."""

    paths: list[str]
    size_bytes: int


class FileGone(TypedDict):
    """A path at which nothing exists any more."""

    path: str


class NewFile(TypedDict):
    """A new file.

    ``changed_ns`` is the time of its last change, including renames, by the clock of the file
    system: nanoseconds since 1970.
    """

    path: str
    size_bytes: int
    modified: datetime
    changed_ns: int


@dataclass(frozen=True)
class FileTrigger(Trigger[FileSeen]):
    """Fires once a file exists and has stopped growing.

    A folder at the path counts too, as in Airflow. It counts as unchanged while no names are added
    or removed in it, even if its files are being written. To wait until a folder is filled, wait
    for a marker file in it.

    A file has stopped growing if two polls, at least ``stable`` apart, found the same size and
    modification time. If its producer may pause for longer while it writes, use a marker file.

    Attributes:
        path: Absolute path, as text or ``Path``, on the machine of the triggerer, which may differ
            from the machine on which the task runs.
        poll_seconds: Seconds between two polls; at least 0.1. All waits on one folder with the
            same value share each poll, however many there are. If the kernel reports a change,
            the folder is polled sooner.
        stable: How long the file must not have changed. With ``0`` the trigger fires as soon as
            the file exists. ``None`` means ``poll_seconds``.

    Raises:
        ValueError: If ``path`` is relative or names no file, or ``poll_seconds`` is below 0.1.
        DagError: If ``stable`` is not a duration.

    Events:
        One. ``payload`` is ``{"path": str, "size_bytes": int}``; ``key`` is the path and size,
        so that two processes that find the same file yield the same key.

    Errors:
        ``PermissionError`` and other file system errors for this path fail the waiting task, but
        no other wait in the same folder. A missing file or folder is not an error: the trigger
        waits for it.
    """

    public_fields = ("path", "poll_seconds", "stable")

    path: str | Path
    poll_seconds: float = 5.0
    stable: Duration | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute(self.path))
        _rest_seconds(self.stable, _checked_poll(self.poll_seconds))

    def share(self) -> Share:
        """Share one watch between all files of a folder with the same options."""
        before, name = parted(self.path)
        rest = _rest_seconds(self.stable, self.poll_seconds)
        return Share(RestingFiles, name, of=(before, self.poll_seconds, rest))

    async def poll(self) -> FileSeen | None:
        """Return the file if it exists and does not change for ``stable``, else ``None``."""
        folder, name = os.path.split(self.path)
        rest = _rest_seconds(self.stable, self.poll_seconds)
        with watching(folder, name, self.poll_seconds) as seat:
            found = await _rested(seat, rest, lambda poll: poll.find(name), patient=False)
        return None if found is None else FileSeen(path=str(self.path), size_bytes=found.size_bytes)


class RestingFiles(Watch[str, FileSeen]):
    """A watch for files of one folder that must exist and be unchanged. Its keys are their names.

    Holds no state for files that do not exist.

    Args:
        before: The part of the path before the name.
    """

    def __init__(self, before: str, poll_seconds: float, rest_seconds: float) -> None:
        self._before = before
        self._poll_seconds = poll_seconds
        self._rest_seconds = rest_seconds
        self._resting: dict[str, tuple[FoundFile, float]] = {}
        self._seat: Seat | None = None

    def joined(self, wanted: str) -> None:
        """Poll the folder soon for the new name."""
        if self._seat is not None:
            self._seat.stir()

    def left(self, wanted: str) -> None:
        """Forget the state of the file."""
        self._resting.pop(wanted, None)

    def next_check(self) -> datetime | None:
        """Return the time of the next regular poll."""
        return None if self._seat is None else self._seat.next_check()

    def last_check(self) -> datetime | None:
        """Return the time of the last poll."""
        return None if self._seat is None else self._seat.last_check()

    async def run(self) -> AsyncIterator[tuple[str, TriggerEvent[FileSeen] | Exception]]:
        """Yield each file once it is complete. If a file cannot be read, yield the error."""
        folder, _ = os.path.split(self._before)
        self._seat = Seat(folder, Crowd(self.wanted), self._poll_seconds)
        try:
            poll = await self._seat.poll()
            while True:
                for name, problem in poll.errors.items():
                    yield name, problem
                for name in self._rested(poll):
                    yield name, self._event(name, poll.files[name])
                first = min((since for _, since in self._resting.values()), default=math.inf)
                poll = await self._seat.next_poll(first + self._rest_seconds - poll.at)
        finally:
            self._seat.leave()

    def _rested(self, poll: FolderPoll) -> list[str]:
        """Return the files that have been unchanged for long enough."""
        resting: dict[str, tuple[FoundFile, float]] = {}
        for name, found in poll.files.items():
            if name in self.wanted:  # other waits may poll the folder, too
                before, since = self._resting.get(name, (found, poll.at))
                resting[name] = (found, since if before == found else poll.at)
        self._resting = resting
        return [
            name
            for name, (_, since) in resting.items()
            if has_rested(poll.at - since, self._rest_seconds)
        ]

    def _event(self, name: str, found: FoundFile) -> TriggerEvent[FileSeen]:
        path = self._before + name
        seen = FileSeen(path=path, size_bytes=found.size_bytes)
        return TriggerEvent(seen, key=f"{in_key(path)}:{found.size_bytes}")


@dataclass(frozen=True)
class FilesTrigger(Trigger[FilesSeen]):
    """Fires once enough files match a pattern and none of them changes any more.

    Attributes:
        pattern: Absolute path with ``*``, ``?`` or ``[...]`` in its last part. As in a shell, a
            hidden file matches only if the pattern starts with a dot. Folders do not count.
        at_least: The minimum number of files; at least 1.
        poll_seconds: See ``FileTrigger``.
        stable: How long no matching file may have changed, appeared or disappeared; see
            ``FileTrigger``.

    Raises:
        ValueError: If the pattern is relative, its folder contains a wildcard, or a number is too
            small.
        DagError: If ``stable`` is not a duration.

    Events:
        One. ``payload`` is ``{"paths": [...], "size_bytes": int}``, sorted by name; ``key`` is the
        pattern, the number of files and their size.

    Errors:
        Those of ``FileTrigger``. The task also fails if there are more paths than an event can
        contain, which is a few thousand.
    """

    public_fields = ("pattern", "at_least", "poll_seconds", "stable")

    pattern: str | Path
    at_least: int = 1
    poll_seconds: float = 5.0
    stable: Duration | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", in_one_folder(self.pattern))
        _rest_seconds(self.stable, _checked_poll(self.poll_seconds))
        if self.at_least < 1:
            raise ValueError(f"at_least must be at least 1, got {self.at_least}")

    async def run(self) -> AsyncIterator[TriggerEvent[FilesSeen]]:
        """Yield one event once the files are complete."""
        seen = await self._seen(patient=True)
        if seen is not None:
            key = f"{in_key(self.pattern)}:{len(seen['paths'])}:{seen['size_bytes']}"
            yield TriggerEvent(seen, key=key)

    async def poll(self) -> FilesSeen | None:
        """Return the files if enough exist and do not change for ``stable``, else ``None``."""
        return await self._seen(patient=False)

    async def _seen(self, *, patient: bool) -> FilesSeen | None:
        folder, glob = os.path.split(self.pattern)

        rest = _rest_seconds(self.stable, self.poll_seconds)
        with watching(folder, glob, self.poll_seconds, is_glob=True) as seat:

            def enough(poll: FolderPoll) -> dict[str, FoundFile] | None:
                files = poll.fitting(glob)
                found = f"{len(files)} of {self.at_least} found"
                self.note_check(found, next_in=seat.seconds_left())
                return files if len(files) >= self.at_least else None

            files = await _rested(seat, rest, enough, patient=patient)
        if files is None:
            return None
        paths = [os.path.join(folder, name) for name in sorted(files)]  # noqa: PTH118
        return FilesSeen(paths=paths, size_bytes=sum(f.size_bytes for f in files.values()))


@dataclass(frozen=True)
class FileGoneTrigger(Trigger[FileGone]):
    """Fires as soon as nothing exists at a path, for example after a marker was removed.

    Attributes:
        path: See ``FileTrigger``. A missing folder counts as empty.
        poll_seconds: See ``FileTrigger``.

    Raises:
        ValueError: As in ``FileTrigger``.

    Events:
        One, immediately if nothing exists. ``payload`` is ``{"path": str}``; ``key`` is the path.

    Errors:
        Those of ``FileTrigger``.
    """

    public_fields = ("path", "poll_seconds")

    path: str | Path
    poll_seconds: float = 5.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute(self.path))
        _checked_poll(self.poll_seconds)

    def share(self) -> Share:
        """Share one watch between all waits for a folder's files to disappear."""
        before, name = parted(self.path)
        return Share(GoneFiles, name, of=(before, self.poll_seconds))


class GoneFiles(Watch[str, FileGone]):
    """A watch for files of one folder that must disappear. Its keys are their names.

    Args:
        before: The part of the path before the name.
    """

    def __init__(self, before: str, poll_seconds: float) -> None:
        self._before = before
        self._poll_seconds = poll_seconds
        self._leaving: Leaving | None = None
        self._seat: Seat | None = None

    def joined(self, wanted: str) -> None:
        """Poll the folder soon for the new name; not needed before the first poll."""
        if self._leaving is not None and self._seat is not None:
            self._leaving.join(wanted)
            self._seat.stir()

    def left(self, wanted: str) -> None:
        """Forget the name."""
        if self._leaving is not None:
            self._leaving.leave(wanted)

    def next_check(self) -> datetime | None:
        """Return the time of the next regular poll."""
        return None if self._seat is None else self._seat.next_check()

    def last_check(self) -> datetime | None:
        """Return the time of the last poll."""
        return None if self._seat is None else self._seat.last_check()

    async def run(self) -> AsyncIterator[tuple[str, TriggerEvent[FileGone] | Exception]]:
        """Yield each name as soon as no such file exists. If a check fails, yield its error."""
        folder, _ = os.path.split(self._before)
        leaving = self._leaving = Leaving(self.wanted)
        self._seat = Seat(folder, leaving, self._poll_seconds)
        try:
            poll = await self._seat.poll()
            while True:
                for name, problem in poll.errors.items():
                    yield name, problem
                for name in leaving.missing(poll):
                    # A name may have left and joined again while the waits for earlier names were
                    # notified.
                    if not leaving.is_late(name, poll):
                        path = self._before + name
                        yield name, TriggerEvent(FileGone(path=path), key=f"{in_key(path)}:gone")
                poll = await self._seat.next_poll()
        finally:
            self._seat.leave()


@dataclass(frozen=True)
class NewFiles(Trigger[NewFile]):
    """Fires for every new file in a folder: a stream without end.

    A file is new if it was created, moved there or written after the task began to wait, or at most
    two seconds earlier, because some file systems store times in units of two seconds. A file that
    is written again is new again. A file that appears and disappears between two polls is missed.

    Attributes:
        pattern: See ``FilesTrigger``.
        stable: How long a file must not have changed; see ``FileTrigger``.
        existing: Whether files that existed when the task began to wait count too.
        poll_seconds: See ``FileTrigger``.

    Raises:
        ValueError: As in ``FilesTrigger``.
        DagError: If ``stable`` is not a duration.

    Events:
        Many; the events of one poll are in the order of the files' last changes. ``payload`` is
        ``{"path": str,
        "size_bytes": int, "modified": datetime, "changed_ns": int}``; ``key`` is the path, size and
        modification time, so that each file is yielded once. After a restart, the trigger omits
        files that were last changed a minute or more before the file of its last event; other
        duplicates are dropped by their key.

    Errors:
        Those of ``FileTrigger``, for the folder. A file that cannot be read, such as a link to
        itself, or whose name is not valid text, is omitted with a warning in the log.
    """

    public_fields = ("pattern", "stable", "existing", "poll_seconds")

    pattern: str | Path
    stable: Duration | None = None
    existing: bool = False
    poll_seconds: float = 5.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", in_one_folder(self.pattern))
        _rest_seconds(self.stable, _checked_poll(self.poll_seconds))

    async def run(self) -> AsyncIterator[TriggerEvent[NewFile]]:
        """Yield an event for each new file."""
        folder, glob = os.path.split(self.pattern)
        arrivals = Arrivals(_rest_seconds(self.stable, self.poll_seconds), self._horizon_ns())
        left_out: frozenset[str] = frozenset()
        seat = Seat(folder, NameOrGlob(glob, is_glob=True), self.poll_seconds)
        try:
            poll = await seat.poll()
            while True:
                for name, found in arrivals.see(poll.at, poll.fitting(glob)):
                    path = os.path.join(folder, name)  # noqa: PTH118
                    try:
                        event = _arrival(path, found)
                    except ValueError as exc:
                        self.log.warning("%r is left out: %s", path, exc)
                        continue
                    yield event
                left_out = self._note_left_out(poll, folder, glob, left_out)
                self.note_check(next_in=seat.seconds_left())
                poll = await seat.next_poll(arrivals.due_in)
        finally:
            seat.leave()

    def _note_left_out(
        self, poll: FolderPoll, folder: str, glob: str, before: frozenset[str]
    ) -> frozenset[str]:
        """Return the unreadable files. Log a warning for each of them that is not in ``before``."""
        left_out = frozenset(name for name in poll.errors if matches(name, glob))
        for name in sorted(left_out - before):
            path = os.path.join(folder, name)  # noqa: PTH118
            self.log.warning("%r is left out: %s", path, poll.errors[name])
        return left_out

    def _horizon_ns(self) -> int:
        """Return the horizon: a file that was last changed before this time does not count."""
        horizon = 0
        if not self.existing:
            horizon = (self.since - _EPOCH) // timedelta(microseconds=1) * 1000 - _COARSEST_CLOCK_NS
        if self.last is not None:
            # A file that was changed earlier has already been yielded, unless the clock of the
            # machine that wrote it differs.
            horizon = max(horizon, self.last.payload["changed_ns"] - _SKEW_NS)
        return horizon


def _arrival(path: str, found: FoundFile) -> TriggerEvent[NewFile]:
    """Return the event of a file.

    Raises:
        ValueError: If its name or time cannot be represented in an event.
    """
    key = f"{in_key(path)}:{found.size_bytes}:{found.modified_ns}"
    try:
        path.encode()
        modified = _EPOCH + timedelta(microseconds=found.modified_ns // 1000)
    except UnicodeEncodeError:
        raise ValueError("its name is not valid text") from None
    except OverflowError:
        raise ValueError("no calendar has the time at which it was written") from None
    payload = NewFile(
        path=path, size_bytes=found.size_bytes, modified=modified, changed_ns=found.changed_ns
    )
    return TriggerEvent(payload, key=key)


async def _rested(
    seat: Seat, rest_seconds: float, state_of: Callable[[FolderPoll], T | None], *, patient: bool
) -> T | None:
    """Return the result of ``state_of`` once it has been the same for long enough.

    Args:
        patient: Whether to wait until then. If not, return ``None`` as soon as the result is
            ``None`` or changes.
    """
    poll = await seat.poll()
    state, since = state_of(poll), poll.at
    while state is None or not has_rested(poll.at - since, rest_seconds):
        if state is None and not patient:
            return None
        due_in = math.inf if state is None else since + rest_seconds - poll.at
        poll = await seat.next_poll(due_in)
        now = state_of(poll)
        if now != state:
            if not patient:
                return None
            state, since = now, poll.at
    return state


def _checked_poll(poll_seconds: float) -> float:
    if not poll_seconds >= 0.1:
        raise ValueError(f"poll_seconds must be at least 0.1, got {poll_seconds}")
    return poll_seconds


def _rest_seconds(stable: Duration | None, poll_seconds: float) -> float:
    return poll_seconds if stable is None else as_timedelta(stable, "stable").total_seconds()
