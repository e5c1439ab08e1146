"""Inputs that cannot be processed."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core.quarantine import (
    DecideWithout,
    FailBackfill,
    QuarantineRuns,
    RefuseRequest,
    RepeatInput,
    RetryTimer,
    consequence,
)
from aioflow.model.dag import TaskSpec
from aioflow.model.states import Failure
from aioflow.protocol.inputs import (
    ClockStepped,
    ContinueBackfill,
    ContinueRun,
    CreateMissingRuns,
    HostUp,
    RequestReceived,
    Restarted,
    TimerFired,
)
from aioflow.protocol.reports import TriggerEnded
from aioflow.protocol.requests import CreateRun
from tests.core.test_event_runs import fired, waiting
from tests.core.world import World

A = TaskSpec(task_id="a")
MINUTE = 60_000_000
WRONG = ValueError("it is wrong")


def of(entry: Any, world: World) -> Any:
    return consequence(entry, WRONG, world.moment, world.memory)


def test_a_request_is_refused_with_the_error():
    found = of(RequestReceived(7, CreateRun(dag_id="dag")), World())

    assert isinstance(found, RefuseRequest)
    assert (found.answer.ticket, found.answer.error) == (7, WRONG)


@pytest.mark.parametrize(
    "entry", [TimerFired(5, dag_id="dag"), CreateMissingRuns("dag", 5, (), None)]
)
def test_a_fire_time_of_a_dag_is_tried_again_after_a_minute_of_wall_time(entry):
    world = World()

    found = of(entry, world)

    assert isinstance(found, RetryTimer)
    assert (found.timer.due, found.timer.at) == (
        TimerFired(5, dag_id="dag"),
        world.moment.now + MINUTE,
    )
    assert found.is_scheduled


def test_the_timer_of_a_trigger_is_tried_again_after_a_minute_of_steady_time():
    world = World()

    found = of(TimerFired(5, trigger_no=3), world)

    assert isinstance(found, RetryTimer)
    assert (found.timer.at, found.is_scheduled) == (world.moment.steady + MINUTE, False)


def test_a_trigger_of_a_dag_ends_at_an_event_that_no_run_can_be_created_for():
    world = waiting()
    event = fired(world, {"n": 1})

    found = of(event, world)

    assert isinstance(found, RepeatInput)
    ended = found.input
    assert isinstance(ended, TriggerEnded)
    assert (ended.trigger_no, ended.assignment_id) == (event.trigger_no, event.assignment_id)
    assert ended.failure == Failure(type="Refused", message="it is wrong", reason="refused")


def test_a_backfill_fails():
    assert of(ContinueBackfill(3), World()) == FailBackfill(3)


@pytest.mark.parametrize("kind", ["continue", "timeout", "restart"])
def test_the_run_that_an_input_concerns_is_quarantined(kind):
    world = World()
    run_no = world.begin(A)
    entry: Any = {
        "continue": ContinueRun(run_no),
        "timeout": TimerFired(5, run_no=run_no),
        "restart": Restarted((run_no,)),
    }[kind]

    found = of(entry, world)

    assert isinstance(found, QuarantineRuns)
    assert [run.run_no for run in found.runs] == [run_no]


def test_no_run_is_quarantined_for_one_that_has_ended():
    assert of(ContinueRun(99), World()) == QuarantineRuns([])


@pytest.mark.parametrize("entry", [HostUp("async"), ClockStepped(), Restarted()])
def test_an_input_that_concerns_all_runs_is_decided_without_those_on_which_it_fails(entry):
    assert of(entry, World()) == DecideWithout()
