from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from aioflow import DagError
from aioflow.author.trigger import construct, serialize
from aioflow_triggers.temporal import DateTimeTrigger, TimeDeltaTrigger
from tests.triggers.conftest import NOON

virtual = pytest.mark.asyncio(loop_factories=["virtual"])


async def events_of(trigger):
    return [event async for event in trigger.run()]


@virtual
async def test_a_moment_is_waited_for(hosted, wall_clock):
    loop = asyncio.get_running_loop()
    began = loop.time()

    (event,) = await events_of(hosted(DateTimeTrigger(NOON + timedelta(hours=14))))

    assert loop.time() - began == pytest.approx(14 * 3600)
    assert event.payload == NOON + timedelta(hours=14)
    assert event.key == "2030-01-02T02:00:00+00:00"


@virtual
async def test_a_moment_that_has_passed_fires_at_once(hosted, wall_clock):
    loop = asyncio.get_running_loop()
    began = loop.time()

    await events_of(hosted(DateTimeTrigger(NOON - timedelta(days=1))))

    assert loop.time() == began


@virtual
async def test_a_moment_in_another_zone_is_the_same_moment(hosted, wall_clock):
    there = timezone(timedelta(hours=5, minutes=30))

    (event,) = await events_of(hosted(DateTimeTrigger(NOON.astimezone(there))))

    assert event.payload == NOON
    assert event.payload.tzinfo is UTC


@virtual
async def test_a_clock_that_is_set_forward_ends_the_wait_within_a_minute(hosted, wall_clock):
    loop = asyncio.get_running_loop()
    began = loop.time()
    loop.call_later(100, wall_clock.append, timedelta(days=1))

    await events_of(hosted(DateTimeTrigger(NOON + timedelta(hours=14))))

    assert 100 <= loop.time() - began <= 160


@virtual
async def test_a_length_of_time_counts_from_when_the_task_began_to_wait(hosted, wall_clock):
    loop = asyncio.get_running_loop()
    began = loop.time()

    # Hosted again 50 minutes after that: ten are left.
    trigger = hosted(TimeDeltaTrigger("1h"), since=NOON - timedelta(minutes=50))
    (event,) = await events_of(trigger)

    assert loop.time() - began == pytest.approx(600)
    assert event.payload == NOON + timedelta(minutes=10)


@pytest.mark.parametrize("delta", [timedelta(hours=1), 3600, 3600.0, "1h", "60m"])
@virtual
async def test_every_way_to_write_an_hour_survives_storing(hosted, wall_clock, delta):
    loop = asyncio.get_running_loop()
    began = loop.time()
    path, stored = serialize(TimeDeltaTrigger(delta))

    await events_of(hosted(construct(TimeDeltaTrigger, stored)))

    assert path == "aioflow_triggers.temporal:TimeDeltaTrigger"
    assert loop.time() - began == pytest.approx(3600)


@pytest.mark.parametrize("delta", ["soon", -1, None, True])
def test_what_is_no_length_of_time_is_refused_where_it_is_written(delta):
    with pytest.raises(DagError, match="delta"):
        TimeDeltaTrigger(delta)


def test_a_moment_without_a_zone_is_refused_where_it_is_written():
    with pytest.raises(ValueError, match="time zone"):
        DateTimeTrigger(datetime(2030, 1, 1))  # noqa: DTZ001 - the point
