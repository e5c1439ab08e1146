"""Schedules: each fire time has one run, and a late one causes an alert."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from aioflow.core.runs import deadlines
from aioflow.core.runs.create import QUEUED_RUNS, has_fire_time_due
from aioflow.core.runs.deadlines import SCHEDULE_LATE
from aioflow.core.scheduling.timetable import starts_at
from aioflow.model.dag import DagSpec, ScheduleSpec, TaskSpec
from aioflow.protocol.inputs import FileDeleted
from aioflow.protocol.outbox import Alert
from aioflow.protocol.requests import SetPaused
from tests.core.world import SECOND, World

MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
LATE_US = 5 * MINUTE
MINUTELY = ScheduleSpec(every_us=MINUTE)
ON_AND_ON = ScheduleSpec(gap_us=SECOND)


def spec(schedule: ScheduleSpec | None, dag_id: str = "dag", **fields: Any) -> DagSpec:
    tasks = (TaskSpec(task_id="work"),)
    return DagSpec(dag_id=dag_id, file="dag.py", tasks=tasks, schedule=schedule, **fields)


def made(schedule: ScheduleSpec, **fields: Any) -> World:
    world = World(cpu_slots=50)
    world.memory.late_after_us = LATE_US
    world.load(spec(schedule, **fields))
    return world


def fire_times_run(world: World) -> list[int]:
    return sorted(run.logical_date for run in world.rows.runs.values() if run.logical_date)


def told(world: World) -> list[str]:
    alerts = [msgspec.msgpack.decode(found.body, type=Alert) for found in world.alerts()]
    return [alert.message for alert in alerts if alert.reason == SCHEDULE_LATE]


def come_back(world: World, after_us: int) -> None:
    """Restart the daemon after a downtime."""
    world.now += after_us
    world.restart()
    world.memory.late_after_us = LATE_US
    world.pass_time(0)


def work_off(world: World) -> None:
    """Create and end runs until no fire time is due."""
    for _ in range(1_000):
        before = len(world.rows.runs)
        world.finish_all()
        world.pass_time(0)
        if len(world.rows.runs) == before and not world.memory.runs:
            return
    raise AssertionError("it never ends")


# ── once, on given dates, by several schedules ──────────────────────────────────────────


def test_a_once_schedule_runs_as_soon_as_it_is_known_and_never_again():
    world = made(ScheduleSpec(once=True))
    world.pass_time(0)
    assert fire_times_run(world) == [world.now]

    world.finish_all()
    world.load(spec(ScheduleSpec(once=True), tags=("edited",)), version="v2")
    come_back(world, DAY)
    world.turn(FileDeleted("dag.py"))
    world.load(spec(ScheduleSpec(once=True)), version="v3")
    world.load(spec(ScheduleSpec(once=True), timezone="Europe/Berlin"), version="v4")
    world.pass_time(60)

    assert len(fire_times_run(world)) == 1
    assert not told(world)


def test_a_once_schedule_runs_at_its_start_date_however_late():
    world = World()
    begins = world.now + HOUR
    world.load(spec(ScheduleSpec(once=True), start_date=begins))
    world.pass_time(60)
    assert not world.rows.runs

    come_back(world, 3 * HOUR)

    assert fire_times_run(world) == [begins]


def test_each_date_has_its_run():
    world = World()
    dates = tuple(world.now + n * HOUR for n in (-1, 1, 5))
    world.load(spec(ScheduleSpec(dates=dates)))

    for _ in range(10):
        world.pass_time(3600)
        world.finish_all()

    assert fire_times_run(world) == list(dates[1:])
    assert world.memory.dags["dag"].next_run_at is None


@pytest.mark.parametrize(
    "schedule",
    [
        ScheduleSpec(every_us=HOUR),
        ScheduleSpec(cron="0 * * * *"),
        ScheduleSpec(parts=(ScheduleSpec(every_us=HOUR), ScheduleSpec(cron="0 3 * * *"))),
        ScheduleSpec(dates=tuple(range(0, 500_000 * HOUR, HOUR))),
    ],
)
@pytest.mark.parametrize("years", [1, 30])
def test_a_new_dag_with_a_past_start_runs_the_latest_fire_time_at_once(schedule, years):
    world = World()
    latest = world.now // HOUR * HOUR
    world.load(spec(schedule, start_date=world.now - years * 365 * DAY))

    world.pass_time(0)
    assert fire_times_run(world) == [latest]
    assert not told(world)

    world.finish_all()
    world.load(spec(schedule, start_date=world.now - DAY, tags=("edited",)), version="v2")
    come_back(world, 0)
    assert fire_times_run(world) == [latest]

    world.pass_time(3600)
    assert fire_times_run(world) == [latest, latest + HOUR]


def test_a_fire_time_is_the_latest_also_where_the_dag_begins_just_then():
    world = World()
    latest = world.now // HOUR * HOUR
    world.load(spec(ScheduleSpec(every_us=HOUR), start_date=latest))

    world.pass_time(0)

    assert fire_times_run(world) == [latest]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="no-start"),
        pytest.param({"start_date": 1_700_000_000 * SECOND - 1}, id="no-fire-time-since-the-start"),
        pytest.param({"start_date": 1_700_000_000 * SECOND + HOUR}, id="start-to-come"),
        pytest.param({"start_date": 0, "skips_missed": True}, id="skip"),
        pytest.param({"start_date": 0, "end_date": DAY}, id="over"),
    ],
)
def test_a_new_dag_without_missed_fire_times_runs_nothing_at_once(fields):
    world = World()
    world.load(spec(ScheduleSpec(every_us=HOUR), **fields))

    world.pass_time(0)

    assert not fire_times_run(world)


def test_a_start_that_is_edited_into_the_past_makes_no_run_of_what_was_dealt_with():
    world = World()
    world.load(spec(ScheduleSpec(every_us=HOUR)))
    world.pass_time(0)

    world.load(spec(ScheduleSpec(every_us=HOUR), start_date=world.now - DAY), version="v2")
    world.pass_time(0)

    assert not fire_times_run(world)


def test_dates_that_were_known_too_late_are_caught_up_where_that_is_wanted():
    world = World()
    dates = tuple(world.now + n * HOUR for n in (-3, -1, 1))
    world.load(spec(ScheduleSpec(dates=dates), catchup=True))

    work_off(world)

    assert fire_times_run(world) == list(dates[:2])


def test_a_date_that_is_added_runs_and_none_runs_again():
    world = World()
    first, second = world.now + HOUR, world.now + 2 * HOUR
    world.load(spec(ScheduleSpec(dates=(first,)), catchup=True))
    world.pass_time(5400)
    world.finish_all()

    world.load(spec(ScheduleSpec(dates=(first, second)), catchup=True), version="v2")
    world.pass_time(3600)

    assert fire_times_run(world) == [first, second]


def test_schedules_that_are_joined_have_one_run_for_an_instant():
    world = World(cpu_slots=50)
    parts = (ScheduleSpec(every_us=2 * HOUR), ScheduleSpec(every_us=3 * HOUR))
    world.now = 0
    world.load(spec(ScheduleSpec(parts=parts)))

    for _ in range(12):
        world.pass_time(3600)
        world.finish_all()

    assert fire_times_run(world) == [n * HOUR for n in (2, 3, 4, 6, 8, 9, 10, 12)]


# ── one run after the other ─────────────────────────────────────────────────────────────


def test_a_new_run_starts_as_soon_as_the_last_has_ended():
    world = made(ON_AND_ON)
    world.pass_time(0)
    begun = world.now
    world.pass_time(100)
    assert fire_times_run(world) == [begun]

    world.succeed("work")

    assert fire_times_run(world) == [begun, begun + 100 * SECOND]
    assert not told(world)


def test_runs_that_fail_at_once_leave_a_gap():
    world = made(ON_AND_ON)
    for _ in range(50):
        world.pass_time(0.1)
        world.finish_all()

    fire_times = fire_times_run(world)
    assert len(fire_times) == 5
    assert all(later - fire_time >= SECOND for fire_time, later in pairwise(fire_times))


def test_it_waits_for_a_run_that_a_person_has_started():
    world = made(ON_AND_ON)
    world.pass_time(0)
    world.succeed("work")
    by_hand = world.trigger()

    world.pass_time(30)
    assert len(fire_times_run(world)) == 1
    world.succeed("work")

    assert world.run_state(by_hand) == "success"
    assert len(fire_times_run(world)) == 2


@pytest.mark.parametrize("is_live", [True, False])
def test_one_run_follows_the_other_also_over_a_restart(is_live):
    world = made(ON_AND_ON)
    world.pass_time(0)
    if not is_live:
        world.succeed("work")

    come_back(world, HOUR)
    world.finish_all()
    world.pass_time(2)

    assert len(fire_times_run(world)) == 3
    assert sum(run.ended_at is None for run in world.rows.runs.values()) == 1


def test_a_clock_that_is_set_back_keeps_it_waiting_no_longer():
    world = made(ON_AND_ON)
    world.pass_time(0)
    world.now -= 2 * HOUR

    world.succeed("work")
    world.pass_time(1)

    assert len(fire_times_run(world)) == 2


def test_it_rests_while_it_is_paused_and_ends_with_its_end_date():
    world = made(ON_AND_ON)
    world.load(spec(ON_AND_ON, end_date=world.now + HOUR), version="v2")
    world.pass_time(0)
    world.ask(SetPaused(dag_id="dag", paused=True))
    world.succeed("work")
    world.pass_time(600)
    assert len(fire_times_run(world)) == 1

    world.ask(SetPaused(dag_id="dag", paused=False))
    world.pass_time(0)
    assert len(fire_times_run(world)) == 2
    world.pass_time(3600)
    world.finish_all()
    world.pass_time(60)

    assert len(fire_times_run(world)) == 2


# ── missed fire times ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"skips_missed": True}, 0, id="skip"),
        pytest.param({}, 1, id="latest"),
        pytest.param({"catchup": True}, 72, id="all"),
    ],
)
def test_fire_times_missed_in_three_days_run_as_the_dag_says(fields, expected):
    world = World(cpu_slots=50)
    world.now = 10 * DAY
    world.load(spec(ScheduleSpec(every_us=HOUR), start_date=world.now, **fields))
    world.pass_time(0)
    world.finish_all()
    begun = len(fire_times_run(world))

    come_back(world, 3 * DAY + 40 * SECOND)
    work_off(world)

    fire_times = fire_times_run(world)
    assert len(fire_times) - begun == expected
    assert len(fire_times) == len(set(fire_times))
    world.pass_time(3560)
    assert len(fire_times_run(world)) == len(fire_times) + 1


def test_the_last_fire_time_before_the_end_of_a_schedule_is_not_lost():
    world = World()
    world.now = 10 * DAY
    world.load(spec(MINUTELY, end_date=world.now + 10 * MINUTE))

    come_back(world, 3 * DAY)
    work_off(world)

    assert fire_times_run(world) == [10 * DAY + 10 * MINUTE]


def test_a_schedule_that_is_edited_goes_by_the_new_one_at_once():
    world = World()
    world.load(spec(ScheduleSpec(every_us=30 * DAY)))

    world.load(spec(MINUTELY), version="v2")
    world.pass_time(60)

    assert len(fire_times_run(world)) == 1


def test_a_start_date_that_was_far_ahead_and_is_taken_back_is_forgotten():
    world = World()
    world.load(spec(MINUTELY, start_date=world.now + 300 * DAY))
    world.load(spec(MINUTELY, start_date=world.now - DAY), version="v2")
    world.pass_time(60)

    assert len(fire_times_run(world)) == 1


def test_a_fire_time_that_was_skipped_keeps_no_other_schedule_waiting():
    world = World()
    world.load(spec(ScheduleSpec(every_us=30 * DAY), skips_missed=True))
    come_back(world, 31 * DAY)
    assert not fire_times_run(world)

    world.load(spec(MINUTELY), version="v2")
    world.pass_time(60)

    assert len(fire_times_run(world)) == 1


def test_a_fire_time_whose_turn_the_clock_outran_comes_all_the_same():
    world = made(MINUTELY)
    world.now += MINUTE
    due, world.armed = [wake.due for wake in world.armed], []
    world.now -= HOUR  # set back between the timer and the turn
    world.turn(*due)
    assert not world.rows.runs

    world.pass_time(3700)

    assert fire_times_run(world)


# ── jitter ──────────────────────────────────────────────────────────────────────────────


def test_a_run_starts_later_than_its_fire_time_by_a_share_of_the_jitter():
    schedule = ScheduleSpec(every_us=HOUR, jitter_us=30 * MINUTE)
    world = made(schedule)
    for _ in range(10 * 60):
        world.pass_time(60)
        world.finish_all()

    runs = sorted(world.rows.runs.values(), key=lambda run: run.run_no)
    assert len(runs) in {9, 10}
    delays = [run.created_at - (run.logical_date or 0) for run in runs]
    assert all(0 <= delay <= 31 * MINUTE for delay in delays)
    assert len(set(delays)) > 5
    for run in runs:
        starts = starts_at(schedule, "UTC", run.logical_date or 0, salt="dag")
        assert 0 <= run.created_at - starts <= MINUTE
        assert (run.logical_date or 0) % HOUR == 0


def test_two_dags_of_one_schedule_start_apart_and_the_same_again():
    schedule = ScheduleSpec(cron="0 3 * * *", jitter_us=HOUR)
    first, second = (starts_at(schedule, "UTC", 3 * HOUR, salt=name) for name in ("a", "b"))

    assert first != second
    assert first == starts_at(schedule, "UTC", 3 * HOUR, salt="a")
    joined = ScheduleSpec(parts=(schedule, ScheduleSpec(every_us=HOUR)))
    assert starts_at(joined, "UTC", 3 * HOUR, salt="a") == 3 * HOUR  # one of them waits for nothing
    assert starts_at(ScheduleSpec(parts=(schedule,)), "UTC", 3 * HOUR, salt="a") == first


def test_a_fire_time_whose_jitter_is_not_over_is_no_latest_one():
    schedule = ScheduleSpec(every_us=HOUR, jitter_us=30 * MINUTE)
    world = World()
    world.now = 100 * DAY
    world.load(spec(schedule))
    fire_times = [100 * DAY + n * HOUR for n in range(2, 60)]
    late = next(
        s for s in fire_times if starts_at(schedule, "UTC", s, salt="dag") - s > 20 * MINUTE
    )

    come_back(world, late + 10 * MINUTE - world.now)
    assert late not in fire_times_run(world)
    world.finish_all()
    world.pass_time(1800)

    assert fire_times_run(world)[-2:] == [late - HOUR, late]


# ── late runs ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fields", [{"skips_missed": True}, {}, {"catchup": True}])
def test_fire_times_missed_while_the_daemon_was_down_are_reported_once(fields):
    world = World(cpu_slots=50)
    world.memory.late_after_us = LATE_US
    world.load(spec(MINUTELY, start_date=world.now, **fields))
    world.pass_time(0)
    come_back(world, HOUR)
    work_off(world)

    assert len(told(world)) == 1
    assert "fire times of its schedule since" in told(world)[0]
    assert world.memory.schedules_late == 1
    come_back(world, MINUTE)
    assert len(told(world)) == 1
    come_back(world, HOUR)
    assert len(told(world)) == 2


def test_a_delayed_fire_time_is_alerted_when_it_is_late_and_not_again():
    world = made(MINUTELY, catchup=True, max_active_runs=1)
    for _ in range(QUEUED_RUNS + 1):
        world.pass_time(60)
    assert not told(world)
    for _ in range(4):
        world.pass_time(60)
    assert not told(world)

    for _ in range(30):
        world.pass_time(60)
    assert len(told(world)) == 1
    assert "are waiting already" in told(world)[0]

    come_back(world, MINUTE)
    work_off(world)
    assert len(told(world)) == 1
    assert len(fire_times_run(world)) == len(set(fire_times_run(world))) > QUEUED_RUNS + 30


def refuse_fire_time(world: World, dag_id: str) -> None:
    """Handle a fire time whose run cannot be created, as the engine does."""
    world.aside(lambda tx: deadlines.alert_if_refused(dag_id, "no such zone", tx))


def test_a_fire_time_that_is_refused_repeatedly_is_alerted_once():
    world = made(MINUTELY)
    fire_time = world.memory.dags["dag"].next_run_at or 0
    for minutes in (2, 7, 8, 9):
        world.now = fire_time + minutes * MINUTE
        refuse_fire_time(world, "dag")
        assert len(told(world)) == (minutes > 5)

    refuse_fire_time(world, "nobody")
    assert "it cannot be created: no such zone" in told(world)[0]


def test_paused_schedules_are_not_late():
    world = made(MINUTELY)
    world.ask(SetPaused(dag_id="dag", paused=True))
    world.pass_time(3600)
    world.ask(SetPaused(dag_id="dag", paused=False))
    world.pass_time(0)
    assert len(fire_times_run(world)) == 1
    world.turn(FileDeleted("dag.py"))
    world.pass_time(3600)
    world.load(spec(MINUTELY))
    world.pass_time(0)

    assert len(fire_times_run(world)) == 2
    assert not told(world)


def test_a_schedule_that_is_prolonged_is_not_late():
    world = made(MINUTELY, end_date=1_700_000_000 * SECOND)
    world.now += 3 * DAY

    world.load(spec(MINUTELY, end_date=world.now + DAY), version="v2")
    world.pass_time(0)

    assert len(fire_times_run(world)) == 1
    assert not told(world)


def test_fire_times_before_a_dag_was_known_are_not_late():
    world = World(cpu_slots=50)
    world.memory.late_after_us = LATE_US
    world.load(spec(MINUTELY, catchup=True, start_date=world.now - HOUR))

    work_off(world)

    assert len(fire_times_run(world)) == 60
    assert not told(world)


def test_nothing_is_alerted_without_a_limit_for_lateness():
    world = made(MINUTELY)
    world.memory.late_after_us = None
    world.now += DAY
    world.restart()
    world.pass_time(0)

    assert len(fire_times_run(world)) == 1
    assert not told(world)


# ── whether anything is left to do ──────────────────────────────────────────────────────


def test_a_fire_time_to_come_is_no_work_but_one_that_has_come_is():
    world = made(MINUTELY)
    assert not has_fire_time_due(world.memory, world.now)

    assert has_fire_time_due(world.memory, world.now + MINUTE)
    world.pass_time(60)
    assert not has_fire_time_due(world.memory, world.now)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"end_date": 0}, id="has-ended"),
        pytest.param({"start_date": 10_000 * DAY * 10}, id="has-not-begun"),
    ],
)
def test_a_schedule_that_rests_is_no_work(fields):
    world = made(MINUTELY, **fields)

    assert not has_fire_time_due(world.memory, world.now + DAY)


def test_nor_is_one_that_is_paused_or_gone():
    world = made(MINUTELY)
    world.ask(SetPaused(dag_id="dag", paused=True))
    assert not has_fire_time_due(world.memory, world.now + DAY)
    world.ask(SetPaused(dag_id="dag", paused=False))
    assert has_fire_time_due(world.memory, world.now + DAY)

    world.turn(FileDeleted("dag.py"))

    assert not has_fire_time_due(world.memory, world.now + DAY)


def test_fire_times_to_be_caught_up_are_work_until_the_last_has_its_run():
    world = made(MINUTELY)
    world.load(spec(MINUTELY, catchup=True, start_date=world.now - HOUR), version="v2")
    assert not has_fire_time_due(world.memory, world.now)  # known earlier: nothing was missed

    world.load(spec(MINUTELY, "new", catchup=True, start_date=world.now - HOUR), version="v3")

    assert has_fire_time_due(world.memory, world.now)
    work_off(world)
    assert not has_fire_time_due(world.memory, world.now)


def test_a_daemon_that_ends_when_it_is_idle_runs_what_never_ends_once():
    world = World()
    world.memory.rests_after = world.now
    world.load(spec(ON_AND_ON))
    assert has_fire_time_due(world.memory, world.now)
    world.pass_time(0)
    world.finish_all()
    world.pass_time(60)

    assert len(fire_times_run(world)) == 1
    assert not has_fire_time_due(world.memory, world.now)
