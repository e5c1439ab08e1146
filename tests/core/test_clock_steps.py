"""Schedules continue after any step of the wall clock, and no fire time gets two runs."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import decode

from aioflow.core.scheduling import clock_steps
from aioflow.model.dag import DagSpec, ScheduleSpec, TaskSpec
from aioflow.protocol.outbox import ALERT, Alert
from aioflow.protocol.requests import CancelRun, SetPaused
from tests.core.world import SECOND, World

HOUR = 3600
BEGIN = round(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * SECOND

SCHEDULES = {
    "every": ScheduleSpec(every_us=60 * SECOND),
    "cron": ScheduleSpec(cron="* * * * *"),
    "fixed": ScheduleSpec(cron="0-58/2 0-23 * * *"),
    "jitter": ScheduleSpec(every_us=60 * SECOND, jitter_us=20 * SECOND),
    "dates": ScheduleSpec(dates=tuple(BEGIN + n * 120 * SECOND for n in range(-1500, 1500))),
    "both": ScheduleSpec(
        parts=(ScheduleSpec(every_us=90 * SECOND), ScheduleSpec(every_us=60 * SECOND))
    ),
    "continuous": ScheduleSpec(gap_us=30 * SECOND),
}
LONGEST_SECONDS = 120
"""The longest time between two fire times of any of these schedules."""


def scheduled(kind: str, missed: str = "latest") -> World:
    world = World()
    world.now = BEGIN
    spec = DagSpec(
        dag_id="dag",
        file="dag.py",
        tasks=(TaskSpec(task_id="work"),),
        schedule=SCHEDULES[kind],
        catchup=missed == "all",
        skips_missed=missed == "skip",
        max_active_runs=100,
    )
    world.load(spec)
    return world


def pass_time(world: World, seconds: int) -> None:
    """Let time pass, and cancel all runs every ten seconds."""
    for _ in range(-(-seconds // 10)):
        world.pass_time(10)
        for run in list(world.memory.runs.values()):
            world.ask(CancelRun(run_id=run.row.run_id))


def fire_times(world: World) -> list[int]:
    return [run.logical_date or 0 for run in world.rows.runs.values()]


def alerts(world: World) -> list[Alert]:
    bodies = [
        decode(row.body, type=Alert) for row in world.rows.outbox.values() if row.kind == ALERT
    ]
    return [alert for alert in bodies if alert.reason == clock_steps.REASON]


def goes_on(world: World) -> None:
    """Assert that runs are created for later fire times, and that no fire time has two runs."""
    began = world.now
    pass_time(world, 3 * LONGEST_SECONDS)
    twice = {
        fire_time: count for fire_time, count in Counter(fire_times(world)).items() if count > 1
    }
    assert not twice
    ours = [fire_time for fire_time in fire_times(world) if began < fire_time <= world.now]
    assert len(ours) >= 2, (began, sorted(fire_times(world))[-5:])


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("missed", ["latest", "skip", "all"])
def test_a_clock_that_was_wrong_for_seconds_leaves_a_schedule_where_it_was(kind, missed):
    world = scheduled(kind, missed)
    pass_time(world, 2 * LONGEST_SECONDS)

    world.set_clock(6 * HOUR)
    pass_time(world, 10)
    world.set_clock(-6 * HOUR)

    goes_on(world)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_so_does_a_restart_with_a_clock_that_is_right_again(kind):
    world = scheduled(kind, "skip")
    pass_time(world, 2 * LONGEST_SECONDS)
    world.set_clock(6 * HOUR)
    pass_time(world, 10)

    world.now -= 6 * HOUR * SECOND
    world.shift -= 6 * HOUR * SECOND
    world.restart()

    goes_on(world)


def test_it_is_alerted_once():
    world = scheduled("every", "skip")
    world.set_clock(6 * HOUR)
    pass_time(world, 120)
    world.set_clock(-6 * HOUR)
    pass_time(world, 120)
    world.restart()

    (alert,) = alerts(world)
    assert alert.dag_id == "dag"
    assert alert.message == (
        "the clock was set back: a schedule had run ahead of it and continue from now: dag"
    )


def test_a_clock_step_of_seconds_is_not_reported():
    world = scheduled("every")
    pass_time(world, 60)
    world.set_clock(-5)

    assert not alerts(world)
    goes_on(world)


def test_a_paused_schedule_is_taken_back_too():
    world = scheduled("every", "skip")
    world.set_clock(6 * HOUR)
    pass_time(world, 60)
    world.ask(SetPaused(dag_id="dag", paused=True))
    world.set_clock(-6 * HOUR)
    world.ask(SetPaused(dag_id="dag", paused=False))

    goes_on(world)


def test_one_that_is_changed_afterwards_continues_as_well():
    world = scheduled("every", "skip")
    world.set_clock(6 * HOUR)
    pass_time(world, 60)
    world.set_clock(-6 * HOUR)
    spec = DagSpec(
        dag_id="dag",
        file="dag.py",
        tasks=(TaskSpec(task_id="work"),),
        schedule=ScheduleSpec(every_us=30 * SECOND),
        skips_missed=True,
        max_active_runs=100,
    )
    world.load(spec, version="v2")

    goes_on(world)


@pytest.mark.parametrize("kind", ["every", "cron", "dates"])
def test_a_step_forward_alone_takes_nothing_back(kind):
    world = scheduled(kind)
    world.set_clock(6 * HOUR)
    pass_time(world, 120)

    assert not alerts(world)
    goes_on(world)


@settings(max_examples=8)
@given(
    kind=st.sampled_from(sorted(SCHEDULES)),
    missed=st.sampled_from(["latest", "skip", "all"]),
    steps=st.lists(
        st.tuples(st.integers(1, 20), st.integers(-2, 2), st.booleans()), min_size=1, max_size=4
    ),
)
def test_every_schedule_continues_whatever_the_clock_steps(kind, missed, steps):
    world = scheduled(kind, missed)
    for tens, hours, restarts in steps:
        pass_time(world, 10 * tens)
        world.set_clock(hours * HOUR)
        if restarts:
            world.restart()

    if kind == "dates" and abs(world.now - BEGIN) > 48 * HOUR * SECOND:
        return  # all dates are in the past, or all in the future
    goes_on(world)
