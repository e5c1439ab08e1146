"""Instants that somebody waits for: two heaps, one sleeper, a coarse tick.

What people schedule follows the wall clock. A retry, a sensor's next look, a deadline, the quiet
after an event are lengths of time: their instants are those of steady time. They are armed once, by
the monotonic clock, and a wall clock that is set does not move them.

There may be a million lengths, so each is one number: when it is over by the monotonic clock,
its instant, its task, run or trigger.

The heaps are looked at no more often than every ``TICK_SECONDS``: sleeping to the exact next
of many close instants would spin. They are looked at every ``LOOK_SECONDS`` at least, so that
a step of the wall clock is noticed; then the engine has a turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import anyio
from anyio.abc import TaskStatus

from aioflow.clock import SteadyClock
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.inputs import ClockStepped, Input, TimerFired

__all__ = ("LOOK_SECONDS", "TICK_SECONDS", "Timers")

TICK_SECONDS = 0.002
LOOK_SECONDS = 30.0

_WORD = (1 << 64) - 1
_OF_RUN, _OF_TRIGGER = 1 << 63, 1 << 62
"""Mark the number of a run, or of the trigger of a DAG, among those of tasks."""


class Timers:
    """Puts each ``TimerFired`` into the inbox when its instant has come.

    An instant is never disarmed: who receives it looks whether it still matters.

    Attributes:
        look_seconds: How long it sleeps at most; infinite where the wall clock cannot step.
    """

    def __init__(self, clock: SteadyClock, report: Callable[[Sequence[Input]], None]) -> None:
        self.look_seconds = LOOK_SECONDS
        self._clock = clock
        self._report = report
        self._by_wall: list[tuple[int, int, TimerFired]] = []
        self._by_length: list[int] = []
        self._armed = 0
        self._earlier = anyio.Event()

    def __len__(self) -> int:
        return len(self._by_wall) + len(self._by_length)

    def arm(self, due: TimerFired, *, at: Timestamp | None = None) -> None:
        """Have ``due`` reported at its instant (or ``at``), at once if that has passed."""
        instant = due.at if at is None else at
        if due.dag_id:
            self._armed += 1
            heapq.heappush(self._by_wall, (instant, self._armed, due))
            is_first = self._by_wall[0][1] == self._armed
        else:
            over = self._clock.monotonic_at(instant)
            length = (over << 128) + (due.at << 64) + _whose(due)
            heapq.heappush(self._by_length, length)
            is_first = self._by_length[0] == length
        if is_first:
            self._earlier.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Report instants as they come, until cancelled."""
        task_status.started()
        shift = self._clock.look().shift
        while True:
            self._earlier = anyio.Event()
            at = self._clock.look()
            if at.shift != shift:
                shift = at.shift
                self._report([ClockStepped()])
            due = _take(self._by_wall, at.now) + _take_lengths(self._by_length, at.monotonic)
            if due:
                self._report(due)
            nearest = self.look_seconds
            if self._by_wall:
                nearest = min(nearest, (self._by_wall[0][0] - at.now) / 1e6)
            if self._by_length:
                nearest = min(nearest, ((self._by_length[0] >> 128) - at.monotonic) / 1e6)
            with anyio.move_on_after(max(nearest, TICK_SECONDS)):
                await self._earlier.wait()


def _take(heap: list[tuple[int, int, TimerFired]], now: int) -> list[TimerFired]:
    due = []
    while heap and heap[0][0] <= now:
        due.append(heapq.heappop(heap)[2])
    return due


def _take_lengths(heap: list[int], now: int) -> list[TimerFired]:
    due = []
    while heap and heap[0] >> 128 <= now:
        length = heapq.heappop(heap)
        due.append(_due(length >> 64 & _WORD, length & _WORD))
    return due


def _whose(due: TimerFired) -> int:
    if due.run_no >= 0:
        return _OF_RUN | due.run_no
    return due.task_no if due.trigger_no < 0 else _OF_TRIGGER | due.trigger_no


def _due(at: Timestamp, whose: int) -> TimerFired:
    if whose & _OF_RUN:
        return TimerFired(at, run_no=whose ^ _OF_RUN)
    return (
        TimerFired(at, trigger_no=whose ^ _OF_TRIGGER)
        if whose & _OF_TRIGGER
        else TimerFired(at, whose)
    )
