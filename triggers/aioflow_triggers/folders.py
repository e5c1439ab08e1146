"""Polls folders, once per period for all waits on them.

The result of a poll is authoritative. Where the kernel reports changes, the next poll happens
sooner; elsewhere the change is found at the end of the period. In a simulation the kernel is not
used, see ``simulated``.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from aioflow_triggers.folder import Folder, LoopShare
from aioflow_triggers.inotify import Kernel
from aioflow_triggers.lookers import PollThreads
from aioflow_triggers.looks import (
    Crowd,
    FolderPoll,
    FoundFile,
    Leaving,
    NameOrGlob,
    Sought,
    matches,
)
from aioflow_triggers.simulated import SimulatedFolder, SimulatedPollThreads, pauses_of

__all__ = (
    "Crowd",
    "FolderPoll",
    "FoundFile",
    "Leaving",
    "NameOrGlob",
    "Seat",
    "matches",
    "watching",
)

_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopShare] = (
    weakref.WeakKeyDictionary()
)
_lookers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, PollThreads[FolderPoll]] = (
    weakref.WeakKeyDictionary()
)
"""Outlives the last wait, so that the next one knows of a poll that hangs."""


def _share_of(loop: asyncio.AbstractEventLoop) -> LoopShare:
    """Return the shared state for an event loop on which no folder is polled yet."""
    if pauses_of(loop) is not None:
        return LoopShare(loop, Kernel(loop, is_silent=True), SimulatedPollThreads())
    return LoopShare(loop, Kernel(loop), _lookers.setdefault(loop, PollThreads()))


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

    # Returns coroutines of the folder instead of wrapping them: there are tens of thousands.

    def poll(self) -> Coroutine[Any, Any, FolderPoll]:
        """See ``Folder.poll``."""
        return self._watch.poll(self._wanted)

    def next_poll(self, within: float = math.inf) -> Coroutine[Any, Any, FolderPoll]:
        """See ``Folder.next_poll``."""
        return self._watch.next_poll(self._wanted, within)

    def next_check(self) -> datetime:
        """Return when the next period begins, and with it the next poll."""
        return datetime.now(UTC) + timedelta(seconds=self._watch.seconds_left())

    def last_check(self) -> datetime | None:
        """Return when the last poll began; ``None`` before the first."""
        since = self._watch.seconds_since()
        return None if since is None else datetime.now(UTC) - timedelta(seconds=since)

    def seconds_left(self) -> float:
        """Return the seconds until the next period."""
        return self._watch.seconds_left()

    def stir(self) -> None:
        """Poll soon for what is wanted by then."""
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
    """Participate in the polls of a folder for the length of a ``with``; see ``Seat``.

    Args:
        name: The name to wait for; with ``is_glob``, all names that match it.
    """
    seat = Seat(folder, NameOrGlob(name, is_glob), poll_seconds)
    try:
        yield seat
    finally:
        seat.leave()
