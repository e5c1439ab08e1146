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
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, NamedTuple

from aioflow_triggers.inotify import Kernel

__all__ = ("Found", "Look", "Seat", "matches", "watching")

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
    """

    at: float
    files: Mapping[str, Found]


class Wanted(NamedTuple):
    """What somebody waits for in a folder: a name, or all names that fit a glob."""

    text: str
    is_glob: bool

    def is_fit_by(self, name: str) -> bool:
        """Return whether a file of this name is meant."""
        return matches(name, self.text) if self.is_glob else name == self.text


class Watch:
    """One folder, looked at once per period however many wait for something in it.

    The periods are those of the loop's clock, so that everyone wakes for the same look.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, kernel: Kernel, folder: str, poll_seconds: float
    ) -> None:
        self.wanted: Counter[Wanted] = Counter()
        self._globs: set[Wanted] = set()
        self._loop = loop
        self._kernel = kernel
        self._folder = folder
        self._poll_seconds = poll_seconds
        self._began = -math.inf
        self._gap = _SHORTEST_GAP_SECONDS
        self._looked_for: frozenset[Wanted] = frozenset()
        self._hinted_at: dict[Wanted, float] = {}
        self._napping: dict[Wanted, list[asyncio.Future[None]]] = {}
        self._look: asyncio.Future[Look] | None = None

    def join(self, wanted: Wanted) -> None:
        """One more waits for this."""
        self.wanted[wanted] += 1
        if wanted.is_glob:
            self._globs.add(wanted)

    def leave(self, wanted: Wanted) -> None:
        """One less does."""
        self.wanted[wanted] -= 1
        if not self.wanted[wanted]:
            del self.wanted[wanted]
            self._globs.discard(wanted)
            self._hinted_at.pop(wanted, None)

    async def look(self, wanted: Wanted) -> Look:
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

    async def next_look(self, wanted: Wanted, within: float) -> Look:
        """Return a newer look: of the next period, or sooner.

        Args:
            wanted: What the caller waits for; a change of it leads to a look at once.
            within: Seconds after which a look is wanted in any case.
        """
        before, now = self._began, self._loop.time()
        to_boundary = self._poll_seconds - now % self._poll_seconds
        if self._hinted_at.get(wanted, -math.inf) < before:
            await self._nap(wanted, min(to_boundary, max(0.0, within)))
        # What changes all the time is not looked at all the time.
        while self._began == before and (gap := before + self._gap - self._loop.time()) > 0:
            await asyncio.sleep(gap)
        if self._began == before:
            self._take()
        return await self._shared()

    def hint(self, name: str | None) -> None:
        """Have those look who wait for ``name``, or everybody if it is ``None``."""
        now = self._loop.time()
        for wanted in self._concerned(name):
            self._hinted_at[wanted] = now
            for napping in self._napping.get(wanted, ()):
                if not napping.done():
                    napping.set_result(None)

    def _concerned(self, name: str | None) -> list[Wanted]:
        if name is None:
            return list(self.wanted)
        plain = Wanted(name, is_glob=False)
        found = [plain] if plain in self.wanted else []
        return found + [glob for glob in self._globs if glob.is_fit_by(name)]

    async def _nap(self, wanted: Wanted, seconds: float) -> None:
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
        self.watches: dict[tuple[str, float], Watch] = {}


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()


class Seat:
    """One who takes part in the looks at a folder, until ``leave``.

    All who share the folder and the period share the looks.

    Args:
        name: What one waits for in the folder; with ``is_glob`` all names that fit it.
    """

    __slots__ = ("_key", "_loop", "_shared", "_wanted", "_watch")

    def __init__(
        self, folder: str, name: str, poll_seconds: float, *, is_glob: bool = False
    ) -> None:
        loop = asyncio.get_running_loop()
        shared = _loops.get(loop)
        if shared is None:
            shared = _loops[loop] = _Loop(loop)
        self._loop, self._shared = loop, shared
        self._key = (folder, poll_seconds)
        watch = shared.watches.get(self._key)
        if watch is None:
            watch = shared.watches[self._key] = Watch(loop, shared.kernel, folder, poll_seconds)
            shared.kernel.listen(folder, watch.hint)
        self._watch = watch
        self._wanted = Wanted(name, is_glob)
        watch.join(self._wanted)

    # No coroutine of its own in between: there are tens of thousands of these.

    def look(self) -> Coroutine[Any, Any, Look]:
        """See ``Watch``."""
        return self._watch.look(self._wanted)

    def next_look(self, within: float = math.inf) -> Coroutine[Any, Any, Look]:
        """See ``Watch``."""
        return self._watch.next_look(self._wanted, within)

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
    """Take a seat and leave it; see ``Seat``."""
    seat = Seat(folder, name, poll_seconds, is_glob=is_glob)
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


def _look(at: float, folder: str, wanted: Collection[Wanted], kernel: Kernel) -> Look:
    # Before looking, so that nothing can happen unnoticed in between.
    kernel.follow(folder)
    names = {name.text for name in wanted if not name.is_glob}
    globs = [glob for glob in wanted if glob.is_glob]
    if len(names) <= _SINGLY and not globs:
        found = {name: _found(os.path.join(folder, name)) for name in names}  # noqa: PTH118
    else:
        found = _listed(folder, names, globs)
    return Look(at, {name: file for name, file in found.items() if file is not None})


def _listed(folder: str, names: Collection[str], globs: list[Wanted]) -> dict[str, Found | None]:
    try:
        with os.scandir(folder) as entries:
            return {
                entry.name: _found(entry.path)
                for entry in entries
                if entry.name in names or any(glob.is_fit_by(entry.name) for glob in globs)
            }
    except FileNotFoundError:
        return {}


def _found(path: str) -> Found | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - Path would cost as much as the call
    except FileNotFoundError:
        return None
    is_file = stat.S_ISREG(status.st_mode)
    return Found(status.st_size, status.st_mtime_ns, status.st_ctime_ns, is_file)
