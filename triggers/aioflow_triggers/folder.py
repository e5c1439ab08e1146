"""One folder, polled once per period for all waits on it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Collection

from aioflow_triggers.inotify import Kernel
from aioflow_triggers.lookers import PollThreads
from aioflow_triggers.looks import FolderPoll, NameOrGlob, Sought, is_shortage, poll_folder
from aioflow_triggers.waking import Waking

__all__ = ("Folder", "LoopShare")

_SHORTEST_GAP_SECONDS = 0.05
"""Minimum time between two polls of a folder, even if it changes often; more if polls are slow."""
_GAP_PER_LOOK = 4.0

_SHORTAGE_SECONDS = 5.0
"""Delay after a poll that failed because the machine is short of a resource."""

_logger = logging.getLogger("aioflow.trigger.folders")


class _Waiter:
    """A wait for a poll.

    Attributes:
        due_at: The wait is served by a poll that begins at this time or later.
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

    Periods are aligned to the clock of the event loop, so that all waits share each poll. There is
    one poll at a time: a file system that hangs blocks a single thread.
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
        self._next_at = math.inf  # when the first of them becomes due
        self._due: dict[_Waiter, None] = {}  # served by the next poll
        self._sharing: dict[_Waiter, None] = {}  # served by the poll in flight
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def join(self, wanted: Sought) -> None:
        """Register one more wait for this."""
        self.wanted[wanted] += 1
        if not wanted.is_one:
            self._many.add(wanted)

    def leave(self, wanted: Sought) -> None:
        """Remove one wait for this."""
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
        """Return the poll of this period for ``wanted``; the period's first wait triggers it."""
        # Waits that arrive together share a poll, although each is for another name.
        if wanted in self._polled_for and self._period(self._began) == self._period():
            if self._poll is not None:
                return self._poll
            return await self._handed(wanted, self._began, self._sharing)
        return await self._handed(wanted, self._loop.time(), self._due)

    def _period(self, at: float | None = None) -> float:
        return (self._loop.time() if at is None else at) // self._poll_seconds

    async def next_poll(self, wanted: Sought, within: float) -> FolderPoll:
        """Return a newer result: of the next period, or sooner.

        Args:
            wanted: What the caller waits for; a change of it triggers an immediate poll.
            within: Seconds after which a poll is required in any case.
        """
        if self._hinted_at.get(wanted, -math.inf) >= self._began:
            return await self._handed(wanted, self._loop.time(), self._due)
        due_at = self._loop.time() + self._longest(max(0.0, within))
        return await self._handed(wanted, due_at, self._later.setdefault(wanted, {}))

    def _longest(self, within: float) -> float:
        """Return the seconds until the poll that serves a request for one within this time."""
        return min(self.seconds_left(), within)

    def seconds_left(self) -> float:
        """Return the seconds until the end of this period."""
        return self._poll_seconds - self._loop.time() % self._poll_seconds

    def seconds_since(self) -> float | None:
        """Return the seconds since the last poll began; ``None`` before the first."""
        return None if self._began == -math.inf else self._loop.time() - self._began

    def hint(self, name: str | None) -> None:
        """Poll soon for the waits for ``name``, or for all waits if it is ``None``."""
        for wanted in self._concerned(name):
            self.stir(wanted)

    def stir(self, wanted: Sought) -> None:
        """Poll soon for the waits for this."""
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
        """Wait, as part of ``among``, for the poll that is due then."""
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
        """Schedule a poll for when the next one is due, unless one is in flight."""
        if self._under_way is not None or not (self._due or self._later):
            return
        wanted_at = self._loop.time() if self._due else self._next_at
        # Limits the rate of polls of a folder that changes all the time.
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
        """Move the waits that are due to the next poll; compute when the next of the others is."""
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
        self._under_way.add_done_callback(self._taken)

    def _taken(self, polled: asyncio.Future[FolderPoll]) -> None:
        took = self._loop.time() - self._began
        self._gap = max(_SHORTEST_GAP_SECONDS, _GAP_PER_LOOK * took)
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
        """Delay the next poll: the shortage is not caused by any name or pattern."""
        self._gap = max(self._gap, min(_SHORTAGE_SECONDS, self._poll_seconds))
        if not self._is_short:
            self._is_short = True
            _logger.warning("%s cannot be looked at now: %s", self._folder, problem)


def _poll_now(at: float, folder: str, wanted: Collection[Sought], kernel: Kernel) -> FolderPoll:
    # Before the poll, so that no change in between is missed.
    kernel.follow(folder)
    return poll_folder(at, folder, wanted)
