"""Backfills: each fire time of a range has one run, and only a few runs are active at a time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.core.runs import backfills
from aioflow.errors import (
    BackfillRefused,
    BadConf,
    DagBroken,
    DagRunning,
    RequestError,
    UnknownBackfill,
    UnknownDag,
)
from aioflow.model.dag import BackfillRow, DagSpec, RetryPolicy, ScheduleSpec, TaskSpec
from aioflow.protocol.inputs import ContinueBackfill, FileDeleted
from aioflow.protocol.reports import Deferred, Succeeded
from aioflow.protocol.requests import (
    CancelBackfill,
    CancelRun,
    ClearTasks,
    DeleteDag,
    SetPaused,
    StartBackfill,
)
from tests.core.test_previous_runs import report
from tests.core.world import SECOND, World

MINUTE = 60 * SECOND
MINUTELY = ScheduleSpec(every_us=MINUTE)
ONCE = RetryPolicy(tries=1)
ONLY = (TaskSpec(task_id="only", retry=ONCE),)


def dag(*tasks: TaskSpec, **options: Any) -> DagSpec:
    chosen: dict[str, Any] = {"schedule": MINUTELY, "max_active_runs": 2} | options
    return DagSpec(dag_id="dag", file="dag.py", tasks=tasks or ONLY, **chosen)


def world_of(*tasks, cpu_slots=8, **options):
    world = World(cpu_slots=cpu_slots)
    world.now -= world.now % MINUTE - 30 * SECOND
    world.load(dag(*tasks, **options))
    return world


def backfill(world, minutes=5, **fields):
    """Start a backfill of the last minutes. Return its number."""
    now = world.now
    asked = {"dag_id": "dag", "first": now - minutes * MINUTE, "last": now} | fields
    number, _ = world.ask(StartBackfill(**asked))
    return number


def runs_of(world, number):
    return [run for run in world.rows.runs.values() if run.backfill == number]


def fire_times(world, number):
    """Return the fire times of a backfill's runs, in minutes before now, oldest run first."""
    return [(world.now - run.logical_date) // MINUTE for run in runs_of(world, number)]


def live(world, number):
    return [run for run in runs_of(world, number) if run.ended_at is None]


def test_a_backfill_makes_a_run_for_each_fire_time_in_order_and_no_more_at_once_than_it_may():
    world = world_of()

    number = backfill(world, max_active=2)
    most = 0
    while world.starts:
        most = max(most, len(live(world, number)))
        world.succeed("only")

    row = world.rows.backfills[number]
    assert fire_times(world, number) == [4, 3, 2, 1, 0]
    assert most == 2
    assert (row.state, row.made, row.skipped, row.next_at) == ("done", 5, 0, None)
    assert row.ended_at == world.now
    assert {run.cause for run in runs_of(world, number)} == {"backfill"}


def test_a_reverse_backfill_begins_with_the_latest_fire_time():
    world = world_of()

    number = backfill(world, is_reverse=True, max_active=1)
    world.finish_all()

    assert fire_times(world, number) == [0, 1, 2, 3, 4]


def test_its_runs_do_not_count_for_the_limit_of_its_dag_nor_the_others_for_its_own():
    world = world_of(max_active_runs=1)
    own = world.trigger()

    number = backfill(world, max_active=3)
    waiting = world.trigger()

    assert len(live(world, number)) == 3
    assert (world.run_state(own), world.run_state(waiting)) == ("running", "queued")


def test_other_tasks_start_before_those_of_a_backfill():
    world = world_of(cpu_slots=1)
    number = backfill(world, max_active=5)
    first = world.started("only").start
    run = world.trigger()

    world.succeed("only")

    assert first.run_no in {one.run_no for one in runs_of(world, number)}
    assert world.started("only").start.run_no == run


@pytest.mark.parametrize(
    ("reprocess", "again"),
    [("none", [1]), ("failed", [4, 3, 1]), ("all", [4, 3, 2, 1])],
)
def test_a_fire_time_that_has_a_run_gets_another_only_as_was_said(reprocess, again):
    world = world_of(max_active_runs=9)
    at = world.now - 30 * SECOND
    bad, cancelled, good, _, going = (
        world.trigger(logical_date=at - back * MINUTE) for back in (4, 3, 2, 9, 0)
    )
    for run in (bad, cancelled, good, going):
        assert world.run_state(run) == "running"
    report(world, bad, "only", "fail")
    report(world, good, "only")
    world.ask(CancelRun(run_id=world.rows.runs[cancelled].run_id))

    number = backfill(world, reprocess=reprocess, max_active=9)

    assert fire_times(world, number) == again
    assert world.rows.backfills[number].skipped == 5 - len(again)


def test_the_same_backfill_requested_twice_is_one_and_another_is_refused_while_it_is_active():
    world = world_of()
    asked = {"first": world.now - 5 * MINUTE, "last": world.now}
    number = backfill(world, **asked)

    assert world.ask(StartBackfill(dag_id="dag", **asked)) == (number, False)
    with pytest.raises(BackfillRefused, match=f"backfill {number} of 'dag' is active"):
        backfill(world, reprocess="all")
    world.finish_all()
    assert backfill(world, reprocess="all") != number


def test_the_same_request_is_one_backfill_also_when_that_has_ended():
    world = world_of()
    asked = {"first": world.now - 5 * MINUTE, "last": world.now, "reprocess": "all", "key": "k"}
    number = backfill(world, **asked)

    assert world.ask(StartBackfill(dag_id="dag", **asked)) == (number, False)
    world.finish_all()
    assert world.ask(StartBackfill(dag_id="dag", **asked)) == (number, False)
    world.restart()
    assert world.ask(StartBackfill(dag_id="dag", **asked)) == (number, False)
    assert backfill(world, **(asked | {"key": "another"})) != number


@pytest.mark.parametrize(
    ("options", "asked", "error"),
    [
        ({"schedule": None}, {}, BackfillRefused),
        ({}, {"dag_id": "nobody"}, UnknownDag),
        ({}, {"first": 2_000_000_000 * SECOND}, BackfillRefused),
        ({}, {"conf": b"\x81\xa1x\x01"}, BadConf),
        ({"required": ("day",), "parameters": ("day",)}, {}, BadConf),
    ],
)
def test_impossible_backfills_are_refused(options, asked, error):
    world = world_of(**options)

    with pytest.raises(error):
        backfill(world, **asked)

    assert world.rows.backfills == {}


@pytest.mark.parametrize(
    ("options", "asked", "words"),
    [
        ({"schedule": None}, {}, "has no schedule"),
        ({}, {"last": 0}, "ends before it begins"),
        ({}, {"minutes": 0}, "has no past fire time in that range"),
    ],
    ids=["no-schedule", "backwards", "no-fire-time"],
)
def test_a_range_that_cannot_be_filled_is_refused_in_words_of_its_own(options, asked, words):
    world = world_of(**options)

    with pytest.raises(BackfillRefused, match=words):
        backfill(world, **asked)


@pytest.mark.parametrize("fields", [{"is_reverse": True}, {"reprocess": "failed"}])
def test_with_depends_on_past_runs_are_created_in_order_and_once(fields):
    world = world_of(TaskSpec(task_id="only", depends_on_past=True))

    with pytest.raises(BackfillRefused, match="wait for the run before"):
        backfill(world, **fields)


def test_pending_fire_times_of_a_schedule_are_left_to_it():
    world = World()
    world.now -= world.now % MINUTE - 30 * SECOND
    world.load(dag(catchup=True, start_date=world.now - 3 * MINUTE, max_active_runs=1))
    owed = world.rows.dags["dag"].next_run_at
    world.ask(SetPaused(dag_id="dag", paused=True))

    number = backfill(world, minutes=10, max_active=99)

    assert max(run.logical_date for run in runs_of(world, number)) == owed - MINUTE


def test_a_cancelled_backfill_creates_no_more_runs_and_ends_active_ones():
    world = world_of()
    number = backfill(world, max_active=2)
    own = world.trigger()

    world.ask(CancelBackfill(backfill_no=number))
    world.succeed("only")

    row = world.rows.backfills[number]
    assert (row.state, row.made) == ("cancelled", 2)
    assert {run.state.label for run in runs_of(world, number)} == {"cancelled"}
    assert world.run_state(own) == "success"
    with pytest.raises(UnknownBackfill):
        world.ask(CancelBackfill(backfill_no=number))


def test_a_restart_continues_where_it_was():
    world = world_of()
    number = backfill(world, max_active=2)
    world.succeed("only")
    before = fire_times(world, number)

    world.restart()
    assert fire_times(world, number) == before
    world.finish_all()

    assert fire_times(world, number) == [4, 3, 2, 1, 0]
    assert world.rows.backfills[number].state == "done"


def test_a_turn_that_is_taken_back_makes_each_run_once_all_the_same():
    world = world_of()
    number = backfill(world, max_active=1)
    ended = world.started("only").start
    world.ask(CancelRun(run_id=world.rows.runs[ended.run_no].run_id))
    world.starts.pop(ended.task_no, None)

    world.refuse(ContinueBackfill(number))
    world.finish_all()

    assert fire_times(world, number) == [4, 3, 2, 1, 0]


def test_two_runs_that_end_in_one_turn_give_no_fire_time_a_second_run():
    world = world_of()
    base = world.now - 30 * SECOND
    for back in (*range(1, 47), *range(50, 99)):  # all but three fire times of a hundred have one
        world.trigger(logical_date=base - back * MINUTE)
        world.finish_all()
    number = backfill(world, minutes=100, max_active=2)
    reports = [
        Succeeded(e.start.task_no, e.start.start_no, world.now, world.now + 50)
        for e in world.starts.values()
    ]
    world.starts.clear()

    world.turn(*reports)
    world.finish_all()

    dates = [run.logical_date for run in world.rows.runs.values()]
    assert len(dates) == len(set(dates)) == 100
    assert world.rows.backfills[number].skipped == 95


def test_the_latest_fire_time_is_left_to_a_schedule_that_rests_and_will_make_it():
    world = world_of()
    world.ask(SetPaused(dag_id="dag", paused=True))
    world.now += 3 * MINUTE

    number = backfill(world, max_active=9)
    world.ask(SetPaused(dag_id="dag", paused=False))
    world.pass_time(0)

    dates = [run.logical_date for run in world.rows.runs.values()]
    assert len(dates) == len(set(dates)) == 5
    assert fire_times(world, number) == [4, 3, 2, 1]


def test_a_backfill_that_a_defect_has_stopped_fails_and_another_may_begin():
    world = world_of()
    number = backfill(world, max_active=1)

    world.aside(lambda tx: backfills.fail(number, "no", tx))

    row = world.rows.backfills[number]
    assert (row.state, row.failure) == ("failed", "no")
    assert backfill(world, reprocess="all") != number


def test_a_dag_is_not_deleted_while_a_run_of_an_old_backfill_is_active_again():
    world = world_of()
    number = backfill(world, max_active=1)
    world.finish_all()
    world.ask(ClearTasks(run_id=runs_of(world, number)[0].run_id))
    world.turn(FileDeleted("dag.py"))

    with pytest.raises(DagRunning, match="1 active runs"):
        world.ask(DeleteDag(dag_id="dag"))


def test_it_waits_while_its_dag_is_gone_and_continues_when_that_comes_back():
    world = world_of()
    number = backfill(world, max_active=1)
    world.turn(FileDeleted("dag.py"))
    world.finish_all()
    waiting = fire_times(world, number)

    world.load(dag(), version="v2")
    world.finish_all()

    assert waiting == [4]
    assert fire_times(world, number) == [4, 3, 2, 1, 0]
    assert [run.version for run in runs_of(world, number)] == ["v1", *["v2"] * 4]
    world.turn(FileDeleted("dag.py"))
    with pytest.raises(DagBroken):
        backfill(world)


def test_a_dag_and_its_backfill_are_deleted_once_no_run_of_it_is_active():
    world = world_of()
    number = backfill(world, max_active=1)
    world.turn(FileDeleted("dag.py"))

    with pytest.raises(DagRunning, match="1 active runs"):
        world.ask(DeleteDag(dag_id="dag"))
    world.finish_all()
    world.ask(DeleteDag(dag_id="dag"))

    assert world.rows.backfills[number].state == "cancelled"
    assert world.memory.backfills == {}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"schedule": None}, "no schedule any more"),
        ({"required": ("day",), "parameters": ("day",)}, "needs day"),
    ],
)
def test_it_fails_with_a_reason_when_its_dag_no_longer_takes_such_a_run(changed, why):
    world = world_of()
    number = backfill(world, max_active=1)

    world.load(dag(**changed), version="v2")
    world.succeed("only")

    row = world.rows.backfills[number]
    assert (row.state, row.made) == ("failed", 1)
    assert why in row.failure


def test_a_run_of_it_that_is_cleared_runs_beside_the_others():
    world = world_of(max_active_runs=1)
    number = backfill(world, max_active=1)
    first = runs_of(world, number)[0]
    world.succeed("only")

    world.ask(ClearTasks(run_id=first.run_id))

    assert len(live(world, number)) == 2
    world.finish_all()
    assert fire_times(world, number) == [4, 3, 2, 1, 0]
    assert world.rows.backfills[number].state == "done"


def test_a_run_of_it_that_only_waits_stays_one_of_its_own():
    world = world_of()
    number = backfill(world, max_active=1)
    start = world.starts.pop(world.started("only").start.task_no).start
    world.turn(
        Deferred(start.task_no, start.start_no, world.now, world.now, "m:T", b"\x80", "after")
    )

    world.restart()

    assert len(live(world, number)) == 1
    assert world.memory.active_runs == {f"backfill {number}": 1}


@given(
    every=st.integers(60, 7200),
    span=st.integers(0, 40_000),
    reverse=st.booleans(),
    limit=st.integers(1, 7),
)
def test_the_fire_times_are_those_of_the_schedule_in_the_range_whatever_the_order(
    every, span, reverse, limit
):
    spec = dag(schedule=ScheduleSpec(every_us=every * SECOND))
    first = 1_700_000_000 * SECOND
    row = BackfillRow(
        backfill_no=1,
        dag_id="dag",
        first=first,
        last=first + span * SECOND,
        reprocess="none",
        max_active=1,
        is_reverse=reverse,
        next_at=first + span * SECOND if reverse else first,
    )

    found = backfills.fire_times_of(row, spec, limit)

    step = every * SECOND
    every_fire_time = list(range(-(-first // step) * step, row.last + 1, step))
    wanted = every_fire_time[::-1] if reverse else every_fire_time
    assert found == wanted[:limit]


def test_an_unknown_dag_is_named():
    with pytest.raises(RequestError, match="nobody"):
        backfill(world_of(), dag_id="nobody")
