"""An event loop under a seed: any of what is ready may run next, and time jumps to the next timer.

Runs callbacks one at a time through the private lists of CPython's loop, as they are in
Python 3.11; nothing here may wait for a thread or a socket.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from typing import Any

__all__ = ("SeededLoop", "Stalled")

_ANYWHERE = 0.3


class Stalled(Exception):
    """Nothing is ready and no timer is armed: nothing will ever happen again."""


class SeededLoop(asyncio.SelectorEventLoop):
    """See the module."""

    _ready: Any
    _scheduled: list[Any]
    _stopping: bool

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._virtual = 0.0

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual

    def _run_once(self) -> None:
        self._jump()
        while self._scheduled and self._scheduled[0]._when <= self._virtual:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                self._ready.append(handle)
        if not self._ready:
            return
        if len(self._ready) > 1 and self._rng.random() < _ANYWHERE:
            index = self._rng.randrange(len(self._ready))
            handle = self._ready[index]
            del self._ready[index]
        else:
            handle = self._ready.popleft()
        if not handle._cancelled:
            handle._run()

    def _jump(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        if not self._ready and not self._stopping:
            if not self._scheduled:
                raise Stalled
            self._virtual = max(self._virtual, self._scheduled[0]._when)
