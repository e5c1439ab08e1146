"""``execution_timeout`` limits a whole try, including its waits; for a sensor, each poke."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.model.dag import Body, RetryPolicy, SensorSpec, TaskSpec
from aioflow.model.states import Failure
from aioflow.protocol.commands import StartTask
from aioflow.protocol.effects import AssignTrigger
from aioflow.protocol.reports import (
    Deferred,
    SensorNotReady,
    TaskStarted,
    TriggerEnded,
    TriggerFired,
)
from tests.core.world import SECOND, World

LIMIT = 30 * SECOND
SENSOR = SensorSpec(interval_us=60 * SECOND, timeout_us=3600 * SECOND)


def limited(name: str, **fields: Any) -> TaskSpec:
    fields.setdefault("retry", RetryPolicy(tries=1))
    return TaskSpec(task_id=name, execution_timeout_us=LIMIT, **fields)


def taken(world: World, name: str) -> StartTask:
    """Return the command that started a task, and remove it from the list."""
    effect = world.started(name)
    assert effect is not None, f"{name} has not been started"
    return world.starts.pop(effect.start.task_no).start


def defer(world: World, name: str, **fields: Any) -> AssignTrigger:
    start = taken(world, name)
    effects = world.turn(
        Deferred(
            start.task_no, start.start_no, world.now, world.now, "m:T", b"\x80", "next", **fields
        )
    )
    return next(effect for effect in effects if isinstance(effect, AssignTrigger))


def fire(world: World, hosted: AssignTrigger) -> None:
    host = hosted.host
    world.turn(TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, b"\x01"))


def test_each_look_of_a_sensor_has_all_of_its_time():
    world = World()
    world.begin(limited("look", sensor=SENSOR))
    for _ in range(3):
        start = taken(world, "look")
        world.turn(SensorNotReady(start.task_no, start.start_no, world.now, world.now))
        world.pass_time(61)

        effect = world.started("look")
        assert effect is not None
        assert (effect.timeout_us, effect.start.timeout_us) == (LIMIT, LIMIT)


@pytest.mark.parametrize("body", [Body.FUNCTION, Body.COROUTINE])
def test_a_sensor_that_defers_waits_as_long_as_its_timeout_says(body):
    world = World()
    run = world.begin(limited("look", sensor=SENSOR, body=body))
    hosted = defer(world, "look")

    world.pass_time(600)
    assert world.state(run, "look") == "deferred"
    fire(world, hosted)
    effect = world.started("look")
    assert effect is not None
    assert effect.timeout_us == LIMIT
    world.pass_time(3001)

    assert world.state(run, "look") == "failed"


def test_a_sensor_that_skips_on_errors_does_so_while_it_is_deferred():
    world = World()
    sensor = SensorSpec(interval_us=60 * SECOND, timeout_us=3600 * SECOND, on_error="skip")
    run = world.begin(limited("look", sensor=sensor, body=Body.COROUTINE))
    host = defer(world, "look").host

    world.turn(TriggerEnded(host.trigger_no, host.assignment_id, world.now))

    assert world.state(run, "look") == "skipped"


@pytest.mark.parametrize("on_error", ["retry", "ignore"])
def test_fail_in_a_trigger_ends_a_sensor_whatever_it_does_about_errors(on_error):
    world = World()
    sensor = SensorSpec(interval_us=60 * SECOND, timeout_us=3600 * SECOND, on_error=on_error)
    run = world.begin(limited("look", sensor=sensor, body=Body.COROUTINE, retry=RetryPolicy()))
    host = defer(world, "look").host

    no_use = Failure(type="Fail", message="no use", reason="trigger_fail")
    world.turn(TriggerEnded(host.trigger_no, host.assignment_id, world.now, no_use))

    assert world.state(run, "look") == "failed"


def test_a_resumed_task_has_what_is_left_of_its_time():
    world = World()
    world.begin(limited("a"))
    hosted = defer(world, "a")
    world.pass_time(20)
    fire(world, hosted)

    effect = world.started("a")
    assert effect is not None
    assert effect.timeout_us == 10 * SECOND


def test_one_that_resumes_behind_another_gets_no_more_time():
    """The task resumes as a claimed start, which begins later than its try did."""
    world = World(cpu_slots=1)
    run = world.begin(limited("a"), TaskSpec(task_id="busy"))
    hosted = defer(world, "a")
    durations = world.memory.runs[run].durations
    durations[0] = durations[1] = 100.0
    world.pass_time(20)
    fire(world, hosted)
    claimed = world.started("a")
    assert claimed is not None
    assert claimed.claimed
    world.succeed("busy")
    world.turn(TaskStarted(claimed.start.task_no, claimed.start.start_no, world.now))
    defer(world, "a")

    world.pass_time(11)

    assert world.state(run, "a") == "failed"
