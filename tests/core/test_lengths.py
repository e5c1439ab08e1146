"""Each duration lasts as long as specified, whatever steps the wall clock makes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow.model.dag import Body, RetryPolicy, SensorSpec, StartTriggerSpec, TaskSpec
from aioflow.protocol.commands import StartTask
from aioflow.protocol.effects import AssignTrigger
from aioflow.protocol.reports import Awaiting, Deferred, SensorNotReady, TriggerEnded, TriggerFired
from tests.core.world import SECOND, World

HOUR = 3600
LENGTH = 100
"""Length of each duration in seconds. Time passes in steps of one second."""

Over: TypeAlias = Callable[[], bool]

ONCE = RetryPolicy(tries=1)
LIMIT = LENGTH * SECOND


def start_of(world: World) -> StartTask:
    found = world.started("a")
    assert found is not None
    return world.starts.pop(found.start.task_no).start


def deferred(world: World, timeout_us: int | None = None) -> None:
    start = start_of(world)
    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Deferred(*at, "m:T", b"\x80", "after", timeout_us=timeout_us))


def awaiting(world: World, kind: str, *triggers: str, timeout_us: int | None = None) -> None:
    start = start_of(world)
    at = (start.task_no, start.start_no, world.now, world.now)
    classes = tuple((path, b"\x80") for path in triggers)
    world.turn(Awaiting(*at, 0, kind, "", "flow.py:3", classes, timeout_us))


def no_reason(world: World, run: int, reason: str) -> Over:
    def is_over() -> bool:
        rows = [row for row in world.rows.tasks.values() if row.run_no == run]
        return any(row.failure is not None and row.failure.reason == reason for row in rows)

    return is_over


def a_retry(world: World) -> Over:
    world.begin(TaskSpec(task_id="a", retry=RetryPolicy(tries=2, delay_us=LIMIT, jitter=False)))
    world.fail("a")
    return lambda: world.started("a") is not None


def a_look_of_a_sensor(world: World) -> Over:
    sensor = SensorSpec(interval_us=LIMIT, timeout_us=10 * LIMIT)
    world.begin(TaskSpec(task_id="a", sensor=sensor))
    start = start_of(world)
    world.turn(SensorNotReady(start.task_no, start.start_no, world.now, world.now))
    return lambda: world.started("a") is not None


def the_timeout_of_a_sensor(world: World) -> Over:
    sensor = SensorSpec(interval_us=7 * SECOND, timeout_us=LIMIT)
    run = world.begin(TaskSpec(task_id="a", sensor=sensor, retry=ONCE))
    is_over = no_reason(world, run, "sensor_timeout")

    def looks_again() -> bool:
        if world.started("a") is not None:
            start = start_of(world)
            world.turn(SensorNotReady(start.task_no, start.start_no, world.now, world.now))
        return is_over()

    looks_again()
    return looks_again


def the_timeout_of_a_wait(world: World) -> Over:
    run = world.begin(TaskSpec(task_id="a", retry=ONCE))
    deferred(world, LIMIT)
    return no_reason(world, run, "timeout")


def the_timeout_of_a_wait_from_the_start(world: World) -> Over:
    trigger = StartTriggerSpec(class_path="m:T", timeout_us=LIMIT, next_method="after")
    run = world.begin(TaskSpec(task_id="a", retry=ONCE, start_trigger=trigger))
    return no_reason(world, run, "timeout")


def the_time_of_a_try(world: World) -> Over:
    run = world.begin(TaskSpec(task_id="a", retry=ONCE, execution_timeout_us=LIMIT))
    deferred(world)
    return no_reason(world, run, "timeout")


def the_time_of_a_try_that_resumes(world: World) -> Over:
    world.begin(TaskSpec(task_id="a", retry=ONCE, execution_timeout_us=LIMIT))
    deferred(world)
    last = [e.host for e in world.effects if isinstance(e, AssignTrigger)][-1]
    began = world.moment.monotonic

    def resumes_with_what_is_left() -> bool:
        """Let an event arrive ten seconds before the end. Return whether the time is over."""
        passed = (world.moment.monotonic - began) // SECOND
        if passed != LENGTH - 10:
            return passed > LENGTH
        newest = [e.host for e in world.effects if isinstance(e, AssignTrigger)][-1]
        at = (newest.trigger_no, newest.assignment_id)
        world.turn(TriggerFired(*at, 0, world.now, b"\x01"), TriggerEnded(*at, world.now))
        assert start_of(world).timeout_us == 10 * SECOND
        return False

    assert last.trigger_no
    return resumes_with_what_is_left


def a_sleep(world: World) -> Over:
    world.begin(TaskSpec(task_id="a", body=Body.COROUTINE))
    awaiting(world, "sleep", timeout_us=LIMIT)
    return lambda: world.started("a") is not None


def a_wait_with_a_timeout(world: World) -> Over:
    world.begin(TaskSpec(task_id="a", body=Body.COROUTINE))
    awaiting(world, "wait", "m:T", timeout_us=LIMIT)
    return lambda: world.started("a") is not None


def the_time_of_a_run(world: World) -> Over:
    run = world.begin(TaskSpec(task_id="a"), run_timeout_us=LIMIT)
    return lambda: world.run_state(run) == "failed"


def a_deadline(world: World) -> Over:
    world.begin(TaskSpec(task_id="a"), deadline_us=LIMIT)
    return lambda: len(world.alerts()) > 0


KINDS = {
    kind.__name__: kind
    for kind in (
        a_retry,
        a_look_of_a_sensor,
        the_timeout_of_a_sensor,
        the_timeout_of_a_wait,
        the_timeout_of_a_wait_from_the_start,
        the_time_of_a_try,
        the_time_of_a_try_that_resumes,
        a_sleep,
        a_wait_with_a_timeout,
        the_time_of_a_run,
        a_deadline,
    )
}


def takes_its_time(kind: str, steps: dict[int, int], *, restarts: frozenset[int]) -> None:
    """Assert that a duration ends after its length, and not before.

    Args:
        steps: For each second in which the clock steps, the number of hours.
        restarts: Seconds in which the daemon is restarted.
    """
    world = World()
    world.set_clock(-2 * HOUR)  # earlier steps must not count either
    is_over = KINDS[kind](world)
    for second in range(LENGTH):
        assert not is_over(), f"after {second} s"
        if second in steps:
            world.set_clock(steps[second] * HOUR)
        if second in restarts:
            world.restart()
        world.pass_time(1)
    world.pass_time(1)
    assert is_over()


@pytest.mark.parametrize("hours", [6, -6])
@pytest.mark.parametrize("kind", KINDS)
def test_a_length_is_as_long_where_the_clock_is_set(kind, hours):
    takes_its_time(kind, {30: hours}, restarts=frozenset())


@pytest.mark.parametrize("kind", KINDS)
def test_a_length_is_as_long_where_the_clock_is_wrong_for_seconds(kind):
    takes_its_time(kind, {30: 6, 33: -6}, restarts=frozenset())


@pytest.mark.parametrize("hours", [6, -6])
@pytest.mark.parametrize(
    "kind", sorted(KINDS.keys() - {"the_time_of_a_run"})
)  # its row has wall time
def test_a_length_is_as_long_where_the_daemon_is_restarted_afterwards(kind, hours):
    takes_its_time(kind, {30: hours}, restarts=frozenset({60}))


@settings(max_examples=8)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    steps=st.dictionaries(st.integers(0, LENGTH - 1), st.integers(-9, 9), max_size=5),
)
def test_durations_are_as_long_whatever_the_clock_steps(kind, steps):
    takes_its_time(kind, steps, restarts=frozenset())
