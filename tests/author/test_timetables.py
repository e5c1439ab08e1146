"""Custom timetables: their definition, and their fire times in a host."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

import msgspec
import pytest

from aioflow import dag, task
from aioflow.author.dag_spec import describe
from aioflow.author.schedule import TimetableTrigger, is_timetable, timetable_trigger
from aioflow.author.trigger import construct, prepare
from aioflow.errors import BadSchedule
from aioflow.testing import Sim

HOUR = timedelta(hours=1)
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


@dataclass
class WorkingHours:
    """Every full hour of working days from nine to five."""

    first: int = 9
    last: int = 17

    def next_after(self, moment: datetime) -> datetime | None:
        fire_time = moment.replace(minute=0, second=0, microsecond=0) + HOUR
        while fire_time.weekday() > 4 or not self.first <= fire_time.hour <= self.last:
            fire_time += HOUR
        return fire_time


@dataclass
class Broken:
    back: bool

    def next_after(self, moment):
        return moment - HOUR if self.back else moment.replace(tzinfo=None) + HOUR


@task
def work() -> None: ...


@dag(schedule=WorkingHours(last=10))
def office() -> None:
    work()


def made(timetable, **fields) -> TimetableTrigger:
    trigger = timetable_trigger(
        timetable, **{"catchup": False, "begin": None, "end": None, **fields}
    )
    trigger.load(lambda _: type(timetable))
    prepare(trigger, since=NOON)
    return trigger


def test_objects_that_are_timetables():
    assert is_timetable(WorkingHours())
    assert not is_timetable(WorkingHours)
    assert not is_timetable("@daily")
    assert not is_timetable(None)


def test_it_is_described_with_its_fields():
    spec, failures = describe(office)

    assert failures == []
    assert spec.trigger.is_timetable
    assert spec.trigger.name == "WorkingHours"
    assert spec.trigger.class_path.endswith(":WorkingHours")  # stalls and quarantine are its own
    trigger = cast("TimetableTrigger", construct(TimetableTrigger, spec.trigger.kwargs or b""))
    assert trigger.timetable.endswith(":WorkingHours")
    assert msgspec.msgpack.decode(trigger.fields) == {"first": 9, "last": 10}
    assert trigger.code


@pytest.mark.parametrize("back", [True, False])
def test_a_fire_time_that_is_none_fails_it_in_plain_words(back):
    with pytest.raises(BadSchedule, match="gave"):
        made(Broken(back))._fire_time(NOON)


def test_behind_its_end_there_is_no_fire_time():
    end = int((NOON + 2 * HOUR).timestamp()) * 1_000_000
    trigger = made(WorkingHours(), end=end)

    assert trigger._fire_time(NOON + HOUR) == NOON + 2 * HOUR
    assert trigger._fire_time(NOON + 2 * HOUR) is None


async def test_each_fire_time_starts_one_run_that_stands_for_it(sim: Sim):
    await sim.schedule(office)
    await sim.advance("48h")
    await sim.crash()
    await sim.advance("24h")

    found = sim.look(lambda api: api.list_runs(dag_id="office", limit=100))
    dates = sorted(datetime.fromisoformat(run.logical_date or "") for run in found)
    assert [f"{date:%a %H}" for date in dates] == [
        "Thu 09",
        "Thu 10",
        "Fri 09",
        "Fri 10",
    ]
    assert all(run.cause == "event" for run in found)


@dag(schedule=WorkingHours(last=10), start_date=datetime(2020, 1, 1, tzinfo=UTC))
def old_office() -> None:
    work()


async def test_a_new_dag_with_a_past_start_runs_the_latest_fire_time_at_once(sim: Sim):
    await sim.schedule(old_office)
    await sim.advance("12h")

    found = sim.look(lambda api: api.list_runs(dag_id="old_office", limit=100))
    dates = sorted(datetime.fromisoformat(run.logical_date or "") for run in found)
    assert [f"{date:%a %H}" for date in dates] == ["Wed 10", "Thu 09", "Thu 10"]


@dataclass
class Minutely:
    def next_after(self, moment: datetime) -> datetime | None:
        return moment.replace(second=0, microsecond=0) + timedelta(minutes=1)


@pytest.mark.parametrize("years", [0, 1, 36])
@pytest.mark.parametrize("timetable", [Minutely(), WorkingHours(last=9)])
def test_the_latest_fire_time_is_found_without_all_those_before(timetable, years):
    begin = int((NOON - timedelta(days=365 * years, hours=4)).timestamp()) * 1_000_000
    trigger = made(timetable, begin=begin)

    after = trigger._begins_after()

    assert 1 <= len(_fire_times_between(timetable, after, NOON)) <= 3


def _fire_times_between(timetable, after, until):
    fire_times = []
    while (after := timetable.next_after(after)) <= until:
        fire_times.append(after)
    return fire_times


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="no-start"),
        pytest.param({"begin": NOON - 2 * HOUR}, id="no-fire-time-since"),
        pytest.param({"begin": NOON - 24 * HOUR, "end": NOON - HOUR}, id="over"),
    ],
)
def test_without_missed_fire_times_it_starts_when_it_is_known(fields):
    fields = {name: int(at.timestamp()) * 1_000_000 for name, at in fields.items()}

    assert made(WorkingHours(last=9), **fields)._begins_after() == NOON


async def test_its_preview_starts_after_the_start_date_and_ends_with_the_end_date():
    begin, end = (NOON + 2 * HOUR, NOON + 4 * HOUR)
    microseconds = {"begin": begin, "end": end}
    fields = {name: int(at.timestamp()) * 1_000_000 for name, at in microseconds.items()}

    fire_times = await made(WorkingHours(), **fields).preview(NOON, 100)

    assert fire_times == [NOON + 2 * HOUR, NOON + 3 * HOUR, NOON + 4 * HOUR]


async def test_it_previews_no_more_than_is_requested():
    assert await made(WorkingHours()).preview(NOON, 2) == [NOON + HOUR, NOON + 2 * HOUR]
    assert await made(WorkingHours()).preview(NOON, 0) == []


@pytest.mark.parametrize("back", [True, False])
async def test_a_wrong_preview_fails_with_a_clear_message(back):
    with pytest.raises(BadSchedule, match="gave"):
        await made(Broken(back)).preview(NOON, 1)
