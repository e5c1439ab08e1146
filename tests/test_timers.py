"""Timers fire once, in order; schedules follow the wall clock, durations do not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from aioflow.clock import SteadyClock
from aioflow.engine.timers import Timers
from aioflow.protocol.inputs import ClockStepped, Input, TimerFired

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

SECOND = 1_000_000


class Clock:
    """A monotonic clock that follows the loop's time, and a wall clock that can be set."""

    def __init__(self) -> None:
        self.offset = 1_700_000_000 * SECOND

    def now(self) -> int:
        return self.monotonic_us() + self.offset

    def monotonic_us(self) -> int:
        return round(anyio.current_time() * 1e6)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class Heard:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.timers = Timers(SteadyClock(clock), self.report)
        self.came: list[tuple[int, TimerFired]] = []
        self.steps = 0
        self.something = anyio.Event()

    def report(self, inputs: Sequence[Input]) -> None:
        for entry in inputs:
            if isinstance(entry, ClockStepped):
                self.steps += 1
                continue
            assert isinstance(entry, TimerFired)
            self.came.append((self.clock.monotonic_us(), entry))
        self.something.set()

    async def wait(self, count: int) -> None:
        while len(self.came) < count:
            self.something = anyio.Event()
            await self.something.wait()


@asynccontextmanager
async def running() -> AsyncIterator[Heard]:
    heard = Heard(Clock())
    async with anyio.create_task_group() as group:
        await group.start(heard.timers.run)
        yield heard
        group.cancel_scope.cancel()


def within(heard: Heard, seconds: float, task_no: int = 1) -> TimerFired:
    return TimerFired(heard.clock.now() + round(seconds * SECOND), task_no)


async def test_instants_come_in_order_and_not_early():
    async with running() as heard:
        began = heard.clock.monotonic_us()
        for seconds in (5, 1, 3):
            heard.timers.arm(within(heard, seconds, seconds))

        await heard.wait(3)

        assert [due.task_no for _, due in heard.came] == [1, 3, 5]
        late = [at - began - due.task_no * SECOND for at, due in heard.came]
        assert all(0 <= us <= 10_000 for us in late), late


async def test_one_that_has_passed_comes_at_once():
    async with running() as heard:
        heard.timers.arm(within(heard, -3600))

        await heard.wait(1)


async def test_an_earlier_one_is_not_held_up_by_a_later_one():
    async with running() as heard:
        heard.timers.arm(within(heard, 100_000))
        await anyio.sleep(10)
        began = heard.clock.monotonic_us()
        heard.timers.arm(within(heard, 2, 2))

        await heard.wait(1)

        assert heard.came[0][0] - began <= 2.01 * SECOND


@pytest.mark.parametrize("step", [-7200, 21_600])
@pytest.mark.parametrize("whose", [{"task_no": 7}, {"run_no": 7}, {"trigger_no": 7}], ids=str)
async def test_a_length_of_time_is_not_moved_by_a_clock_that_is_set(whose, step):
    async with running() as heard:
        began = heard.clock.monotonic_us()
        due = TimerFired(heard.clock.now() + 60 * SECOND, **whose)
        heard.timers.arm(due)
        heard.clock.offset += step * SECOND

        await heard.wait(1)

        [(at, came)] = heard.came
        assert came == due
        assert abs(at - began - 60 * SECOND) <= 10_000


async def test_a_fire_time_follows_a_wall_clock_that_is_set_forward():
    async with running() as heard:
        began = heard.clock.monotonic_us()
        heard.timers.arm(TimerFired(heard.clock.now() + 3600 * SECOND, dag_id="dag"))
        heard.clock.offset += 3600 * SECOND

        await heard.wait(1)

        assert heard.came[0][0] - began <= 31 * SECOND


async def test_a_fire_time_waits_again_for_a_wall_clock_that_is_set_back():
    async with running() as heard:
        began = heard.clock.monotonic_us()
        heard.timers.arm(TimerFired(heard.clock.now() + 60 * SECOND, dag_id="dag"))
        heard.clock.offset -= 600 * SECOND

        await heard.wait(1)

        assert heard.came[0][0] - began >= 660 * SECOND
