"""Folders that are polled once per period for all waits on them.

The result of a poll is authoritative. If the kernel reports a change, the next poll happens sooner.
Otherwise the change is found at the end of the period.

In a simulation time jumps, nothing changes during a jump, and the kernel is not used. The event
loop of a simulation, ``aioflow.testing.fake_time``, calls a list of functions before each jump.
These poll the folders. So a change is found at the time it was made, just as if the kernel had
reported it, and a wait of three days does not need one poll per period.
"""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from aioflow_triggers.folder_poll import (
    Crowd,
    FolderPoll,
    FoundFile,
    Leaving,
    NameOrGlob,
    PollThreads,
    Sought,
    is_shortage,
    matches,
    poll_folder,
)
from aioflow_triggers.inotify import Kernel
from aioflow_triggers.waking import Waking

__all__ = (
    "Crowd",
    "Folder",
    "FolderPoll",
    "FoundFile",
    "Leaving",
    "LoopShare",
    "NameOrGlob",
    "Seat",
    "SimulatedFolder",
    "SimulatedPollThreads",
    "matches",
    "pauses_of",
    "watching",
)

_SHORTEST_GAP_SECONDS = 0.05
"""Minimum time between two polls of a folder that changes often; longer if its polls are slow."""
_GAP_PER_POLL = 4.0

_SHORTAGE_SECONDS = 5.0
"""Delay after a poll that failed because the machine was short of a resource."""

_logger = logging.getLogger("aioflow.trigger.folders")


class _Waiter:
    """A wait for a poll.

    Attributes:
        due_at: The time at which the wait is due. Only a poll that begins at this time or later
            serves it.
    """

    __slots__ = ("due_at", "poll", "wanted")

    def __init__(self, poll: asyncio.Future[FolderPoll], wanted: Sought, due_at: float) -> None:
        self.poll = poll
        self.wanted = wanted
        self.due_at = due_at


class LoopShare:
    """State shared by the folders of one event loop.

    Attributes:
        watches: The folders, by path and period in seconds.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, kernel: Kernel, lookers: PollThreads[FolderPoll]
    ) -> None:
        self.loop = loop
        self.kernel = kernel
        self.waking = Waking(loop)
        self.lookers = lookers
        self.watches: dict[tuple[str, float], Folder] = {}


class Folder:
    """One folder, polled once per period however many waits there are on it.

    Periods are aligned to the clock of the event loop, so that all waits share each poll. Only one
    poll runs at a time, so a file system that hangs blocks a single thread.
    """

    def __init__(self, shared: LoopShare, folder: str, poll_seconds: float) -> None:
        self.wanted: Counter[Sought] = Counter()
        self._many: set[Sought] = set()
        self._shared = shared
        self._loop = shared.loop
        self._folder = folder
        self._poll_seconds = poll_seconds
        self._began = -math.inf
        self._gap = _SHORTEST_GAP_SECONDS
        self._polled_for: frozenset[Sought] = frozenset()
        self._poll: FolderPoll | None = None
        self._under_way: asyncio.Future[FolderPoll] | None = None
        self._is_short = False
        self._hinted_at: dict[Sought, float] = {}
        self._later: dict[Sought, dict[_Waiter, None]] = {}
        self._next_at = math.inf  # when the first of these waits becomes due
        self._due: dict[_Waiter, None] = {}  # served by the next poll
        self._sharing: dict[_Waiter, None] = {}  # served by the poll in flight
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def join(self, wanted: Sought) -> None:
        """Register one more wait for ``wanted``."""
        self.wanted[wanted] += 1
        if not wanted.is_one:
            self._many.add(wanted)

    def leave(self, wanted: Sought) -> None:
        """Remove one wait for ``wanted``."""
        self.wanted[wanted] -= 1
        if not self.wanted[wanted]:
            del self.wanted[wanted]
            self._many.discard(wanted)
            self._hinted_at.pop(wanted, None)
        if self.wanted:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._under_way is not None:
            self._under_way.cancel()

    async def poll(self, wanted: Sought) -> FolderPoll:
        """Return this period's poll for ``wanted``. The period's first wait triggers the poll."""
        # Waits that arrive together share a poll, even if each waits for another name.
        if wanted in self._polled_for and self._period(self._began) == self._period():
            if self._poll is not None:
                return self._poll
            return await self._handed(wanted, self._began, self._sharing)
        return await self._handed(wanted, self._loop.time(), self._due)

    def _period(self, at: float | None = None) -> float:
        return (self._loop.time() if at is None else at) // self._poll_seconds

    async def next_poll(self, wanted: Sought, within: float) -> FolderPoll:
        """Wait for the next poll, at the latest that of the next period, and return its result.

        Args:
            wanted: What the caller waits for. A change of it triggers an immediate poll.
            within: Maximum seconds until the poll.
        """
        if self._hinted_at.get(wanted, -math.inf) >= self._began:
            return await self._handed(wanted, self._loop.time(), self._due)
        due_at = self._loop.time() + self._longest(max(0.0, within))
        return await self._handed(wanted, due_at, self._later.setdefault(wanted, {}))

    def _longest(self, within: float) -> float:
        """Return the seconds until the next poll for a wait that allows at most ``within``."""
        return min(self.seconds_left(), within)

    def seconds_left(self) -> float:
        """Return the seconds until the end of this period."""
        return self._poll_seconds - self._loop.time() % self._poll_seconds

    def seconds_since(self) -> float | None:
        """Return the seconds since the last poll began; ``None`` before the first."""
        return None if self._began == -math.inf else self._loop.time() - self._began

    def hint(self, name: str | None) -> None:
        """Schedule an early poll for the waits for ``name``, or for all waits if it is ``None``."""
        for wanted in self._concerned(name):
            self.stir(wanted)

    def stir(self, wanted: Sought) -> None:
        """Schedule an early poll for the waits for ``wanted``."""
        self._hinted_at[wanted] = self._loop.time()
        self._due.update(self._later.pop(wanted, {}))
        self._schedule()

    def _concerned(self, name: str | None) -> list[Sought]:
        if name is None:
            return list(self.wanted)
        plain = NameOrGlob(name, is_glob=False)
        found: list[Sought] = [plain] if plain in self.wanted else []
        return found + [many for many in self._many if many.is_fit_by(name)]

    # ── which poll serves which wait ────────────────────────────────────────────────────────

    async def _handed(
        self, wanted: Sought, due_at: float, among: dict[_Waiter, None]
    ) -> FolderPoll:
        """Add a wait to ``among``, and return the result of the poll that is due at ``due_at``."""
        waiter = _Waiter(self._loop.create_future(), wanted, due_at)
        among[waiter] = None
        if among is not self._due and among is not self._sharing:
            self._next_at = min(self._next_at, due_at)
        self._schedule()
        try:
            return await waiter.poll
        finally:
            self._forget(waiter)

    def _forget(self, waiter: _Waiter) -> None:
        self._due.pop(waiter, None)
        self._sharing.pop(waiter, None)
        later = self._later.get(waiter.wanted)
        if later is not None:
            later.pop(waiter, None)
            if not later:
                del self._later[waiter.wanted]

    def _schedule(self) -> None:
        """Schedule a poll for the time at which the next wait is due, unless one is in flight."""
        if self._under_way is not None or not (self._due or self._later):
            return
        wanted_at = self._loop.time() if self._due else self._next_at
        # Limits the rate of polls of a folder that changes constantly.
        at = max(wanted_at, self._began + self._gap)
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._next_at <= self._loop.time():
            self._pick_due()
        if self._due and self._began + self._gap <= self._loop.time():
            self._take()
        else:
            self._schedule()

    def _pick_due(self) -> None:
        """Assign the due waits to the next poll, and compute when the next remaining one is due."""
        now, self._next_at = self._loop.time(), math.inf
        for wanted, waiters in list(self._later.items()):
            for waiter in list(waiters):
                if waiter.due_at <= now:
                    del waiters[waiter]
                    self._due[waiter] = None
                else:
                    self._next_at = min(self._next_at, waiter.due_at)
            if not waiters:
                del self._later[wanted]

    # ── one poll ────────────────────────────────────────────────────────────────────────────

    def _take(self) -> None:
        began = self._began = self._loop.time()
        self._poll = None
        self._sharing, self._due = self._due, {}
        self._polled_for = frozenset(self.wanted)
        for many in self._many:
            if not isinstance(many, NameOrGlob):
                many.begin(began)
        kernel, wanted = self._shared.kernel, self._polled_for
        self._under_way = self._shared.lookers.poll(
            self._folder, lambda: _poll_now(began, self._folder, wanted, kernel)
        )
        self._under_way.add_done_callback(self._polled)

    def _polled(self, polled: asyncio.Future[FolderPoll]) -> None:
        took = self._loop.time() - self._began
        self._gap = max(_SHORTEST_GAP_SECONDS, _GAP_PER_POLL * took)
        self._under_way = None
        sharing, self._sharing = self._sharing, {}
        problem = asyncio.CancelledError() if polled.cancelled() else polled.exception()
        if problem is None:
            self._is_short, self._poll = False, polled.result()
        else:
            self._polled_for = frozenset()
        if problem is not None and is_shortage(problem):
            self._note_shortage(problem)
            self._due = sharing | self._due
        else:
            self._shared.waking.wake([waiter.poll for waiter in sharing], self._poll, problem)
        self._schedule()

    def _note_shortage(self, problem: BaseException) -> None:
        """Delay the next poll, because the shortage is not caused by any name or pattern."""
        self._gap = max(self._gap, min(_SHORTAGE_SECONDS, self._poll_seconds))
        if not self._is_short:
            self._is_short = True
            _logger.warning("%s cannot be polled now: %s", self._folder, problem)


def _poll_now(at: float, folder: str, wanted: Collection[Sought], kernel: Kernel) -> FolderPoll:
    # Must come before the poll, so that no change in between is missed.
    kernel.follow(folder)
    return poll_folder(at, folder, wanted)


Pauses: TypeAlias = dict[Callable[[], bool], None]
"""Functions called in order before time passes. Each returns whether it caused any activity."""


def pauses_of(loop: asyncio.AbstractEventLoop) -> Pauses | None:
    """Return the functions that a loop calls before time passes; ``None`` if its time is real."""
    found: Pauses | None = getattr(loop, "pauses", None)
    return found


class SimulatedPollThreads(PollThreads[FolderPoll]):
    """Runs polls synchronously. With threads, the order of events would depend on the machine."""

    def poll(self, folder: str, work: Callable[[], FolderPoll]) -> asyncio.Future[FolderPoll]:
        """See ``PollThreads``."""
        done: asyncio.Future[FolderPoll] = asyncio.get_running_loop().create_future()
        try:
            done.set_result(work())
        except OSError as exc:
            done.set_exception(exc)
        return done


class SimulatedFolder(Folder):
    """A folder that is polled whenever time is about to pass.

    A wait receives a result only if the result differs from the last one that all waits have seen,
    or if the wait asked for it with ``within``.
    """

    def __init__(self, shared: LoopShare, folder: str, poll_seconds: float, pauses: Pauses) -> None:
        super().__init__(shared, folder, poll_seconds)
        self._pauses = pauses
        self._served_all: FolderPoll | None = None

    def join(self, wanted: Any) -> None:
        """See ``Folder``."""
        super().join(wanted)
        self._pauses[self._look_before_time_passes] = None

    def leave(self, wanted: Any) -> None:
        """See ``Folder``."""
        super().leave(wanted)
        if not self.wanted:
            self._pauses.pop(self._look_before_time_passes, None)

    def seconds_since(self) -> float | None:
        """Return the seconds since the period began. A poll then would have had the same result."""
        since = super().seconds_since()
        return None if since is None else min(since, self._loop.time() % self._poll_seconds)

    def _longest(self, within: float) -> float:
        return within

    def _schedule(self) -> None:
        if self._due or self._next_at < math.inf:
            super()._schedule()

    def _polled(self, polled: asyncio.Future[FolderPoll]) -> None:
        is_seen_by_all = len(self._sharing) == self.wanted.total()
        super()._polled(polled)
        if is_seen_by_all:
            self._served_all = self._poll
        elif not _is_same(self._poll, self._served_all):
            self._served_all = None  # waits that did not share this poll have not seen its result

    def _look_before_time_passes(self) -> bool:
        """Start a poll for all waits if the folder has changed; return whether it has."""
        if self._under_way is not None or self._due or not self._later:
            return False
        if _is_same(self._find(), self._served_all):
            return False
        for waiters in self._later.values():
            self._due.update(waiters)
        self._later.clear()
        self._next_at = math.inf
        self._schedule()
        return True

    def _find(self) -> FolderPoll | None:
        """Poll only to compare the result; return ``None`` if the folder cannot be read."""
        now = self._loop.time()
        for many in self._many:
            if not isinstance(many, NameOrGlob):
                many.begin(now)
        try:
            return poll_folder(now, self._folder, self.wanted)
        except OSError:
            return None


def _is_same(poll: FolderPoll | None, other: FolderPoll | None) -> bool:
    """Return whether two polls have the same result."""
    if poll is None or other is None:
        return False
    return (
        poll.files == other.files
        and poll.missing == other.missing
        and poll.errors.keys() == other.errors.keys()
        and (poll.unlisted is None) == (other.unlisted is None)
    )


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopShare] = (
    weakref.WeakKeyDictionary()
)
_poll_threads: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, PollThreads[FolderPoll]] = (
    weakref.WeakKeyDictionary()
)
"""Poll threads by event loop. They outlive the last wait, because a later wait must know of a poll
that still hangs.
"""


def _share_of(loop: asyncio.AbstractEventLoop) -> LoopShare:
    """Return the shared state for an event loop on which no folder is polled yet."""
    if pauses_of(loop) is not None:
        return LoopShare(loop, Kernel(loop, is_silent=True), SimulatedPollThreads())
    return LoopShare(loop, Kernel(loop), _poll_threads.setdefault(loop, PollThreads()))


class Seat:
    """A participant in the polls of a folder, until ``leave``.

    All participants with the same folder and period share the polls.

    Args:
        wanted: The names to wait for in the folder.
    """

    __slots__ = ("_key", "_loop", "_shared", "_wanted", "_watch")

    def __init__(self, folder: str, wanted: Sought, poll_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        shared = _loops.get(loop)
        if shared is None:
            shared = _loops[loop] = _share_of(loop)
        self._loop, self._shared = loop, shared
        self._key = (folder, poll_seconds)
        watch = shared.watches.get(self._key)
        if watch is None:
            pauses = pauses_of(loop)
            if pauses is None:
                watch = Folder(shared, folder, poll_seconds)
            else:
                watch = SimulatedFolder(shared, folder, poll_seconds, pauses)
            shared.watches[self._key] = watch
            shared.kernel.listen(folder, watch.hint)
        self._watch = watch
        self._wanted = wanted
        watch.join(wanted)

    # Returns the folder's coroutines instead of wrapping them, because there are tens of thousands.

    def poll(self) -> Coroutine[Any, Any, FolderPoll]:
        """See ``Folder.poll``."""
        return self._watch.poll(self._wanted)

    def next_poll(self, within: float = math.inf) -> Coroutine[Any, Any, FolderPoll]:
        """See ``Folder.next_poll``."""
        return self._watch.next_poll(self._wanted, within)

    def next_check(self) -> datetime:
        """Return the time at which the next period begins, and thus the next poll."""
        return datetime.now(UTC) + timedelta(seconds=self._watch.seconds_left())

    def last_check(self) -> datetime | None:
        """Return the time at which the last poll began; ``None`` before the first."""
        since = self._watch.seconds_since()
        return None if since is None else datetime.now(UTC) - timedelta(seconds=since)

    def seconds_left(self) -> float:
        """Return the seconds until the next period."""
        return self._watch.seconds_left()

    def stir(self) -> None:
        """Schedule an early poll for the names that are wanted by then."""
        self._watch.stir(self._wanted)

    def leave(self) -> None:
        """Stop participating. Must be called once."""
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
    """Participate in the polls of a folder within a ``with``; see ``Seat``.

    Args:
        name: The name to wait for; with ``is_glob``, all names that match it.
    """
    seat = Seat(folder, NameOrGlob(name, is_glob), poll_seconds)
    try:
        yield seat
    finally:
        seat.leave()
