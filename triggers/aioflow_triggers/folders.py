"""Looks at folders, once per period for everyone who waits for something in them.

What a look finds is the truth. Where the kernel tells of changes, the next look comes sooner;
where it does not, the same is found at the end of the period. In a simulation the kernel is not
asked, see ``simulated``.
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
from aioflow_triggers.lookers import Lookers
from aioflow_triggers.looks import Crowd, Found, Leaving, Look, Sought, Wanted, matches
from aioflow_triggers.simulated import SimulatedFolder, SimulatedLookers, pauses_of

__all__ = ("Crowd", "Found", "Leaving", "Look", "Seat", "Wanted", "matches", "watching")

_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopShare] = (
    weakref.WeakKeyDictionary()
)
_lookers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Lookers[Look]] = (
    weakref.WeakKeyDictionary()
)
"""Kept after the last waiter has left: a look that hangs must be known to the next one."""


def _share_of(loop: asyncio.AbstractEventLoop) -> LoopShare:
    """Return what is shared on a loop on which no folder is looked at yet."""
    if pauses_of(loop) is not None:
        return LoopShare(loop, Kernel(loop, is_silent=True), SimulatedLookers())
    return LoopShare(loop, Kernel(loop), _lookers.setdefault(loop, Lookers()))


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

    def last_check(self) -> datetime | None:
        """Return when the last look began; ``None`` before the first."""
        since = self._watch.seconds_since()
        return None if since is None else datetime.now(UTC) - timedelta(seconds=since)

    def seconds_left(self) -> float:
        """Return how long it is until the next period."""
        return self._watch.seconds_left()

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
