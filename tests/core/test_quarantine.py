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
    quarantine_run,
)
from aioflow.core.runs.restore import quarantine_until_restart
from aioflow.core.runs.run_queue import count_runs
from aioflow.model.dag import DagSpec, ScheduleSpec, TaskSpec
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
from aioflow.protocol.reports import Succeeded, TriggerEnded
from aioflow.protocol.requests import CancelRun, ClearTasks, CreateRun, StartBackfill
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


# ── what a quarantined run leaves to others ─────────────────────────────────────────────


def quarantine(world: World, run_no: int, *, is_isolated: bool = False) -> None:
    """Quarantine a run as the engine does. An isolated run is removed from memory as well."""
    run = world.memory.runs[run_no]
    world.aside(lambda tx: quarantine_run(run, "refused", tx))
    if is_isolated:
        quarantine_until_restart(run, "refused", world.memory)
        world.slots.recount(world.memory)
        count_runs(world.memory)
    world.turn(ContinueRun(run_no))


@pytest.mark.parametrize("is_isolated", [False, True])
def test_a_queued_run_begins_when_the_active_one_is_quarantined(is_isolated):
    world = World()
    held = world.begin(A, max_active_runs=1)
    waits, last = world.trigger(), world.trigger()

    quarantine(world, held, is_isolated=is_isolated)

    assert [world.run_state(run) for run in (held, waits, last)] == ["running", "running", "queued"]
    world.restart()
    assert [world.run_state(run) for run in (held, waits, last)] == ["running", "running", "queued"]
    assert world.memory.active_runs == {"dag": 1}


def test_a_quarantined_run_that_is_cancelled_and_cleared_queues_among_the_others():
    world = World()
    held = world.begin(A, max_active_runs=1)
    waits = world.trigger()
    quarantine(world, held)
    quarantine(world, held)  # another input fails
    run_id = world.rows.runs[held].run_id

    world.ask(CancelRun(run_id=run_id))
    assert world.memory.active_runs == {"dag": 1}
    world.ask(ClearTasks(run_id=run_id))

    assert [world.run_state(run) for run in (held, waits)] == ["queued", "running"]
    world.finish_all()
    assert [world.run_state(run) for run in (held, waits)] == ["success", "success"]
    assert world.memory.active_runs == {"dag": 0}


def test_a_quarantined_run_whose_last_task_ends_does_not_count_as_another_that_ended():
    world = World()
    held = world.begin(A, max_active_runs=1)
    quarantine(world, held)
    waits, last = world.trigger(), world.trigger()

    report = next(e for e in world.starts.values() if e.info.run_no == held).start
    world.turn(Succeeded(report.task_no, report.start_no, world.now, world.now))

    assert [world.run_state(run) for run in (held, waits, last)] == ["success", "running", "queued"]


def test_a_queued_run_in_quarantine_never_begins_and_others_do_instead():
    world = World()
    first = world.begin(A, max_active_runs=1)
    held, waits = world.trigger(), world.trigger()
    quarantine(world, held)

    world.finish_all()

    assert [world.run_state(run) for run in (first, held, waits)] == [
        *("success", "queued", "success")
    ]
    world.ask(CancelRun(run_id=world.rows.runs[held].run_id))
    assert world.run_state(held) == "cancelled"


def test_the_oldest_run_does_not_begin_past_the_limit_while_it_is_in_quarantine():
    world = World()
    load = TaskSpec(task_id="load", parents=(0,), depends_on_past=True)
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(A, load), max_active_runs=1))
    dates = (3, 2, None)
    third, second, undated = [world.trigger(logical_date=date) for date in dates]
    quarantine(world, second)

    world.succeed("a")

    assert [world.run_state(run) for run in (third, second, undated)] == [
        *("running", "queued", "queued")
    ]


def test_a_backfill_continues_beside_its_quarantined_run():
    world = World()
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(A,), schedule=ScheduleSpec(every_us=10)))
    world.ask(StartBackfill(dag_id="dag", first=100, last=120, max_active=1))
    held = next(no for no, row in world.rows.runs.items() if row.backfill is not None)

    quarantine(world, held)

    made = [row for row in world.rows.runs.values() if row.backfill is not None]
    assert [row.state.label for row in made] == ["running", "running"]


def test_a_continuous_dag_continues_beside_its_quarantined_run():
    world = World()
    schedule = ScheduleSpec(gap_us=1_000_000)
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(A,), schedule=schedule))
    world.pass_time(2)
    (held,) = world.rows.runs

    quarantine(world, held)
    world.pass_time(2)

    assert len(world.rows.runs) == 2
