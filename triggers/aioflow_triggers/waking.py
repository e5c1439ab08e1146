"""Wakes many waiters for one result in slices, so that the event loop is never blocked for long."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

__all__ = ("SLICE_SECONDS", "Waking")

SLICE_SECONDS = 0.01
"""Target duration of a slice; the size of slices is adapted to the measured time."""

_FIRST = 16
_MOST = 100
"""Maximum waiters per slice, because the next ones may have much more to do than those measured."""


class Waking:
    """Sets futures of one event loop in slices; the loop runs other tasks in between.

    The size of a slice depends on how long the last slice took. There is one instance per loop, so
    that simultaneous results from several sources are delivered slice by slice, too.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[tuple[asyncio.Future[Any], object, BaseException | None]] = deque()
        self._is_waking = False
        self._at_once = _FIRST

    def wake(
        self,
        waiting: Iterable[asyncio.Future[Any]],
        result: object,
        problem: BaseException | None = None,
    ) -> None:
        """Schedule all futures to be set to a result, or to an exception if one is given."""
        self._queue.extend((future, result, problem) for future in waiting)
        if self._queue and not self._is_waking:
            self._is_waking = True
            self._wake_some()

    def _wake_some(self) -> None:
        woken = 0
        while self._queue and woken < self._at_once:
            future, result, problem = self._queue.popleft()
            if future.done():
                continue
            woken += 1
            if problem is None:
                future.set_result(result)
            else:
                future.set_exception(problem)
        # Runs after the woken tasks. Does not use the loop's clock, because that may be simulated.
        self._loop.call_soon(self._measure, time.perf_counter())

    def _measure(self, woken_at: float) -> None:
        if not self._queue:
            self._is_waking, self._at_once = False, _FIRST
            return
        took = max(time.perf_counter() - woken_at, 1e-6)
        faster = int(self._at_once * SLICE_SECONDS / took)
        self._at_once = max(1, min(faster, 2 * self._at_once, _MOST))
        self._wake_some()
