"""Three years of cron in zones with unusual clock changes, compared with an independent walker.

The walker shares no code with the timetable. It parses expressions itself and has a single rule:
walk through all minutes that exist. Fixed times fire in the first minute in which the clock has
reached their reading; wildcards fire in each minute whose reading they name. To be fast, the walker
treats the minutes of one offset together, day by day; a test checks that this is equivalent.
"""

from __future__ import annotations

import calendar
import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest

from aioflow.core.scheduling.timetable import fire_times_between, latest_fire_time
from aioflow.model.dag import ScheduleSpec
from tests.sampling import sampled

MINUTE = 60_000_000
HOUR, DAY = 60, 1440  # minutes
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WEEKDAYS = {name: day for day, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}

# Each zone, with the first of three years that contain its unusual change.
ZONES = {
    "Europe/Berlin": 2025,
    "America/New_York": 2006,  # the dates of the changes moved in 2007
    "Australia/Lord_Howe": 2024,  # half an hour
    "Africa/Cairo": 2013,  # at midnight, and four times in 2014
    "America/St_Johns": 2010,  # one minute after midnight until 2011
    "Asia/Kathmandu": 1985,  # a quarter of an hour, once
    "Pacific/Apia": 2010,  # 30 December 2011 never was
}
ODD = "Pacific/Apia"
SAMPLED_ZONES = sampled(ZONES, {"Europe/Berlin", "America/St_Johns", ODD})
FIXED = [
    "0 0 * * *", "1 0 * * *", "30 0 * * *", "30 1 * * *", "30 2 * * *", "45 2 * * *", "0 3 * * *",
    "59 23 * * *", "15 1,2,3 * * *", "0,30 2 * * *", "0 12 * * MON-FRI", "5 0 1 * *",
    "0 0 L * *", "0 2 * * SUN", "0 9 * * MON#2", "30 2 1 * MON", "20 2 * 3-11/2 0L",
]  # fmt: skip
WILD = ["*/30 2 * * *", "0 */6 * * *", "*/20 0 * * SAT,SUN"]
DAILY = [expression for expression in FIXED if expression.endswith(" * * *")][:8]


# ── the walker ──────────────────────────────────────────────────────────────────────────


def values(field: str, least: int, most: int) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        low = least if first == "*" else WEEKDAYS.get(first) if first in WEEKDAYS else int(first)
        high = most if first == "*" else low
        if last:
            high = WEEKDAYS[last] if last in WEEKDAYS else int(last)
        assert low is not None
        assert high is not None
        found.update(range(low, high + 1, int(step or 1)))
    return found


def day_test(day_of_month: str, month: str, day_of_week: str) -> Callable[[date], bool]:
    months = values(month, 1, 12)

    def by_month(day: date) -> bool:
        if day_of_month == "L":
            return day.day == calendar.monthrange(day.year, day.month)[1]
        return day.day in values(day_of_month, 1, 31)

    def by_week(day: date) -> bool:
        weekday = day.isoweekday() % 7
        if day_of_week.endswith("L"):
            return weekday == int(day_of_week[:-1]) and (day + timedelta(7)).month != day.month
        name, _, nth = day_of_week.partition("#")
        return weekday in values(name, 0, 6) and nth in {"", str((day.day + 6) // 7)}

    def test(day: date) -> bool:
        if day.month not in months:
            return False
        if day_of_month == "*" or day_of_week == "*":
            return by_month(day) and by_week(day)
        return by_month(day) or by_week(day)

    return test


class Expression:
    def __init__(self, text: str) -> None:
        minute, hour, *days = text.split()
        self.is_fixed = minute[0] != "*" and hour[0] != "*"
        self._of_day = sorted(
            60 * h + m for h in values(hour, 0, 23) for m in values(minute, 0, 59)
        )
        self._is_named = cache(day_test(*days))

    def readings(self, first: int, last: int) -> Iterator[int]:
        """Yield every named wall-clock minute in ``[first, last)``, even if it does not exist."""
        for number in range(first // DAY, last // DAY + 1):
            if self._is_named(date(1970, 1, 1) + timedelta(number)):
                for minute in self._of_day:
                    if first <= number * DAY + minute < last:
                        yield number * DAY + minute


def offset(zone: str, minute: int) -> int:
    at = (EPOCH + timedelta(minutes=minute)).astimezone(ZoneInfo(zone)).utcoffset()
    assert at is not None
    return at // timedelta(minutes=1)


@cache
def stretches(zone: str, first: int, last: int) -> list[tuple[int, int, int]]:
    """Split the UTC minutes ``[first, last)`` where the offset changes: begin, end, offset."""
    found, begin, known = [], first, offset(zone, first)
    for hour in range(first, last, HOUR):
        if offset(zone, hour + HOUR) == known:
            continue
        for minute in range(hour, hour + HOUR):
            if offset(zone, minute + 1) != known:
                found.append((begin, minute + 1, known))
                begin, known = minute + 1, offset(zone, minute + 1)
    return [*found, (begin, last, known)]


def walk(text: str, zone: str, first: int, last: int) -> list[int]:
    """Return every UTC minute in ``[first, last)`` in which the expression fires."""
    expression, fired = Expression(text), []
    reached = first + offset(zone, first)
    for begin, end, ahead in stretches(zone, first, last):
        low, high = begin + ahead, end + ahead
        if expression.is_fixed:
            jumped = any(True for _ in expression.readings(reached, low + 1))
            fired += [begin] if low > reached and jumped else []
            low = max(low + (low > reached), reached)
            reached = max(reached, high)
        fired += [reading - ahead for reading in expression.readings(low, high)]
    return fired


def walk_each_minute(text: str, zone: str, first: int, last: int) -> list[int]:
    expression, fired = Expression(text), []
    reached = first + offset(zone, first)
    for minute in range(first, last):
        reading = minute + offset(zone, minute)
        from_reading = reached if expression.is_fixed else reading
        if any(True for _ in expression.readings(from_reading, reading + 1)):
            fired.append(minute)
        reached = max(reached, reading + 1)
    return fired


# ── the walker ──────────────────────────────────────────────────────────────────────────


def years(zone: str) -> tuple[int, int]:
    year = ZONES[zone]
    first, last = (datetime(y, 1, 1, tzinfo=UTC) for y in (year, year + 3))
    return (first - EPOCH) // timedelta(minutes=1), (last - EPOCH) // timedelta(minutes=1)


def changes(zone: str) -> list[int]:
    return [end for _, end, _ in stretches(zone, *years(zone))[:-1]]


@cache
def ours(text: str, zone: str, first: int, last: int) -> list[int]:
    fire_times = fire_times_between(
        ScheduleSpec(cron=text),
        zone,
        after=first * MINUTE - 1,
        until=last * MINUTE - 1,
        limit=10**9,
    )
    assert all(fire_time % MINUTE == 0 for fire_time in fire_times)
    return [fire_time // MINUTE for fire_time in fire_times]


def shown(minute: int, zone: str) -> str:
    return (EPOCH + timedelta(minutes=minute)).astimezone(ZoneInfo(zone)).isoformat()


def fires_when_the_walker_does(zone: str, first: int, last: int) -> None:
    for text in (*FIXED, *WILD):
        found, expected = ours(text, zone, first, last), walk(text, zone, first, last)
        odd = sorted(set(found) ^ set(expected))
        assert not odd, (text, [shown(minute, zone) for minute in odd[:5]])
        assert found == expected, text
        assert all(early < late for early, late in itertools.pairwise(found)), text


@pytest.mark.parametrize("zone", SAMPLED_ZONES)
def test_a_cron_fires_when_the_walker_does_around_each_change(zone):
    for change in changes(zone):
        fires_when_the_walker_does(zone, change - 10 * DAY, change + 10 * DAY)


@pytest.mark.nightly
@pytest.mark.parametrize("zone", ZONES)
def test_a_cron_fires_when_the_walker_does_for_three_years(zone):
    fires_when_the_walker_does(zone, *years(zone))


@pytest.mark.parametrize("zone", SAMPLED_ZONES)
def test_a_daily_time_fires_once_on_each_local_day(zone):
    first, last = years(zone)
    for text in DAILY:
        fire_times = ours(text, zone, first, last)
        days = [
            (EPOCH + timedelta(minutes=minute)).astimezone(ZoneInfo(zone)).date()
            for minute in fire_times
        ]
        steps = [(late - early).days for early, late in itertools.pairwise(days)]
        odd = [(day, step) for day, step in zip(days, steps, strict=False) if step != 1]
        if zone != ODD:
            assert not odd, (text, odd)
        elif text == "0 0 * * *":  # both midnights are the same instant
            assert odd == [(date(2011, 12, 29), 2)]
        else:  # for the day that never was it fires as the next one begins
            assert odd == [(date(2011, 12, 29), 2), (date(2011, 12, 31), 0)]


@pytest.mark.parametrize("zone", ZONES)
def test_a_cron_with_seconds_fires_when_one_without_does(zone):
    for text, change in itertools.product(("30 2 * * *", "0 */4 * * *"), changes(zone)):
        span = change - 3 * DAY, change + 3 * DAY
        assert ours(f"0 {text}", zone, *span) == ours(text, zone, *span)


@pytest.mark.parametrize("zone", SAMPLED_ZONES)
def test_the_walker_walks_each_minute(zone):
    assert changes(zone)
    for text in ("0,30 0-2 * * *", "0 0 * * *", "*/20 */2 * * *"):
        for change in changes(zone):
            span = change - 30 * HOUR, change + 30 * HOUR
            assert walk(text, zone, *span) == walk_each_minute(text, zone, *span)


@pytest.mark.parametrize("zone", SAMPLED_ZONES)
def test_the_latest_fire_time_before_any_change_is_the_one_that_was_next(zone):
    texts = "30 2 * * *", "*/30 2 * * *"
    for text, change in itertools.product(texts, changes(zone)):
        fire_times = ours(text, zone, change - 2 * DAY, change + 2 * DAY)
        for fire_time, following in itertools.pairwise(fire_times):
            found = latest_fire_time(
                ScheduleSpec(cron=text),
                zone,
                after=(change - 2 * DAY) * MINUTE - 1,
                until=following * MINUTE - 1,
            )
            assert found == fire_time * MINUTE
