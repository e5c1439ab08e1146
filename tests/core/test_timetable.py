from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given
from hypothesis import strategies as st

from aioflow.core.scheduling.catchup import missed
from aioflow.core.scheduling.timetable import (
    fire_times_between,
    latest_fire_time,
    next_fire_time,
    starts_at,
    validate,
)
from aioflow.errors import BadSchedule
from aioflow.model.dag import CRON_NAMES, ScheduleSpec

SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FAR = 253_402_214_400 * SECOND


def instant(text):
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


def local(fire_time, zone):
    return (EPOCH + timedelta(microseconds=fire_time)).astimezone(ZoneInfo(zone))


def cron(expression):
    return ScheduleSpec(cron=expression)


def shown(expression, zone, after, count):
    fire_times = fire_times_between(
        cron(expression), zone, after=instant(after), until=FAR, limit=count
    )
    return [local(fire_time, zone).strftime("%m-%dT%H:%M%z") for fire_time in fire_times]


# ── when clocks change ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        pytest.param(
            "30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z",
            ["03-29T03:00+0200", "03-30T02:30+0200", "03-31T02:30+0200"],
            id="a-missing-time-fires-at-the-first-valid-instant",
        ),
        pytest.param(
            "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z",
            ["10-25T02:30+0200", "10-26T02:30+0100", "10-27T02:30+0100"],
            id="a-repeated-time-fires-the-first-time",
        ),
        pytest.param(
            "45 2 * * *", "Europe/Berlin", "2026-10-25T01:15Z",
            ["10-26T02:45+0100"],
            id="also-asked-from-within-the-second-time",
        ),
        pytest.param(
            "0 3 * * *", "Europe/Berlin", "2026-03-28T12:00Z",
            ["03-29T03:00+0200", "03-30T03:00+0200"],
            id="the-instant-after-the-gap-is-ordinary",
        ),
        pytest.param(
            "0,30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00Z",
            ["03-29T03:00+0200", "03-29T03:30+0200", "03-30T02:00+0200"],
            id="what-falls-together-fires-once",
        ),
        pytest.param(
            "0 * * * *", "America/New_York", "2026-03-08T05:30Z",
            ["03-08T01:00-0500", "03-08T03:00-0400", "03-08T04:00-0400"],
            id="a-wildcard-leaves-out-the-missing-hour",
        ),
        pytest.param(
            "0 * * * *", "America/New_York", "2026-11-01T04:30Z",
            ["11-01T01:00-0400", "11-01T01:00-0500", "11-01T02:00-0500"],
            id="a-wildcard-fires-in-both-of-the-equal-hours",
        ),
        pytest.param(
            "*/30 1 * * *", "America/New_York", "2026-11-01T04:30Z",
            ["11-01T01:00-0400", "11-01T01:30-0400", "11-01T01:00-0500", "11-01T01:30-0500"],
            id="a-wildcard-minute-is-a-wildcard",
        ),
        pytest.param(
            "*/15 2 * * *", "America/New_York", "2026-03-08T05:30Z",
            ["03-09T02:00-0400", "03-09T02:15-0400"],
            id="a-wildcard-that-is-missing-is-left-out",
        ),
        pytest.param(
            "30 1 * * *", "America/New_York", "2026-10-31T12:00Z",
            ["11-01T01:30-0400", "11-02T01:30-0500"],
            id="a-daily-job-fires-once-that-night",
        ),
        pytest.param(
            "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00Z",
            ["10-04T02:30+1100", "10-05T02:15+1100"],
            id="half-an-hour-is-missing",
        ),
        pytest.param(
            "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00Z",
            ["04-05T01:45+1100", "04-06T01:45+1030"],
            id="half-an-hour-comes-twice",
        ),
        pytest.param(
            "*/20 * * * *", "Australia/Lord_Howe", "2026-04-04T14:30Z",
            ["04-05T01:40+1100", "04-05T01:40+1030", "04-05T02:00+1030", "04-05T02:20+1030"],
            id="a-wildcard-over-half-an-hour-stays-on-its-grid",
        ),
        pytest.param(
            "0 */2 * * *", "Australia/Lord_Howe", "2026-04-04T12:30Z",
            ["04-05T00:00+1100", "04-05T02:00+1030", "04-05T04:00+1030"],
            id="the-hour-right-after-half-an-hour-twice",
        ),
        pytest.param(
            "0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00Z",
            ["11-04T01:00-0200", "11-05T00:00-0200"],
            id="midnight-is-missing",
        ),
        pytest.param(
            "0 12 * * *", "Pacific/Apia", "2011-12-29T12:00Z",
            ["12-29T12:00-1000", "12-31T00:00+1400", "12-31T12:00+1400"],
            id="a-whole-day-is-missing",
        ),
    ],
)  # fmt: skip
def test_a_cron_fires_by_debians_rule_when_clocks_change(expression, zone, after, expected):
    assert shown(expression, zone, after, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        pytest.param("0 0 1 * MON", "2024-08-30T00:00Z", ["09-01", "09-02", "09-09"], id="day-or"),
        pytest.param("0 9 * * MON#2", "2024-01-01T00:00Z", ["01-08", "02-12", "03-11"], id="nth"),
        pytest.param("0 0 L * *", "2024-01-01T00:00Z", ["01-31", "02-29", "03-31"], id="last-day"),
        pytest.param("0 0 29 2 *", "2096-03-01T00:00Z", ["02-29"], id="leap-day-over-2100"),
    ],
)
def test_days_are_understood_as_in_every_cron(expression, after, expected):
    found = [fire_time[:5] for fire_time in shown(expression, "UTC", after, len(expected))]

    assert found == expected


def test_a_microsecond_decides_whether_a_fire_time_is_past():
    noon = instant("2026-06-01T12:00Z")
    daily = cron("0 12 * * *")

    assert next_fire_time(daily, "UTC", after=noon - 1) == noon
    assert next_fire_time(daily, "UTC", after=noon) == noon + DAY


ZONES = [
    "UTC",
    "Europe/Berlin",
    "Europe/Dublin",
    "America/New_York",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "Antarctica/Troll",
]
EXPRESSIONS = [
    "* * * * *",
    "*/7 * * * *",
    "0 * * * *",
    "0 */2 * * *",
    "*/15 2 * * *",
    "0 0 * * *",
    "30 1 * * *",
    "30 2 * * *",
    "0,15,30,45 1-3 * * *",
    "59 23 * * SUN",
    "0 3 1 * *",
]
zones = st.sampled_from(ZONES)
expressions = st.sampled_from(EXPRESSIONS)


@st.composite
def instants(draw):
    """Return any time, but most often one close to a clock change in some zone."""
    change = instant(
        draw(
            st.sampled_from(
                [
                    "2026-03-29T01:00Z",
                    "2026-10-25T01:00Z",
                    "2026-03-08T07:00Z",
                    "2026-11-01T06:00Z",
                    "2026-04-04T15:00Z",
                    "2026-10-03T15:30Z",
                    "2018-11-04T03:00Z",
                    "2011-12-30T10:00Z",
                    "2026-02-15T02:00Z",
                ]
            )
        )
    )
    return change + draw(st.integers(-2 * DAY, 2 * DAY))


@given(expression=expressions, zone=zones, after=instants() | st.integers(0, 2**52))
def test_fire_times_strictly_increase_and_stand_on_the_minutes_they_name(expression, zone, after):
    fire_times = fire_times_between(cron(expression), zone, after=after, until=FAR, limit=12)

    assert len(fire_times) == 12
    assert fire_times[0] > after
    assert all(early < late for early, late in itertools.pairwise(fire_times))
    matches = CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    for fire_time in fire_times:
        reading = local(fire_time, zone)
        is_named = reading.minute in matches.minutes and reading.hour in matches.hours
        assert is_named or _follows_a_gap(fire_time, zone)


def _follows_a_gap(fire_time, zone):
    before = local(fire_time - 1, zone)
    return before.utcoffset() < local(fire_time, zone).utcoffset()


@given(expression=expressions, zone=zones, after=instants(), part=st.floats(0, 1))
@example(expression="0 */2 * * *", zone="Australia/Lord_Howe", after=1775307600000000, part=0.99)
def test_asking_later_does_not_change_what_is_next(expression, zone, after, part):
    schedule = cron(expression)
    fire_time = next_fire_time(schedule, zone, after=after)
    assert fire_time is not None

    between = after + int((fire_time - 1 - after) * part)

    assert next_fire_time(schedule, zone, after=between) == fire_time


@given(zone=zones, after=instants())
def test_a_daily_job_fires_once_per_local_day(zone, after):
    fire_times = fire_times_between(cron("30 2 * * *"), zone, after=after, until=FAR, limit=6)
    days = [local(fire_time, zone).date() for fire_time in fire_times]

    if zone == "Pacific/Apia":  # it skipped a whole day, which fires at the start of the next
        assert days == sorted(days)
    else:
        assert [late - early for early, late in itertools.pairwise(days)] == [timedelta(1)] * 5


@given(
    expression=st.sampled_from([e for e in EXPRESSIONS if "*" in e.split()[0] + e.split()[1]]),
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kathmandu"]),
    after=instants(),
)
def test_wildcards_follow_cronsim_when_whole_hours_change(expression, zone, after):
    theirs = itertools.islice(CronSim(expression, local(after, zone)), 8)

    ours = fire_times_between(cron(expression), zone, after=after, until=FAR, limit=8)

    assert [local(fire_time, "UTC") for fire_time in ours] == [
        fire_time.astimezone(UTC) for fire_time in theirs
    ]


# ── fixed intervals ─────────────────────────────────────────────────────────────────────


def test_an_interval_is_elapsed_time_from_its_anchor_whatever_clocks_do():
    anchor = instant("2026-03-28T23:10Z")
    schedule = ScheduleSpec(every_us=HOUR, anchor=anchor)

    fire_times = fire_times_between(
        schedule, "Europe/Berlin", after=anchor, until=anchor + 4 * HOUR, limit=99
    )

    assert fire_times == [anchor + n * HOUR for n in range(1, 5)]


@given(
    every_us=st.integers(SECOND, 40 * DAY),
    anchor=st.integers(-(2**50), 2**50),
    after=st.integers(-(2**50), 2**50),
)
def test_the_next_of_an_interval_is_the_first_multiple_that_is_later(every_us, anchor, after):
    fire_time = next_fire_time(ScheduleSpec(every_us=every_us, anchor=anchor), "UTC", after=after)

    assert fire_time is not None
    assert after < fire_time <= after + every_us
    assert (fire_time - anchor) % every_us == 0


# ── missed fire times ───────────────────────────────────────────────────────────────────

HOURLY = cron("0 * * * *")
EVERY_HOUR = ScheduleSpec(every_us=HOUR)
MIDNIGHT = instant("2026-06-01T00:00Z")


@pytest.mark.parametrize("schedule", [HOURLY, EVERY_HOUR], ids=["cron", "interval"])
@pytest.mark.parametrize(
    ("hours", "policy", "fire_times", "cursor"),
    [
        pytest.param(-0.5, "all", [], 0, id="nothing-is-due-yet"),
        pytest.param(0, "all", [0], 1, id="due-to-the-microsecond"),
        pytest.param(3.5, "all", [0, 1, 2, 3], 4, id="all-that-was-missed"),
        pytest.param(30, "all", [0, 1, 2, 3, 4], 5, id="as-many-as-the-limit-allows"),
        pytest.param(-0.5, "latest", [], 0, id="nothing-is-due-yet-without-catchup"),
        pytest.param(0.5, "latest", [0], 1, id="one-was-missed"),
        pytest.param(30, "latest", [30], 31, id="only-the-latest-without-catchup"),
        pytest.param(30.5, "latest", [30], 31, id="only-the-latest-between-fire-times"),
        pytest.param(30.5, "skip", [], 31, id="none-where-they-are-skipped"),
        pytest.param(30.008, "skip", [30], 31, id="but-one-that-has-just-come"),
        pytest.param(-0.5, "skip", [], 0, id="nothing-to-skip-yet"),
    ],
)
def test_missed_fire_times(schedule, hours, policy, fire_times, cursor):
    now = MIDNIGHT + int(hours * HOUR)

    found = missed(schedule, "UTC", cursor=MIDNIGHT, now=now, policy=policy, limit=5)

    assert found == ([MIDNIGHT + n * HOUR for n in fire_times], MIDNIGHT + cursor * HOUR)


@pytest.mark.parametrize("policy", ["all", "latest", "skip"])
def test_a_cursor_of_an_older_schedule_moves_to_a_fire_time_of_the_new_one(policy):
    cursor = MIDNIGHT + 10 * 60 * SECOND

    for now in (cursor - HOUR, cursor + 60 * SECOND):
        found = missed(HOURLY, "UTC", cursor=cursor, now=now, policy=policy, limit=5)
        assert found == ([], MIDNIGHT + HOUR)


@given(
    expression=expressions,
    zone=zones,
    cursor=instants(),
    downtime_us=st.integers(0, 2 * DAY),
    limit=st.integers(1, 400),
)
def test_catching_up_in_portions_runs_every_fire_time_once(
    expression, zone, cursor, downtime_us, limit
):
    schedule, now = cron(expression), cursor + downtime_us
    expected = fire_times_between(schedule, zone, after=cursor - 1, until=now, limit=10_000)

    ran, at = [], cursor
    while at is not None and at <= now:
        fire_times, at = missed(schedule, zone, cursor=at, now=now, policy="all", limit=limit)
        assert len(fire_times) <= limit
        ran += fire_times

    assert ran == expected
    assert at == next_fire_time(schedule, zone, after=now)


@given(
    schedule=expressions.map(cron)
    | st.integers(SECOND, DAY).map(lambda every_us: ScheduleSpec(every_us=every_us)),
    zone=zones,
    after=instants(),
    span_us=st.integers(0, DAY),
)
def test_the_latest_fire_time_is_the_last_of_all(schedule, zone, after, span_us):
    until = after + min(span_us, 500 * (schedule.every_us or DAY))
    fire_times = fire_times_between(schedule, zone, after=after, until=until, limit=10_000)

    assert latest_fire_time(schedule, zone, after=after, until=until) == (
        fire_times[-1] if fire_times else None
    )


def test_the_latest_fire_time_of_a_burst_long_past_is_its_last():
    until = MIDNIGHT + 20 * HOUR

    latest = latest_fire_time(cron("*/5 2 * * *"), "UTC", after=MIDNIGHT, until=until)

    assert latest == instant("2026-06-01T02:55Z")


def test_years_of_downtime_cost_no_walk_over_every_minute():
    now = instant("2026-06-01T12:34:56Z")

    fire_times, cursor = missed(
        cron("* * * * *"), "Europe/Berlin", cursor=0, now=now, policy="latest", limit=1
    )

    assert fire_times == [instant("2026-06-01T12:34Z")]
    assert cursor == instant("2026-06-01T12:35Z")


@st.composite
def schedules(draw):
    """Return a schedule of any kind that has fire times: some hours apart, possibly with jitter."""
    jitter_us = draw(st.sampled_from([0, 20 * 60 * SECOND, 5 * HOUR]))
    every = ScheduleSpec(every_us=draw(st.integers(1, 4)) * HOUR, jitter_us=jitter_us)
    shaky = ScheduleSpec(cron="0 */2 * * *", jitter_us=jitter_us)
    begin = draw(instants())
    dates = ScheduleSpec(dates=tuple(begin + n * 5 * HOUR for n in range(8)))
    joined = ScheduleSpec(parts=(every, cron("30 1 * * *"), dates))
    return draw(st.sampled_from([every, shaky, dates, joined, cron("15 30 2 * * *")]))


@given(schedule=schedules(), zone=zones, after=instants())
def test_runs_start_in_the_order_of_their_fire_times_and_before_the_next_one(schedule, zone, after):
    fire_times = fire_times_between(schedule, zone, after=after, until=FAR, limit=12)
    starts = [starts_at(schedule, zone, fire_time, salt="dag") for fire_time in fire_times]

    for fire_time, start, following in zip(fire_times, starts, fire_times[1:], strict=False):
        assert fire_time <= start <= fire_time + max(5 * HOUR, schedule.jitter_us)
        assert start - fire_time <= (following - fire_time) / 2


@given(
    schedule=schedules(),
    zone=zones,
    cursor=instants(),
    steps=st.lists(st.integers(0, DAY), min_size=1, max_size=6),
    limit=st.integers(1, 9),
    policy=st.sampled_from(["all", "latest", "skip"]),
)
def test_no_fire_time_runs_before_its_start_or_twice_and_all_run_in_order(
    schedule, zone, cursor, steps, limit, policy
):
    assert validate(schedule, zone) is None
    now, at, ran = cursor, next_fire_time(schedule, zone, after=cursor - 1), []
    for step in steps:
        now += step
        while at is not None and starts_at(schedule, zone, at, salt="dag") <= now:
            fire_times, at = missed(
                schedule, zone, cursor=at, now=now, policy=policy, limit=limit, salt="dag"
            )
            assert all(
                starts_at(schedule, zone, fire_time, salt="dag") <= now for fire_time in fire_times
            )
            ran += fire_times

    expected = fire_times_between(schedule, zone, after=cursor - 1, until=now, limit=10_000)
    begun = [
        fire_time
        for fire_time in expected
        if starts_at(schedule, zone, fire_time, salt="dag") <= now
    ]
    assert ran == sorted(set(ran))
    assert set(ran) <= set(begun)
    if policy == "all":
        assert ran == begun
    if policy == "latest":
        assert ran[-1:] == begun[-1:]


def test_a_limit_that_would_never_get_on_is_refused():
    with pytest.raises(ValueError, match="limit"):
        missed(HOURLY, "UTC", cursor=0, now=DAY, policy="all", limit=0)


# ── invalid schedules ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        pytest.param(ScheduleSpec(), "one of them", id="neither"),
        pytest.param(ScheduleSpec(cron="* * * * *", every_us=HOUR), "one of them", id="both"),
        pytest.param(ScheduleSpec(once=True, gap_us=HOUR), "one of them", id="once-and-on-and-on"),
        pytest.param(ScheduleSpec(dates=()), "one at least", id="no-dates"),
        pytest.param(ScheduleSpec(gap_us=SECOND - 1), "too short", id="gap-too-short"),
        pytest.param(
            ScheduleSpec(parts=(cron("* * * * *"), ScheduleSpec(once=True))), "alone", id="beside"
        ),
        pytest.param(
            ScheduleSpec(parts=(cron("* * * * *"), ScheduleSpec(every_us=1))),
            "too short",
            id="part",
        ),
        pytest.param(ScheduleSpec(every_us=0), "too short", id="interval-of-nothing"),
        pytest.param(ScheduleSpec(every_us=-HOUR), "too short", id="interval-backwards"),
        pytest.param(ScheduleSpec(every_us=SECOND - 1), "too short", id="interval-too-short"),
        pytest.param(cron(""), "0 fields", id="empty"),
        pytest.param(cron("@daily"), "1 fields", id="a-name"),
        pytest.param(cron("0 0 * * * 30"), "bad day-of-week", id="the-seconds-last"),
        pytest.param(cron("60 0 0 * * *"), "bad second", id="second-60"),
        pytest.param(cron("0 0 0 * * * 2026"), "7 fields", id="a-year"),
        pytest.param(cron("60 * * * *"), "bad minute", id="minute-60"),
        pytest.param(cron("0 5-1 * * *"), "bad hour", id="range-backwards"),
        pytest.param(cron("0 0 * * FOO"), "bad day-of-week", id="no-such-day"),
        pytest.param(cron("*/0 * * * *"), "bad minute", id="step-of-nothing"),
        pytest.param(cron("0 0 30 2 *"), "day-of-month", id="the-30th-of-february"),
        pytest.param(cron("*/5 * 31 4,6 *"), "day-of-month", id="the-31st-of-april"),
        pytest.param(cron("0 0 29 2 *#1"), "bad day-of-week", id="every-first-is-no-day"),
        pytest.param(cron("*/99999 * * * *"), "field minute, which has 60", id="endless-step"),
        pytest.param(cron("0 0-23/25 * * *"), "field hour, which has 24", id="step-over-a-day"),
        pytest.param(cron("*/61 * * * * *"), "field second", id="step-over-a-minute"),
        pytest.param(cron("0 0 1,5/32 * *"), "field day of month", id="step-over-a-month"),
        pytest.param(cron("9" * 5_000 + " * * * *"), "too long", id="endless-number"),
    ],
)
def test_invalid_schedules_are_distinguished(schedule, words):
    finding = validate(schedule, "UTC")

    assert isinstance(finding, BadSchedule)
    assert words in str(finding)


@pytest.mark.parametrize(
    "zone", ["", "Europe", "Nope/City", "../etc/passwd", "/etc/localtime", "A" * 300, "a\0b"]
)
def test_a_time_zone_that_does_not_exist_is_named(zone):
    finding = validate(HOURLY, zone)

    assert isinstance(finding, BadSchedule)
    assert repr(zone) in str(finding)


def test_a_step_that_an_earlier_version_accepted_still_has_fire_times():
    assert next_fire_time(cron("*/90 * * * *"), "UTC", after=MIDNIGHT) == MIDNIGHT + 3_600 * SECOND


@pytest.mark.parametrize("expression", ["*/60 * * * *", "0 */24 * * *", "0 0 1 */12 *"])
def test_a_step_as_long_as_its_field_means_once(expression):
    assert validate(cron(expression), "UTC") is None


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *CRON_NAMES.values(), "0 0 * 2 MON#5"])
def test_a_good_schedule_has_no_findings(expression):
    assert validate(cron(expression), "Europe/Berlin") is None


def test_a_good_interval_has_no_findings():
    assert validate(ScheduleSpec(every_us=SECOND), "UTC") is None


@given(text=st.text(alphabet="0123456789*/-,#LWMONSUJA? ", max_size=30), zone=zones)
def test_any_text_is_a_schedule_or_an_error(text, zone):
    finding = validate(cron(text), zone)

    if finding is None:
        assert next_fire_time(cron(text), zone, after=MIDNIGHT) is not None
    else:
        assert isinstance(finding, BadSchedule)


@pytest.mark.parametrize("after", [-(2**63), 2**63 - 1])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Apia", "America/New_York"])
@pytest.mark.parametrize("expression", ["* * * * *", "0 0 29 2 *"])
def test_at_the_end_of_time_there_is_no_next_fire_time_and_at_its_beginning_there_is(
    expression, zone, after
):
    assert (next_fire_time(cron(expression), zone, after=after) is None) is (after > 0)
