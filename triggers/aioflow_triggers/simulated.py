"""Polls folders in a simulation, where time jumps and nothing changes during a jump.

The event loop of a simulation, ``aioflow.testing.loop``, calls a list of functions before it lets
time pass. They poll the folders, however long the following jump is. So a change is found at the
time it was made, as with notifications of the kernel outside of a simulation, and a wait of three
days does not need one poll per period.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, TypeAlias

from aioflow_triggers.folder import Folder, LoopShare
from aioflow_triggers.lookers import PollThreads
from aioflow_triggers.looks import FolderPoll, NameOrGlob, poll_folder

__all__ = ("SimulatedFolder", "SimulatedPollThreads", "pauses_of")

Pauses: TypeAlias = dict[Callable[[], bool], None]
"""Called in order before time passes; each returns whether it caused any activity."""


def pauses_of(loop: asyncio.AbstractEventLoop) -> Pauses | None:
    """Return the functions a loop calls before it lets time pass; ``None`` if its time is real."""
    found: Pauses | None = getattr(loop, "pauses", None)
    return found


class SimulatedPollThreads(PollThreads[FolderPoll]):
    """Polls synchronously: with threads, the order of events would depend on the machine."""

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

    Waits receive a result only if it differs from the last one that all of them have seen, or if
    they asked for it with ``within``.
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
        """Return the seconds since the period began: a poll then would have found the same."""
        since = super().seconds_since()
        return None if since is None else min(since, self._loop.time() % self._poll_seconds)

    def _longest(self, within: float) -> float:
        return within

    def _schedule(self) -> None:
        if self._due or self._next_at < math.inf:
            super()._schedule()

    def _taken(self, polled: asyncio.Future[FolderPoll]) -> None:
        is_seen_by_all = len(self._sharing) == self.wanted.total()
        super()._taken(polled)
        if is_seen_by_all:
            self._served_all = self._poll
        elif not _is_same(self._poll, self._served_all):
            self._served_all = None  # waits that did not share it have yet to see it

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
        """Poll for the comparison alone; ``None`` if the folder cannot be read."""
        now = self._loop.time()
        for many in self._many:
            if not isinstance(many, NameOrGlob):
                many.begin(now)
        try:
            return poll_folder(now, self._folder, self.wanted)
        except OSError:
            return None


def _is_same(poll: FolderPoll | None, other: FolderPoll | None) -> bool:
    """Return whether two polls found the same."""
    if poll is None or other is None:
        return False
    return (
        poll.files == other.files
        and poll.missing == other.missing
        and poll.errors.keys() == other.errors.keys()
        and (poll.unlisted is None) == (other.unlisted is None)
    )
