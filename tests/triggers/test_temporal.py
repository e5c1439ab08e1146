from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from aioflow import DagError, TriggerEvent, Unserializable
from aioflow.author.trigger import construct, serialize, set_wanted
from aioflow_triggers.temporal import CronTrigger, DateTimeTrigger, TimeDeltaTrigger, TimeHeap
from tests.triggers.conftest import NOON

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

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

    # The trigger is hosted again after 50 minutes, so ten minutes are left.
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
def test_an_invalid_duration_is_refused_where_it_is_written(delta):
    with pytest.raises((DagError, Unserializable), match="delta"):
        TimeDeltaTrigger(delta)


def test_a_moment_may_be_text_and_is_the_same_moment():
    text: Any = "2030-01-01T12:00:00+01:00"
    trigger = DateTimeTrigger(text)

    assert trigger == DateTimeTrigger(datetime(2030, 1, 1, 11, tzinfo=UTC))
    assert construct(DateTimeTrigger, serialize(trigger)[1]) == trigger


def test_a_moment_without_a_zone_is_refused_where_it_is_written():
    with pytest.raises(ValueError, match="time zone"):
        DateTimeTrigger(datetime(2030, 1, 1))  # noqa: DTZ001 - the point


# ── the ticks of a cron ─────────────────────────────────────────────────────────────────


async def ticks_of(trigger, count):
    async with aclosing(trigger.run()) as events:
        return [await anext(events) for _ in range(count)]


@virtual
async def test_a_cron_ticks_in_its_zone_from_when_its_task_began_to_wait(hosted, wall_clock):
    loop = asyncio.get_running_loop()
    began = loop.time()

    # 12:00 UTC is 17:30 in Kolkata.
    events = await ticks_of(hosted(CronTrigger("0 3 * * *", "Asia/Kolkata")), 2)

    assert [event.payload for event in events] == [
        datetime(2030, 1, 1, 21, 30, tzinfo=UTC),
        datetime(2030, 1, 2, 21, 30, tzinfo=UTC),
    ]
    assert events[0].key == "2030-01-01T21:30:00+00:00"
    assert loop.time() - began == pytest.approx(33.5 * 3600)


@virtual
async def test_a_tick_at_the_instant_one_begins_to_wait_is_not_waited_for(hosted, wall_clock):
    (event,) = await ticks_of(hosted(CronTrigger("@hourly")), 1)

    assert event.payload == NOON + timedelta(hours=1)


@virtual
async def test_hosted_again_a_cron_continues_after_its_last_tick(hosted, wall_clock):
    loop = asyncio.get_running_loop()
    began = loop.time()
    last = NOON - timedelta(minutes=45)
    trigger = hosted(
        CronTrigger("*/15 * * * *"),
        since=NOON - timedelta(days=1),
        last=TriggerEvent(last, key=last.isoformat()),
    )

    events = await ticks_of(trigger, 4)

    # Two fire times were missed, one is due now, and one is in the future.
    assert [(event.payload - NOON) / timedelta(minutes=15) for event in events] == [-2, -1, 0, 1]
    assert loop.time() - began == pytest.approx(900)


@virtual
async def test_a_cron_changes_clocks_as_schedules_do(hosted, wall_clock):
    since = datetime(2026, 3, 7, 12, tzinfo=UTC)

    events = await ticks_of(hosted(CronTrigger("30 2 * * *", "America/New_York"), since=since), 2)

    # 02:30 does not exist on the 8th: the first valid time is 03:00 -04:00.
    assert [event.payload.isoformat() for event in events] == [
        "2026-03-08T07:00:00+00:00",
        "2026-03-09T06:30:00+00:00",
    ]


@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        pytest.param("often", "UTC", id="no-cron"),
        pytest.param("* * * * * * *", "UTC", id="seven-fields"),
        pytest.param("@often", "UTC", id="no-such-name"),
        pytest.param("0 0 30 2 *", "UTC", id="no-such-day"),
        pytest.param("@daily", "Mars/Olympus", id="no-such-zone"),
    ],
)
def test_an_invalid_cron_is_refused_where_it_is_written(expression, zone):
    with pytest.raises(DagError):
        CronTrigger(expression, zone)


def test_a_cron_survives_storing():
    path, stored = serialize(CronTrigger("@daily", "Asia/Kolkata"))

    assert path == "aioflow_triggers.temporal:CronTrigger"
    assert construct(CronTrigger, stored) == CronTrigger("@daily", "Asia/Kolkata")


# ── many instants in one watch ──────────────────────────────────────────────────────────


class Seated:
    """A shared poller of points in time, as in a host, and the times it has yielded."""

    def __init__(self):
        self.wants = {}
        self.found = []
        self.watch = TimeHeap()
        set_wanted(self.watch, self.wants.keys())

    def join(self, *seconds):
        for wanted in map(instant, seconds):
            self.wants[wanted] = None
            self.watch.joined(wanted)

    def leave(self, *seconds):
        for wanted in map(instant, seconds):
            del self.wants[wanted]
            self.watch.left(wanted)

    async def poll(self, count):
        """Take ``count`` events. Return after how many seconds of the loop each came."""
        loop = asyncio.get_running_loop()
        began, came = loop.time(), []
        run: Any = self.watch.run()
        async with aclosing(run) as found:
            for _ in range(count):
                wanted, event = await anext(found)
                del self.wants[wanted]
                self.watch.left(wanted)
                assert event.key == event.payload.isoformat()
                self.found.append((event.payload - NOON).total_seconds())
                came.append(loop.time() - began)
        return came


def instant(seconds):
    return (NOON + timedelta(seconds=seconds) - EPOCH) // timedelta(microseconds=1)


@virtual
async def test_instants_come_in_order_whatever_the_order_they_were_wanted_in(wall_clock):
    seated = Seated()
    seated.join(300, 10, 200.5, 10.0001)

    came = await seated.poll(4)

    assert seated.found == [10, 10.0001, 200.5, 300]
    assert came == pytest.approx(seated.found, abs=0.0011)


@virtual
async def test_one_that_comes_later_and_is_due_sooner_is_not_overslept(wall_clock):
    seated = Seated()
    seated.join(50)
    asyncio.get_running_loop().call_later(5, seated.join, 7)

    came = await seated.poll(2)

    assert came == pytest.approx([7, 50], abs=0.0011)


@virtual
async def test_a_cancelled_wait_does_not_fire_and_is_not_stored(wall_clock):
    seated = Seated()
    seated.join(*range(1, 5_000))
    seated.leave(*range(2, 5_000))
    seated.join(3)
    seated.leave(3)
    seated.join(3)

    assert await seated.poll(2) == pytest.approx([1, 3], abs=0.0011)
    assert len(seated.watch._heap) < 1_100


@virtual
async def test_a_loop_sleeps_whole_milliseconds_and_never_ends_early(wall_clock):
    seated = Seated()
    seated.join(1.0001, 1.0004)

    came = await seated.poll(2)

    assert came == pytest.approx([1.001, 1.001], abs=1e-5)


async def test_the_watch_of_instants_looks_when_the_first_of_them_comes():
    watch = TimeHeap()
    assert watch.next_check() is None

    for second in (2, 1, 3):
        watch.joined(second * 1_000_000)

    assert watch.next_check() == EPOCH + timedelta(seconds=1)


# ── a wall clock that is set ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("hours", [-2, 6])
@virtual
async def test_a_length_of_time_is_not_moved_by_a_clock_that_is_set(hosted, wall_clock, hours):
    loop = asyncio.get_running_loop()
    began = loop.time()
    loop.call_later(600, wall_clock.append, timedelta(hours=hours))

    (event,) = await events_of(hosted(TimeDeltaTrigger("1h")))

    assert loop.time() - began == pytest.approx(3600)
    assert event.payload == NOON + timedelta(hours=1)


@virtual
async def test_lengths_that_were_hosted_under_one_clock_share_a_watch(hosted):
    shares = [hosted(TimeDeltaTrigger(f"{n}h"), NOON - timedelta(hours=n)).share() for n in (1, 2)]

    assert len({(share.watch, share.of) for share in shares}) == 1


@virtual
async def test_a_cron_continues_when_a_clock_that_was_wrong_is_set_back(hosted, wall_clock):
    loop = asyncio.get_running_loop()
    trigger = hosted(CronTrigger("*/10 * * * *"))
    loop.call_later(60, wall_clock.append, timedelta(hours=6))
    loop.call_later(63, wall_clock.append, timedelta(hours=-6))
    came: dict[datetime, float] = {}  # each has a key: a repeated one counts once
    async with aclosing(trigger.run()) as events:
        while loop.time() < 3600:
            event = await anext(events)
            came[event.payload] = loop.time()

    ours = {tick: round(at) for tick, at in came.items() if tick <= NOON + timedelta(hours=1)}
    assert ours == {NOON + timedelta(minutes=10 * n): 600 * n for n in range(1, 7)}
