"""Looks at folders, once per period for everyone who waits for something in them.

What a look finds is the truth. Where the kernel tells of changes, the next look comes sooner;
where it does not, the same is found at the end of the period.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import re
import stat
import weakref
from collections import Counter
from collections.abc import Collection, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import translate
from typing import Any, NamedTuple, TypeAlias

from aioflow_triggers.inotify import Kernel

__all__ = ("Crowd", "Found", "Leaving", "Look", "Seat", "Wanted", "matches", "watching")

_SINGLY = 64  # so many names are looked up one by one; more are cheaper in one listing

_SHORTEST_GAP_SECONDS = 0.05
"""Between two looks at a folder, however much happens in it; more where looks take long."""
_GAP_PER_LOOK = 4.0

# Threads of our own: a file system that hangs must not take the loop's other threads with it.
_threads = ThreadPoolExecutor(4, thread_name_prefix="aioflow-folders")


class Found(NamedTuple):
    """A file, as a look found it.

    Attributes:
        modified_ns: When its content was last written.
        changed_ns: When its name, content or rights were last changed, by the clock of the
            file system.
    """

    size_bytes: int
    modified_ns: int
    changed_ns: int
    is_file: bool


@dataclass(frozen=True)
class Look:
    """What one look at a folder found.

    Attributes:
        at: Seconds on the loop's clock, when it began.
        files: By name, of those that somebody waits for and that exist.
        missing: Names at which there is nothing, by who waits for just that.
    """

    at: float
    files: Mapping[str, Found]
    missing: Mapping[Leaving, Collection[str]] = field(default_factory=dict)


class Wanted(NamedTuple):
    """What somebody waits for in a folder: a name, or all names that fit a glob."""

    text: str
    is_glob: bool

    @property
    def is_one(self) -> bool:
        """Whether that is one name."""
        return not self.is_glob

    def is_fit_by(self, name: str) -> bool:
        """Return whether a file of this name is meant."""
        return matches(name, self.text) if self.is_glob else name == self.text


class Crowd:
    """Names that many wait for, in a collection that changes while they do.

    Attributes:
        few: The names themselves, as of the last look, if they were few.
    """

    is_one = False

    def __init__(self, names: Collection[str]) -> None:
        self.names = names
        self.few: tuple[str, ...] | None = None

    def is_fit_by(self, name: str) -> bool:
        """Return whether somebody waits for this name."""
        return name in self.names

    def begin(self, at: float) -> None:
        """See who is there as a look begins. Not in a thread, where names may come meanwhile."""
        self.few = tuple(self.names) if len(self.names) <= _SINGLY else None


class Leaving:
    """Names of which many wait that there be nothing, in a collection that changes meanwhile.

    Attributes:
        sought: The names themselves, as of the last look.
    """

    is_one = False

    def __init__(self, names: Collection[str]) -> None:
        self.sought: tuple[str, ...] = ()
        self._names = names
        self._latecomers: dict[str, float] = {}  # with when the first look at each began

    def is_fit_by(self, name: str) -> bool:
        """Return whether somebody waits that this goes."""
        return name in self._names

    def join(self, name: str) -> None:
        """A name is waited for from now on: what has not been looked for cannot be missing."""
        self._latecomers[name] = math.inf

    def leave(self, name: str) -> None:
        """It is not waited for any more."""
        self._latecomers.pop(name, None)

    def begin(self, at: float) -> None:
        """See who is there as a look begins."""
        self.sought = tuple(self._names)
        for name, first in self._latecomers.items():
            self._latecomers[name] = min(first, at)

    def is_late(self, name: str, look: Look) -> bool:
        """Return whether somebody has come for this name since the look began."""
        return self._latecomers.get(name, -math.inf) > look.at

    def missing(self, look: Look) -> list[str]:
        """Return the names that a look has looked for and not found."""
        late = {name: first for name, first in self._latecomers.items() if first > look.at}
        self._latecomers = late
        return [name for name in look.missing.get(self, ()) if name not in late]


Sought: TypeAlias = Wanted | Crowd | Leaving


class Folder:
    """One folder, looked at once per period however many wait for something in it.

    The periods are those of the loop's clock, so that everyone wakes for the same look.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, kernel: Kernel, folder: str, poll_seconds: float
    ) -> None:
        self.wanted: Counter[Sought] = Counter()
        self._many: set[Sought] = set()
        self._loop = loop
        self._kernel = kernel
        self._folder = folder
        self._poll_seconds = poll_seconds
        self._began = -math.inf
        self._gap = _SHORTEST_GAP_SECONDS
        self._looked_for: frozenset[Sought] = frozenset()
        self._hinted_at: dict[Sought, float] = {}
        self._napping: dict[Sought, list[asyncio.Future[None]]] = {}
        self._look: asyncio.Future[Look] | None = None

    def join(self, wanted: Sought) -> None:
        """One more waits for this."""
        self.wanted[wanted] += 1
        if not wanted.is_one:
            self._many.add(wanted)

    def leave(self, wanted: Sought) -> None:
        """One less does."""
        self.wanted[wanted] -= 1
        if not self.wanted[wanted]:
            del self.wanted[wanted]
            self._many.discard(wanted)
            self._hinted_at.pop(wanted, None)

    async def look(self, wanted: Sought) -> Look:
        """Return the look of this period at ``wanted``; who comes first takes it.

        Raises:
            OSError: If the folder cannot be read; a missing one is merely empty.
        """
        while wanted not in self._looked_for or self._period(self._began) != self._period():
            # Who comes in a crowd shares a look with it, though each waits for another name.
            gap = self._began + self._gap - self._loop.time()
            if gap <= 0:
                self._take()
            else:
                await asyncio.sleep(gap)
        return await self._shared()

    def _period(self, at: float | None = None) -> float:
        return (self._loop.time() if at is None else at) // self._poll_seconds

    async def next_look(self, wanted: Sought, within: float) -> Look:
        """Return a newer look: of the next period, or sooner.

        Args:
            wanted: What the caller waits for; a change of it leads to a look at once.
            within: Seconds after which a look is wanted in any case.
        """
        before, to_boundary = self._began, self.seconds_left()
        if self._hinted_at.get(wanted, -math.inf) < before:
            await self._nap(wanted, min(to_boundary, max(0.0, within)))
        # What changes all the time is not looked at all the time.
        while self._began == before and (gap := before + self._gap - self._loop.time()) > 0:
            await asyncio.sleep(gap)
        if self._began == before:
            self._take()
        return await self._shared()

    def seconds_left(self) -> float:
        """Return how long this period still lasts."""
        return self._poll_seconds - self._loop.time() % self._poll_seconds

    def hint(self, name: str | None) -> None:
        """Have those look who wait for ``name``, or everybody if it is ``None``."""
        for wanted in self._concerned(name):
            self.stir(wanted)

    def stir(self, wanted: Sought) -> None:
        """Have those look who wait for this."""
        self._hinted_at[wanted] = self._loop.time()
        for napping in self._napping.get(wanted, ()):
            _wake(napping)

    def _concerned(self, name: str | None) -> list[Sought]:
        if name is None:
            return list(self.wanted)
        plain = Wanted(name, is_glob=False)
        found: list[Sought] = [plain] if plain in self.wanted else []
        return found + [many for many in self._many if many.is_fit_by(name)]

    async def _nap(self, wanted: Sought, seconds: float) -> None:
        # One future each: a shared one makes cancelling thousands quadratic.
        napping = self._loop.create_future()
        timer = self._loop.call_later(seconds, _wake, napping)
        self._napping.setdefault(wanted, []).append(napping)
        try:
            await napping
        finally:
            timer.cancel()
            others = self._napping[wanted]
            others.remove(napping)
            if not others:
                del self._napping[wanted]

    def _take(self) -> None:
        began = self._began = self._loop.time()
        self._looked_for = frozenset(self.wanted)
        for many in self._many:
            if not isinstance(many, Wanted):
                many.begin(began)
        self._look = self._loop.run_in_executor(
            _threads, _look, began, self._folder, self._looked_for, self._kernel
        )
        self._look.add_done_callback(self._taken)

    def _taken(self, look: asyncio.Future[Look]) -> None:
        took = self._loop.time() - self._began
        self._gap = max(_SHORTEST_GAP_SECONDS, _GAP_PER_LOOK * took)
        if not look.cancelled():
            look.exception()  # whoever waited for it may have left

    async def _shared(self) -> Look:
        look = self._look
        assert look is not None  # noqa: S101 - the caller has taken one
        # One that is cancelled must not take the look from the others.
        return await asyncio.shield(look)


class _Loop:
    """What the watches of one loop share."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.kernel = Kernel(loop)
        self.watches: dict[tuple[str, float], Folder] = {}


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()


class Seat:
    """One who takes part in the looks at a folder, until ``leave``.

    All who share the folder and the period share the looks.

    Args:
        wanted: What one waits for in the folder.
    """

    __slots__ = ("_key", "_loop", "_shared", "_wanted", "_watch")

    def __init__(self, folder: str, wanted: Sought, poll_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        shared = _loops.get(loop)
        if shared is None:
            shared = _loops[loop] = _Loop(loop)
        self._loop, self._shared = loop, shared
        self._key = (folder, poll_seconds)
        watch = shared.watches.get(self._key)
        if watch is None:
            watch = shared.watches[self._key] = Folder(loop, shared.kernel, folder, poll_seconds)
            shared.kernel.listen(folder, watch.hint)
        self._watch = watch
        self._wanted = wanted
        watch.join(wanted)

    # No coroutine of its own in between: there are tens of thousands of these.

    def look(self) -> Coroutine[Any, Any, Look]:
        """See ``Watch``."""
        return self._watch.look(self._wanted)

    def next_look(self, within: float = math.inf) -> Coroutine[Any, Any, Look]:
        """See ``Watch``."""
        return self._watch.next_look(self._wanted, within)

    def next_check(self) -> datetime:
        """Return when the next period begins, and with it the next look."""
        return datetime.now(UTC) + timedelta(seconds=self._watch.seconds_left())

    def stir(self) -> None:
        """Have a look taken soon, at what is wanted by then."""
        self._watch.stir(self._wanted)

    def leave(self) -> None:
        """Take part no more. Once."""
        self._watch.leave(self._wanted)
        if not self._watch.wanted:
            del self._shared.watches[self._key]
            self._shared.kernel.leave(self._key[0], self._watch.hint)
        if not self._shared.watches:
            _loops.pop(self._loop, None)


@contextmanager
def watching(
    folder: str, name: str, poll_seconds: float, *, is_glob: bool = False
) -> Iterator[Seat]:
    """Take a seat and leave it; see ``Seat``.

    Args:
        name: What one waits for; with ``is_glob`` all names that fit it.
    """
    seat = Seat(folder, Wanted(name, is_glob), poll_seconds)
    try:
        yield seat
    finally:
        seat.leave()


def matches(name: str, glob: str) -> bool:
    """Return whether a name fits a glob; as in a shell, a hidden one only if it begins so."""
    if name.startswith(".") and not glob.startswith("."):
        return False
    return _compiled(glob).match(name) is not None


@functools.lru_cache(1_000)
def _compiled(glob: str) -> re.Pattern[str]:
    return re.compile(translate(glob))


def _wake(napping: asyncio.Future[None]) -> None:
    if not napping.done():
        napping.set_result(None)


# ── in a thread ─────────────────────────────────────────────────────────────────────────


def _look(at: float, folder: str, wanted: Collection[Sought], kernel: Kernel) -> Look:
    # Before looking, so that nothing can happen unnoticed in between.
    kernel.follow(folder)
    names: set[str] = set()
    many: list[Sought] = []
    missing: dict[Leaving, set[str]] = {}
    for sought in wanted:
        if isinstance(sought, Leaving):
            missing[sought] = set(sought.sought)
        elif isinstance(sought, Crowd) and sought.few is not None:
            names.update(sought.few)
        elif isinstance(sought, Wanted) and sought.is_one:
            names.add(sought.text)
        else:
            many.append(sought)
    if len(names) + sum(map(len, missing.values())) <= _SINGLY and not many:
        paths = {name: os.path.join(folder, name) for name in names.union(*missing.values())}  # noqa: PTH118
        found = {name: _found(path) for name, path in paths.items()}
        for left in missing.values():
            left -= {name for name in left if found[name] is not None}
    else:
        found = _listed(folder, names, many, list(missing.values()))
    return Look(at, {name: file for name, file in found.items() if file is not None}, missing)


def _listed(
    folder: str, names: Collection[str], many: list[Sought], missing: list[set[str]]
) -> dict[str, Found | None]:
    """Return what is wanted and there, and strike what is there off what may be missing."""
    found: dict[str, Found | None] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if name in names or any(sought.is_fit_by(name) for sought in many):
                    found[name] = _found(entry.path)
                for left in missing:
                    # There may be nothing behind a link; of others no more than the name is asked.
                    if name in left and not (entry.is_symlink() and _found(entry.path) is None):
                        left.remove(name)
    except FileNotFoundError:
        return {}
    return found


def _found(path: str) -> Found | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - Path would cost as much as the call
    except FileNotFoundError:
        return None
    is_file = stat.S_ISREG(status.st_mode)
    return Found(status.st_size, status.st_mtime_ns, status.st_ctime_ns, is_file)
