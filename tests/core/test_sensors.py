"""Sensors behave the same in every mode: poking from a slot, or hosted."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.model.dag import Body, RetryPolicy, SensorSpec, TaskSpec
from aioflow.model.rows import TaskRow
from aioflow.model.states import Failure, Wait
from aioflow.protocol.commands import StartTrigger
from aioflow.protocol.effects import AssignTrigger
from aioflow.protocol.reports import Deferred, Failed, SensorNotReady, TriggerEnded, TriggerFired
from aioflow.protocol.requests import Explain
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
    """Let the sensor find nothing. A hosted sensor does not report that, and pokes again."""
    if body is Body.FUNCTION:
        start = world.starts.pop(world.started("look").start.task_no).start
        world.turn(SensorNotReady(start.task_no, start.start_no, world.now, world.now))


def raises(world: World) -> None:
    start = world.starts.pop(world.started("look").start.task_no).start
    world.turn(Failed(start.task_no, start.start_no, world.now, world.now, BROKEN))


def row_of(world: World) -> TaskRow:
    return next(row for row in world.rows.tasks.values() if row.task_index == 0)


@MODES
def test_between_two_looks_it_is_sensing_and_holds_no_slot(body):
    world, run = looking(body, TaskSpec(task_id="work"))

    finds_nothing(world, body)

    assert world.state(run, "look") == "sensing"
    assert world.started("work") is not None  # in the only slot there is


def waits_for(world: World, run: int) -> Wait:
    asked = Explain(run_id=world.rows.runs[run].run_id, tasks=((0, -1),))
    return world.ask(asked)[0, -1]


def test_a_sensor_in_a_slot_is_shown_with_its_next_poke():
    world, run = looking(Body.FUNCTION)
    finds_nothing(world, Body.FUNCTION)

    wait = waits_for(world, run)

    assert (wait.detail, wait.until) == ("the next check", world.now + 60 * SECOND)
    assert wait.interval_us == 60 * SECOND


@pytest.mark.parametrize(
    ("rhythm", "detail"),
    [({}, "a check every 60 s"), ({"backoff": 2.0}, "continuous checks")],
    ids=["even", "slower-and-slower"],
)
def test_a_hosted_sensor_is_shown_with_its_interval_and_its_timeout(rhythm, detail):
    world, run = looking(Body.COROUTINE, **rhythm)

    wait = waits_for(world, run)

    assert (wait.detail, wait.until) == (detail, world.now + 600 * SECOND)
    assert wait.interval_us == (None if rhythm else 60 * SECOND)


@MODES
def test_its_timeout_covers_all_tries_and_is_alerted(body):
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
def test_it_may_skip_at_its_timeout(body):
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


# ── errors that are ignored ─────────────────────────────────────────────────────────────


def defers(world: World) -> StartTrigger:
    start = world.starts.pop(world.started("look").start.task_no).start
    assert start.method == ""
    at = (start.task_no, start.start_no, world.now, world.now)
    effects = world.turn(Deferred(*at, "m:T", b"\x80", "resumed"))
    return next(effect.host for effect in effects if isinstance(effect, AssignTrigger))


def raised_in(host: StartTrigger, world: World, reason: str = "trigger") -> TriggerEnded:
    failure = Failure(type="OSError", message="no", reason=reason)
    return TriggerEnded(host.trigger_no, host.assignment_id, world.now, failure)


@MODES
def test_failures_outside_of_a_poke_cost_a_try_even_if_errors_are_ignored(body):
    """An exception of a poke is reported as a poke without a result. Other errors count."""
    world, run = looking(body, on_error="ignore")

    raises(world)

    assert world.state(run, "look") == "retrying"
    assert [ended.failure.type for ended in world.rows.tries] == ["OSError"]


@MODES
def test_an_error_of_its_trigger_that_is_ignored_is_a_look_that_found_nothing(body):
    world, run = looking(body, on_error="ignore")
    host = defers(world)

    world.turn(raised_in(host, world))
    assert world.state(run, "look") == "sensing"
    assert world.started("look") is None
    assert world.rows.triggers == {}
    world.pass_time(61)

    assert defers(world).trigger_no != host.trigger_no
    assert (row_of(world).try_number, world.rows.tries) == (1, [])


@MODES
@pytest.mark.parametrize("reason", ["trigger_ended", "trigger_yield", "import_error"])
def test_a_trigger_that_is_wrong_in_itself_costs_a_try_also_where_errors_are_ignored(body, reason):
    world, run = looking(body, on_error="ignore")

    world.turn(raised_in(defers(world), world, reason))

    assert world.state(run, "look") == "retrying"


@MODES
def test_a_sensor_that_ignores_an_error_after_its_trigger_pokes_again_from_the_beginning(body):
    world, run = looking(body, on_error="ignore")
    host = defers(world)
    at = (host.trigger_no, host.assignment_id)
    world.turn(TriggerFired(*at, 0, world.now, b"\x01"), TriggerEnded(*at, world.now))
    start = world.starts.pop(world.started("look").start.task_no).start
    assert start.method == "resumed"

    world.turn(SensorNotReady(start.task_no, start.start_no, world.now, world.now))
    assert world.state(run, "look") == "sensing"
    assert world.started("look") is None
    world.pass_time(61)

    assert world.started("look").start.method == ""


@MODES
def test_the_next_look_after_an_ignored_error_keeps_its_instant_over_a_restart(body):
    world, run = looking(body, on_error="ignore")
    world.turn(raised_in(defers(world), world))
    world.pass_time(30)

    world.restart()
    assert world.state(run, "look") == "sensing"
    assert world.started("look") is None
    world.pass_time(31)

    assert world.started("look") is not None


@MODES
def test_the_time_of_a_sensor_runs_on_while_it_ignores_errors(body):
    world, run = looking(body, on_error="ignore", on_timeout="skip")
    world.pass_time(590)
    world.turn(raised_in(defers(world), world))

    world.pass_time(11)

    assert world.state(run, "look") == "skipped"
    assert row_of(world).failure.reason == "sensor_timeout"
