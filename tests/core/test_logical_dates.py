"""A logical date must exist in the calendar of every time zone; other dates are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, available_timezones

import pytest

from aioflow.errors import RequestError
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.timestamps import EARLIEST_DATE, LATEST_DATE, to_datetime, to_timestamp
from tests.core.world import World

DAG = DagSpec(dag_id="dag", file="dag.py", tasks=(TaskSpec(task_id="a"),))
BEYOND = [
    to_timestamp(datetime.max.replace(tzinfo=UTC)),  # rounded to seconds it is in the year 10000
    to_timestamp(datetime.min.replace(tzinfo=UTC)),
    LATEST_DATE + 1,
    EARLIEST_DATE - 1,
    2**62,
    -(2**62),
]


@pytest.mark.parametrize("at", BEYOND)
def test_a_logical_date_that_some_time_zone_does_not_have_is_refused(at):
    world = World()
    world.load(DAG)

    with pytest.raises(RequestError, match="between 0001-01-02 and 9999-12-30"):
        world.trigger(logical_date=at)

    assert not world.rows.runs


def test_the_first_and_the_last_date_are_dates_of_runs():
    world = World()
    world.load(DAG)

    for at in (EARLIEST_DATE, LATEST_DATE):
        world.trigger(logical_date=at)

    ids = sorted(run.run_id.split(".")[1] for run in world.rows.runs.values())
    assert ids == ["00010102T000000Z", "99991230T235959Z"]


def test_every_time_zone_has_the_first_and_the_last_date():
    years = {
        (zone, to_datetime(at).astimezone(ZoneInfo(zone)).year)
        for zone in available_timezones()
        for at in (EARLIEST_DATE, LATEST_DATE)
    }

    assert {(zone, year) for zone, year in years if year not in {1, 9999}} == set()
    assert {zone for zone, _ in years} == available_timezones()
