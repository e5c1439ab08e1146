"""Steady time is the wall clock without its steps, even across restarts."""

from __future__ import annotations

import pytest

from aioflow.clock import STEP_US, SteadyClock

SECOND = 1_000_000
HOUR = 3_600 * SECOND
BEGIN = 1_700_000_000 * SECOND


class Hands:
    """A wall clock and a monotonic clock that are set by the test."""

    def __init__(self, wall: int = BEGIN, monotonic: int = 5 * SECOND) -> None:
        self.wall, self.monotonic = wall, monotonic
        self.delay = 0

    def now(self) -> int:
        self.wall += self.delay
        self.monotonic += self.delay
        return self.wall

    def monotonic_us(self) -> int:
        return self.monotonic

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")

    def pass_time(self, us: int) -> None:
        self.wall += us
        self.monotonic += us


def test_without_a_step_it_is_the_wall_clock():
    hands = Hands()
    steady = SteadyClock(hands)
    hands.pass_time(HOUR)

    at = steady.read()

    assert (at.now, at.steady, at.shift) == (BEGIN + HOUR, BEGIN + HOUR, 0)


@pytest.mark.parametrize("step", [6 * HOUR, -2 * HOUR, STEP_US, -STEP_US])
def test_a_step_shifts_the_wall_clock_against_it(step):
    hands = Hands()
    steady = SteadyClock(hands)
    hands.pass_time(SECOND)
    hands.wall += step
    hands.pass_time(SECOND)

    at = steady.read()

    assert (at.now, at.steady, at.shift) == (BEGIN + step + 2 * SECOND, BEGIN + 2 * SECOND, step)
    assert steady.monotonic_at(at.steady) == at.monotonic


def test_a_step_back_to_where_it_was_is_forgotten():
    hands = Hands()
    steady = SteadyClock(hands)
    hands.wall += 6 * HOUR
    assert steady.read().shift == 6 * HOUR
    hands.wall -= 6 * HOUR

    assert steady.read().shift == 0


def test_many_small_steps_are_one():
    hands = Hands()
    steady = SteadyClock(hands)
    shifts = []
    for _ in range(10):
        hands.wall += STEP_US // 3
        shifts.append(steady.read().shift)

    assert shifts[0] == 0
    assert 10 * (STEP_US // 3) - shifts[-1] < STEP_US


def test_a_process_that_is_stopped_between_two_readings_of_the_clocks_sees_no_step():
    hands = Hands()
    steady = SteadyClock(hands)
    hands.delay = 3 * SECOND

    assert steady.read().shift == 0


def test_a_restart_continues_with_what_the_wall_clock_advanced_by():
    hands = Hands(BEGIN + 10 * HOUR)
    steady = SteadyClock(hands)
    steady.resume(wall=BEGIN + 6 * HOUR, steady=BEGIN)  # it had been set by six hours

    at = steady.read()

    assert (at.steady, at.shift) == (BEGIN + 4 * HOUR, 6 * HOUR)


def test_over_a_restart_it_never_goes_back():
    hands = Hands(BEGIN - 2 * HOUR)
    steady = SteadyClock(hands)
    steady.resume(wall=BEGIN, steady=BEGIN)
    hands.pass_time(SECOND)

    at = steady.read()

    assert (at.steady, at.shift) == (BEGIN + SECOND, -2 * HOUR)


def test_drift_below_a_step_does_not_outlive_the_process():
    hands = Hands(BEGIN + HOUR)
    steady = SteadyClock(hands)
    steady.resume(wall=BEGIN, steady=BEGIN + STEP_US // 2)

    assert steady.read().steady == BEGIN + HOUR


def test_nothing_was_stored_yet():
    steady = SteadyClock(Hands())

    steady.resume(wall=None, steady=None)

    assert steady.read().steady == BEGIN
