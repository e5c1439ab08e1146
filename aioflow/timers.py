"""Instants that somebody waits for: two heaps, one sleeper, a coarse tick.

What people schedule follows the wall clock. A retry, a sensor's next look, a deadline are
lengths of time that are stored as instants only so that they outlive the daemon: they are
armed once, by the monotonic clock, and a wall clock that is set does not move them.

The heaps are looked at no more often than every ``TICK_SECONDS``: sleeping to the exact next
of many close instants would spin. They are looked at every ``LOOK_SECONDS`` at least, so that
a step of the wall clock is noticed.
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
        self._by_wall: list[tuple[int, int, Due]] = []
        self._by_length: list[tuple[int, int, Due]] = []
        self._armed = 0
        self._earlier = anyio.Event()

    def __len__(self) -> int:
        return len(self._by_wall) + len(self._by_length)

    def arm(self, due: Due, *, at: Instant | None = None) -> None:
        """Have ``due`` reported at its instant (or ``at``), at once if that has passed."""
        instant = due.at if at is None else at
        self._armed += 1
        if due.dag_id:
            heap, key = self._by_wall, instant
        else:
            heap = self._by_length
            key = self._clock.monotonic_us() + instant - self._clock.now()
        heapq.heappush(heap, (key, self._armed, due))
        if heap[0][1] == self._armed:
            self._earlier.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Report instants as they come, until cancelled."""
        task_status.started()
        while True:
            self._earlier = anyio.Event()
            wall, monotonic = self._clock.now(), self._clock.monotonic_us()
            due = _take(self._by_wall, wall) + _take(self._by_length, monotonic)
            if due:
                self._report(due)
            nearest = min(_seconds_to(self._by_wall, wall), _seconds_to(self._by_length, monotonic))
            with anyio.move_on_after(max(nearest, TICK_SECONDS)):
                await self._earlier.wait()


def _take(heap: list[tuple[int, int, Due]], now: int) -> list[Due]:
    due = []
    while heap and heap[0][0] <= now:
        due.append(heapq.heappop(heap)[2])
    return due


def _seconds_to(heap: list[tuple[int, int, Due]], now: int) -> float:
    return min((heap[0][0] - now) / 1e6, LOOK_SECONDS) if heap else LOOK_SECONDS
