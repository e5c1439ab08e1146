"""One poll of a folder: the names to look for, the files found, and the threads that run polls.

The waits are isolated from each other. If a name cannot be read, or the folder of a pattern cannot
be listed, only the waits for that name or pattern receive the error.

A poll of a folder on an unreachable server may hang for hours. It uses one thread, and after some
seconds that thread no longer counts towards the limit of concurrent polls. So a poll that hangs
does not block polls of other folders.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import math
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import translate
from functools import partial
from typing import Generic, NamedTuple, TypeAlias, TypeVar

__all__ = (
    "HANGS_AFTER_SECONDS",
    "Crowd",
    "FolderPoll",
    "FoundFile",
    "Leaving",
    "NameOrGlob",
    "PollThreads",
    "Sought",
    "is_shortage",
    "matches",
    "poll_folder",
)

_SINGLY = 64  # up to this number, names are looked up singly; for more, one listing is cheaper

_SHORTAGES = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ENOBUFS}
)


class FoundFile(NamedTuple):
    """A file that a poll has found.

    Attributes:
        modified_ns: When its content was last written.
        changed_ns: When its name, content or permissions were last changed, by the clock of the
            file system.
    """

    size_bytes: int
    modified_ns: int
    changed_ns: int
    is_file: bool


@dataclass(frozen=True)
class FolderPoll:
    """The result of one poll of a folder.

    Attributes:
        at: When it began, in seconds on the loop's clock.
        files: Wanted files that exist, by name.
        missing: For each group of waits for files to disappear: the names at which nothing exists.
        errors: Names that could not be read, with the reason. Such a name is in neither ``files``
            nor ``missing``.
        unlisted: Why the folder could not be listed. Even then, single names were looked up.
    """

    at: float
    files: Mapping[str, FoundFile]
    missing: Mapping[Leaving, Collection[str]] = field(default_factory=dict)
    errors: Mapping[str, Exception] = field(default_factory=dict)
    unlisted: Exception | None = None

    def find(self, name: str) -> FoundFile | None:
        """Return the file with this name.

        Raises:
            OSError: If it could not be read.
        """
        if name in self.errors:
            raise self.errors[name]
        return self.files.get(name)

    def fitting(self, glob: str) -> dict[str, FoundFile]:
        """Return the files that match a pattern, without those that could not be read.

        Raises:
            OSError: If the folder could not be listed.
        """
        if self.unlisted is not None:
            raise self.unlisted
        return {n: found for n, found in self.files.items() if found.is_file and matches(n, glob)}


class NameOrGlob(NamedTuple):
    """The search term of one wait in a folder: a name, or a glob that matches names."""

    text: str
    is_glob: bool

    @property
    def is_one(self) -> bool:
        """Whether the wait looks for a single name."""
        return not self.is_glob

    def is_fit_by(self, name: str) -> bool:
        """Return whether the wait looks for a file with this name."""
        return matches(name, self.text) if self.is_glob else name == self.text


class Crowd:
    """A large set of wanted names, in a collection that may change during a poll.

    Attributes:
        few: The names at the start of the last poll, if there were only a few.
    """

    is_one = False

    def __init__(self, names: Collection[str]) -> None:
        self.names = names
        self.few: tuple[str, ...] | None = None

    def is_fit_by(self, name: str) -> bool:
        """Return whether a name is wanted."""
        return name in self.names

    def begin(self, at: float) -> None:
        """Copy the names as a poll begins. Called on the event loop, where names are added."""
        self.few = tuple(self.names) if len(self.names) <= _SINGLY else None


class Leaving:
    """A large set of names that must disappear, in a collection that may change during a poll.

    Attributes:
        sought: The names at the start of the last poll.
    """

    is_one = False

    def __init__(self, names: Collection[str]) -> None:
        self.sought: tuple[str, ...] = ()
        self._names = names
        self._latecomers: dict[str, float] = {}  # added names, with the time of their first poll

    def is_fit_by(self, name: str) -> bool:
        """Return whether a name is wanted."""
        return name in self._names

    def join(self, name: str) -> None:
        """Add a name. It does not count as missing until a poll has looked for it."""
        self._latecomers[name] = math.inf

    def leave(self, name: str) -> None:
        """Remove a name."""
        self._latecomers.pop(name, None)

    def begin(self, at: float) -> None:
        """Copy the names as a poll begins, and note the first poll for each added name."""
        self.sought = tuple(self._names)
        for name, first in self._latecomers.items():
            self._latecomers[name] = min(first, at)

    def is_late(self, name: str, poll: FolderPoll) -> bool:
        """Return whether a name was added since the poll began."""
        return self._latecomers.get(name, -math.inf) > poll.at

    def missing(self, poll: FolderPoll) -> list[str]:
        """Return the names that a poll has looked for without finding them."""
        late = {name: first for name, first in self._latecomers.items() if first > poll.at}
        self._latecomers = late
        return [name for name in poll.missing.get(self, ()) if name not in late]


Sought: TypeAlias = NameOrGlob | Crowd | Leaving


def matches(name: str, glob: str) -> bool:
    """Return whether a name matches a glob. Hidden names only match globs that start with a dot."""
    if name.startswith(".") and not glob.startswith("."):
        return False
    return _compiled(glob).match(name) is not None


@functools.lru_cache(1_000)
def _compiled(glob: str) -> re.Pattern[str]:
    return re.compile(translate(glob))


def is_shortage(problem: BaseException) -> bool:
    """Return whether an error means that the process or machine is short of a resource."""
    if isinstance(problem, OSError):
        return problem.errno in _SHORTAGES
    return isinstance(problem, MemoryError)


# ── in a thread ─────────────────────────────────────────────────────────────────────────


def poll_folder(at: float, folder: str, wanted: Collection[Sought]) -> FolderPoll:
    """Poll a folder. Blocks.

    Raises:
        OSError: If the machine is short of a resource; see ``is_shortage``.
    """
    names: set[str] = set()
    many: list[Sought] = []
    missing: dict[Leaving, set[str]] = {}
    for sought in wanted:
        if isinstance(sought, Leaving):
            missing[sought] = set(sought.sought)
        elif isinstance(sought, Crowd) and sought.few is not None:
            names.update(sought.few)
        elif isinstance(sought, NameOrGlob) and sought.is_one:
            names.add(sought.text)
        else:
            many.append(sought)
    looking = _Polling(folder, names, many, list(missing.values()))
    if many or len(looking.all_names()) > _SINGLY:
        looking.list()
    else:
        looking.look_up(looking.all_names())
    return FolderPoll(at, looking.files, missing, looking.errors, looking.unlisted)


class _Polling:
    """A poll in progress.

    Attributes:
        missing: Names that are expected to disappear. A name that is found to exist is removed.
    """

    def __init__(
        self, folder: str, names: set[str], many: list[Sought], missing: list[set[str]]
    ) -> None:
        self.files: dict[str, FoundFile] = {}
        self.errors: dict[str, Exception] = {}
        self.unlisted: Exception | None = None
        self._folder = folder
        self._names = names
        self._many = many
        self._missing = missing

    def all_names(self) -> set[str]:
        """Return the wanted names that are known without listing the folder."""
        return self._names.union(*self._missing)

    def look_up(self, names: Iterable[str]) -> None:
        """Look up names one by one."""
        for name in names:
            self._stat(name, os.path.join(self._folder, name))  # noqa: PTH118

    def list(self) -> None:
        """List the folder and match its names. If it cannot be listed, look up the wanted names."""
        try:
            with os.scandir(self._folder) as entries:
                names, many, missing = self._names, self._many, self._missing
                for entry in entries:
                    name = entry.name
                    if name in names or any(sought.is_fit_by(name) for sought in many):
                        self._stat(name, entry.path)
                    elif missing:
                        self._strike(entry)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as exc:
            self._refuse(exc)
            self.unlisted = exc
            name_sets = [sought for sought in self._many if isinstance(sought, Crowd)]
            # Iterates over copies, because names may be added during the lookup.
            self.look_up(self.all_names().union(*(tuple(names.names) for names in name_sets)))

    def _strike(self, entry: os.DirEntry[str]) -> None:
        name = entry.name
        for left in self._missing:
            if name not in left:
                continue
            # A link is followed, because it may be dangling. For other entries the name is enough.
            if entry.is_symlink():
                self._stat(name, entry.path)
            else:
                left.remove(name)

    def _stat(self, name: str, path: str) -> None:
        try:
            status = os.stat(path)  # noqa: PTH116 - Path would cost as much as the call
        except FileNotFoundError:
            return
        except (OSError, ValueError) as exc:
            self._refuse(exc)
            self.errors[name] = exc
        else:
            is_file = stat.S_ISREG(status.st_mode)
            self.files[name] = FoundFile(
                status.st_size, status.st_mtime_ns, status.st_ctime_ns, is_file
            )
        for left in self._missing:
            left.discard(name)

    def _refuse(self, problem: Exception) -> None:
        """Raise if the machine is short of a resource, so that no single wait gets the error."""
        if is_shortage(problem):
            raise problem


HANGS_AFTER_SECONDS = 5.0
POLLS_AT_ONCE = 4
_THREADS = 64
"""The maximum number of threads, including threads that hang. If all of them hang, no poll starts.
"""

T = TypeVar("T")

_logger = logging.getLogger("aioflow.trigger.folders")

# A separate executor, so that a hanging file system cannot use up the loop's default threads.
_threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="aioflow-folders")


class _PollJob(Generic[T]):
    """A poll that is queued or running."""

    __slots__ = ("done", "folder", "hangs", "timer", "work")

    def __init__(self, folder: str, work: Callable[[], T], done: asyncio.Future[T]) -> None:
        self.folder = folder
        self.work = work
        self.done = done
        self.hangs = False
        self.timer: asyncio.TimerHandle | None = None


class PollThreads(Generic[T]):
    """Runs polls in threads for one event loop, without holding a reference to the loop."""

    def __init__(self) -> None:
        self._queue: deque[_PollJob[T]] = deque()
        self._behind: dict[
            str, deque[_PollJob[T]]
        ] = {}  # polls that wait for another poll of the same folder
        self._running = 0

    def poll(self, folder: str, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``work`` in a thread, after any running poll of this folder.

        Cancel the future if the result is no longer needed.
        """
        job = _PollJob(folder, work, asyncio.get_running_loop().create_future())
        behind = self._behind.get(folder)
        if behind is not None:
            self._behind[folder] = deque(other for other in behind if not other.done.done())
            self._behind[folder].append(job)
        else:
            self._behind[folder] = deque()
            self._queue.append(job)
            self._start()
        return job.done

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue and self._running < POLLS_AT_ONCE:
            job = self._queue.popleft()
            self._running += 1
            job.timer = loop.call_later(HANGS_AFTER_SECONDS, self._give_up, job)
            future = loop.run_in_executor(_threads, job.work)
            future.add_done_callback(partial(self._finish, job))

    def _give_up(self, job: _PollJob[T]) -> None:
        """Stop counting a poll that hangs, so that other polls can start."""
        job.hangs = True
        self._running -= 1
        _logger.warning(
            "%s does not answer since %g s; other folders are polled meanwhile",
            job.folder,
            HANGS_AFTER_SECONDS,
        )
        self._start()

    def _finish(self, job: _PollJob[T], future: asyncio.Future[T]) -> None:
        if job.timer is not None:
            job.timer.cancel()
        if not job.hangs:
            self._running -= 1
        behind = self._behind.pop(job.folder)
        while behind and behind[0].done.done():
            behind.popleft()
        if behind:
            self._queue.append(behind.popleft())
            self._behind[job.folder] = behind
        self._start()
        problem = asyncio.CancelledError() if future.cancelled() else future.exception()
        if job.done.done():
            return
        if problem is None:
            job.done.set_result(future.result())
        else:
            job.done.set_exception(problem)
