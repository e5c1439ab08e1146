"""Instants that people schedule by: one heap, one sleeper, a coarse tick.

The heap is looked at no more often than every ``TICK_SECONDS``: sleeping to the exact next
of many close instants would spin. It is looked at every ``LOOK_SECONDS`` at least, so that a
step of the wall clock is noticed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import anyio
from anyio.abc import TaskStatus

from aioflow.clock import Clock
from aioflow.inputs import Due, Input
from aioflow.model import Instant

__all__ = ("LOOK_SECONDS", "TICK_SECONDS", "Timers")

TICK_SECONDS = 0.002
LOOK_SECONDS = 30.0


class Timers:
    """Puts each ``Due`` into the inbox when its instant has come.

    An instant is never disarmed: who receives it looks whether it still matters.
    """

    def __init__(self, clock: Clock, report: Callable[[Sequence[Input]], None]) -> None:
        self._clock = clock
        self._report = report
        self._heap: list[tuple[Instant, int, Due]] = []
        self._armed = 0
        self._earlier = anyio.Event()

    def __len__(self) -> int:
        return len(self._heap)

    def arm(self, at: Instant, due: Due) -> None:
        """Have ``due`` reported at ``at``, or at once if that has passed."""
        self._armed += 1
        heapq.heappush(self._heap, (at, self._armed, due))
        if self._heap[0][1] == self._armed:
            self._earlier.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Report instants as they come, until cancelled."""
        task_status.started()
        while True:
            self._earlier = anyio.Event()
            now = self._clock.now()
            due = self._take(now)
            if due:
                self._report(due)
            with anyio.move_on_after(self._seconds_to_next(now)):
                await self._earlier.wait()

    def _take(self, now: Instant) -> list[Due]:
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due

    def _seconds_to_next(self, now: Instant) -> float:
        if not self._heap:
            return LOOK_SECONDS
        return min(max((self._heap[0][0] - now) / 1e6, TICK_SECONDS), LOOK_SECONDS)
