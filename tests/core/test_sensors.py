"""One semantics in every mode: a sensor that looks from a slot, and one that is hosted."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.messages import Failed, NotReadyYet
from aioflow.model import Body, Failure, RetryPolicy, SensorSpec, TaskSpec
from aioflow.rows import TaskRow
from tests.core.world import SECOND, World

MODES = pytest.mark.parametrize(
    "body", [Body.FUNCTION, Body.COROUTINE], ids=["in-a-slot", "hosted"]
)
THRICE = RetryPolicy(tries=3, delay_us=5 * SECOND, jitter=False)
BROKEN = Failure(type="OSError", message="no", reason="raised")


def looking(body: Body, *others: TaskSpec, **rhythm: Any) -> tuple[World, int]:
    world = World(cpu_slots=1)
    rhythm = {"interval_us": 60 * SECOND, "timeout_us": 600 * SECOND} | rhythm
    look = TaskSpec(task_id="look", sensor=SensorSpec(**rhythm), body=body, retry=THRICE)
    return world, world.begin(look, *others)


def finds_nothing(world: World, body: Body) -> None:
    """It looks, and finds nothing; a hosted one keeps that to itself and looks again."""
    if body is Body.FUNCTION:
        start = world.starts.pop(world.started("look").start.task_no).start
        world.turn(NotReadyYet(start.task_no, start.start_no, world.now, world.now))


def raises(world: World) -> None:
    start = world.starts.pop(world.started("look").start.task_no).start
    world.turn(Failed(start.task_no, start.start_no, world.now, world.now, BROKEN))


def row_of(world: World) -> TaskRow:
    return next(row for row in world.rows.tasks.values() if row.position == 0)


@MODES
def test_between_two_looks_it_is_sensing_and_holds_no_slot(body):
    world, run = looking(body, TaskSpec(task_id="work"))

    finds_nothing(world, body)

    assert world.state(run, "look") == "sensing"
    assert world.started("work") is not None  # in the only slot there is


@MODES
def test_its_time_is_over_for_all_tries_and_people_are_told(body):
    world, run = looking(body)
    finds_nothing(world, body)

    world.pass_time(601)

    assert world.state(run, "look") == "failed"
    row = row_of(world)
    assert (row.failure.reason, row.try_number) == ("sensor_timeout", 1)
    assert len(world.alerts()) == 1
    assert world.started("look") is None


@MODES
def test_its_time_counts_from_the_first_look_of_the_first_try(body):
    world, run = looking(body)
    world.pass_time(400)
    raises(world)
    world.pass_time(5)
    assert world.started("look").start.try_number == 2

    world.pass_time(200)

    assert world.state(run, "look") == "failed"
    assert row_of(world).failure.reason == "sensor_timeout"


@MODES
def test_it_may_skip_when_its_time_is_over(body):
    world, run = looking(body, on_timeout="skip")
    finds_nothing(world, body)

    world.pass_time(601)

    assert world.state(run, "look") == "skipped"
    assert row_of(world).failure.reason == "sensor_timeout"


@MODES
@pytest.mark.parametrize(
    ("on_error", "state", "try_number"), [("retry", "retrying", 1), ("skip", "skipped", 1)]
)
def test_an_exception_in_a_check_costs_a_try_or_skips(body, on_error, state, try_number):
    world, run = looking(body, on_error=on_error)

    raises(world)

    assert world.state(run, "look") == state
    row = row_of(world)
    assert row.try_number == try_number
    assert [ended.failure.type for ended in world.rows.tries] == ["OSError"]


def test_an_exception_that_is_ignored_is_a_look_that_found_nothing():
    world, run = looking(Body.FUNCTION, on_error="ignore")

    raises(world)
    assert world.state(run, "look") == "sensing"
    world.pass_time(61)

    assert world.started("look").start.try_number == 1
    assert not world.rows.tries
