"""Timers, each of which reports an input to the inbox of the engine when it is due.

One asyncio task sleeps until the next timer of two heaps is due. Timers of schedules follow the
wall clock. A retry, the next poke of a sensor, a deadline and the quiet time after an event are
durations: their due times are in steady time. Their timers are armed only once, by the monotonic
clock, and are not affected when the wall clock is set.

There may be a million such timers, so each is one integer that contains its due time by the
monotonic clock, its timestamp, and the number of its task, run or trigger.

The heaps are checked at most every ``TICK_SECONDS``, because waking up for each of many close due
times would spin. They are checked at least every ``CHECK_SECONDS``, so that a step of the wall
clock is noticed. A step causes a turn of the engine.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import anyio
from anyio.abc import TaskStatus

from aioflow.clock import SteadyClock
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.inputs import ClockStepped, Input, TimerFired

__all__ = ("CHECK_SECONDS", "TICK_SECONDS", "Timers")

TICK_SECONDS = 0.002
CHECK_SECONDS = 30.0

_WORD = (1 << 64) - 1
_OF_RUN, _OF_TRIGGER = 1 << 63, 1 << 62
"""Bits that mark the number of a run or of a DAG trigger. Without them it is a task number."""


class Timers:
    """Timers that report each ``TimerFired`` to the inbox when it is due.

    A timer is never disarmed: the receiver checks whether it is still relevant.

    Attributes:
        check_seconds: The longest sleep; infinite if the wall clock cannot step.
    """

    def __init__(self, clock: SteadyClock, report: Callable[[Sequence[Input]], None]) -> None:
        self.check_seconds = CHECK_SECONDS
        self._clock = clock
        self._report = report
        self._by_wall: list[tuple[int, int, TimerFired]] = []
        self._by_length: list[int] = []
        self._armed = 0
        self._earlier = anyio.Event()

    def __len__(self) -> int:
        return len(self._by_wall) + len(self._by_length)

    def arm(self, due: TimerFired, *, at: Timestamp | None = None) -> None:
        """Report ``due`` at its timestamp, or at ``at``; immediately if that time has passed."""
        instant = due.at if at is None else at
        if due.dag_id:
            self._armed += 1
            heapq.heappush(self._by_wall, (instant, self._armed, due))
            is_first = self._by_wall[0][1] == self._armed
        else:
            over = self._clock.monotonic_at(instant)
            length = (over << 128) + (due.at << 64) + _owner_of(due)
            heapq.heappush(self._by_length, length)
            is_first = self._by_length[0] == length
        if is_first:
            self._earlier.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Report timers as they become due, until cancelled."""
        task_status.started()
        shift = self._clock.read().shift
        while True:
            self._earlier = anyio.Event()
            at = self._clock.read()
            if at.shift != shift:
                shift = at.shift
                self._report([ClockStepped()])
            due = _pop_due(self._by_wall, at.now) + _pop_due_durations(
                self._by_length, at.monotonic
            )
            if due:
                self._report(due)
            nearest = self.check_seconds
            if self._by_wall:
                nearest = min(nearest, (self._by_wall[0][0] - at.now) / 1e6)
            if self._by_length:
                nearest = min(nearest, ((self._by_length[0] >> 128) - at.monotonic) / 1e6)
            with anyio.move_on_after(max(nearest, TICK_SECONDS)):
                await self._earlier.wait()


def _pop_due(heap: list[tuple[int, int, TimerFired]], now: int) -> list[TimerFired]:
    due = []
    while heap and heap[0][0] <= now:
        due.append(heapq.heappop(heap)[2])
    return due


def _pop_due_durations(heap: list[int], now: int) -> list[TimerFired]:
    due = []
    while heap and heap[0] >> 128 <= now:
        length = heapq.heappop(heap)
        due.append(_timer_of(length >> 64 & _WORD, length & _WORD))
    return due


def _owner_of(due: TimerFired) -> int:
    if due.run_no >= 0:
        return _OF_RUN | due.run_no
    return due.task_no if due.trigger_no < 0 else _OF_TRIGGER | due.trigger_no


def _timer_of(at: Timestamp, whose: int) -> TimerFired:
    if whose & _OF_RUN:
        return TimerFired(at, run_no=whose ^ _OF_RUN)
    return (
        TimerFired(at, trigger_no=whose ^ _OF_TRIGGER)
        if whose & _OF_TRIGGER
        else TimerFired(at, whose)
    )
