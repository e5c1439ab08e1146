"""Class-style deferral, as the contract defines it: how often, how long, and where tasks resume."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.model.dag import Body, RetryPolicy, TaskSpec
from aioflow.protocol.commands import StartTask, StartTrigger
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger
from aioflow.protocol.reports import Deferred, Succeeded, TriggerEnded, TriggerFired
from tests.core.world import SECOND, World

ONCE = RetryPolicy(tries=1)


def begun(**fields: Any) -> tuple[World, int]:
    world = World()
    fields.setdefault("retry", ONCE)
    return world, world.begin(TaskSpec(task_id="w", **fields))


def start_of(world: World) -> StartTask:
    effect = world.started("w")
    assert effect is not None, "it has not been started"
    return effect.start


def defer(world: World, method: str = "after", **fields: Any) -> StartTrigger:
    start = world.starts.pop(start_of(world).task_no).start
    at = (start.task_no, start.start_no, world.now, world.now)
    effects = world.turn(Deferred(*at, "m:T", b"\x80", method, **fields))
    return next(effect.host for effect in effects if isinstance(effect, AssignTrigger))


def fire(world: World, host: StartTrigger, payload: bytes) -> None:
    at = (host.trigger_no, host.assignment_id)
    world.turn(TriggerFired(*at, 0, world.now, payload), TriggerEnded(*at, world.now))


def reasons(world: World) -> list[str]:
    return [effect.end.reason for effect in world.effects if isinstance(effect, ReleaseTrigger)]


def test_a_task_may_wait_any_number_of_times_within_one_try():
    world, run = begun()

    for number in range(20):
        fire(world, defer(world, f"after_{number}"), bytes([number]))
        start = start_of(world)
        assert (start.method, start.event) == (f"after_{number}", bytes([number]))
        assert start.try_number == 1
        assert len(world.rows.triggers) == 1
    world.succeed("w")

    assert world.run_state(run) == "success"
    assert not world.rows.triggers
    assert not world.rows.tries


@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "after-a-restart"])
def test_a_wait_with_a_method_for_it_resumes_there_at_its_timeout(is_restarted):
    world, run = begun()
    host = defer(
        world, timeout_us=5 * SECOND, timeout_method="too_late", next_kwargs=b"\x81\xa1n\x01"
    )
    if is_restarted:
        world.restart()

    world.pass_time(6)

    start = start_of(world)
    assert (start.method, start.event, start.kwargs) == ("too_late", None, b"\x81\xa1n\x01")
    assert (start.try_number, reasons(world)) == (1, ["timeout"])
    world.turn(
        TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, b"\x01")
    )  # it is too late
    world.succeed("w")
    assert world.run_state(run) == "success"


def test_a_task_that_resumed_too_late_begins_there_again_when_it_is_interrupted():
    world, _ = begun()
    defer(world, timeout_us=5 * SECOND, timeout_method="too_late")
    world.pass_time(6)

    world.restart()

    assert (start_of(world).method, start_of(world).event) == ("too_late", None)


def test_the_end_of_the_try_leads_into_no_method():
    world, run = begun(execution_timeout_us=5 * SECOND)
    defer(world, timeout_us=60 * SECOND, timeout_method="too_late")

    world.pass_time(6)

    assert world.state(run, "w") == "failed"


def test_the_time_of_a_try_is_that_of_all_its_runs_and_waits_together():
    world, run = begun(execution_timeout_us=30 * SECOND)
    world.pass_time(10)  # it runs
    host = defer(world)
    world.pass_time(10)
    fire(world, host, b"\x01")
    assert start_of(world).method == "after"
    world.pass_time(5)  # it runs again
    defer(world)
    assert world.state(run, "w") == "deferred"

    world.pass_time(6)

    assert world.state(run, "w") == "failed"
    [row] = world.rows.tasks.values()
    assert row.failure.reason == "timeout"


def test_the_limit_of_a_wait_is_that_of_the_wait_alone():
    world, run = begun()
    world.pass_time(100)
    host = defer(world, timeout_us=30 * SECOND)
    world.pass_time(29)
    fire(world, host, b"\x01")
    world.pass_time(100)

    assert world.state(run, "w") == "running"
    world.succeed("w")
    assert world.run_state(run) == "success"


def test_a_coroutine_that_never_waits_leaves_nothing_but_its_row():
    world, run = begun(body=Body.COROUTINE)
    start = start_of(world)
    batch, _, tx = world.decide(
        [Succeeded(start.task_no, start.start_no, world.now, world.now + 1)]
    )

    assert len(batch.task_changes) == 1
    for kind in ("new_triggers", "new_records", "new_events", "new_tries", "dropped_records"):
        assert not getattr(batch, kind), kind
    world.rows.apply(batch)
    tx.mark_durable()
    assert world.run_state(run) == "success"


def test_a_timed_out_wait_names_the_limit():
    said = {}
    for limits in ({"execution_timeout_us": 5 * SECOND}, {"timeout_us": 5 * SECOND}):
        of_try = {name: value for name, value in limits.items() if name != "timeout_us"}
        world, _ = begun(**of_try)
        defer(world, timeout_us=limits.get("timeout_us"))
        world.pass_time(6)
        [row] = world.rows.tries
        said[next(iter(limits))] = row.failure.message

    assert said == {
        "execution_timeout_us": (
            "the try took longer than its execution_timeout of 5 s; m:T had given no event"
        ),
        "timeout_us": "m:T gave no event in 5 s",
    }
