"""Fire times of a schedule.

A schedule is a cron expression in a time zone, a fixed interval of elapsed time, a list of dates,
or several of these at once. Its *fire times* are timestamps, strictly increasing. When clocks
change, cron expressions follow the rule of Debian's cron:

- **Fixed times** (neither the minute nor the hour, nor the second if there is one, begins with
  ``*``) follow the wall clock, once per local day. A time that does not exist on a day fires at the
  first valid time after it; a time that occurs twice fires the first time.
- **Wildcards** (``*/15 * * * *``, ``0 * * * *``, ``*/15 2 * * *``) follow elapsed time: a time that
  does not exist is skipped, and a time that occurs twice fires twice.

If both the day of the month and the day of the week are restricted, a day matches if either of
them does, as in every cron.

``once`` and schedules with a ``gap_us`` have no fire times; ``core.runs.create`` decides when they
run.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from aioflow.errors import BadSchedule
from aioflow.model.dag import ScheduleSpec
from aioflow.model.timestamps import Timestamp, to_datetime, to_timestamp

__all__ = (
    "fire_times_after",
    "fire_times_between",
    "first_instant",
    "interval_up_to",
    "latest_fire_time",
    "next_fire_time",
    "starts_at",
    "validate",
)

_SECOND: Timestamp = 1_000_000
_FIELD_LENGTH = 500

_FIELD_SIZES = (
    ("second", 60),
    ("minute", 60),
    ("hour", 24),
    ("day of month", 31),
    ("month", 12),
    ("day of week", 7),
)
"""The fields of a cron expression and the number of values of each."""


_KINDS = "a cron expression, an interval, dates, once, or one run after the other"

# Beyond these dates a datetime, or the search for a match over fifty years, would overflow.
_EARLIEST: Timestamp = to_timestamp(datetime(2, 1, 1, tzinfo=UTC))
_LATEST: Timestamp = to_timestamp(datetime(9900, 1, 1, tzinfo=UTC))


# ── validation ──────────────────────────────────────────────────────────────────────────


def validate(schedule: ScheduleSpec, timezone: str) -> BadSchedule | None:
    """Return the error of a schedule; ``None`` if it is valid.

    A schedule that never fires is invalid.
    """
    try:
        _zone(timezone)
        _check(schedule, timezone)
    except BadSchedule as exc:
        return exc
    return None


def _check(schedule: ScheduleSpec, timezone: str) -> None:
    kinds = (schedule.cron, schedule.every_us, schedule.dates, schedule.gap_us)
    said = sum(kind is not None for kind in kinds) + schedule.once + bool(schedule.parts)
    if said != 1:
        raise BadSchedule(f"a schedule is {_KINDS}: one of them, or several schedules together")
    for length in (schedule.every_us, schedule.gap_us):
        if length is not None and length < _SECOND:
            raise BadSchedule(f"an interval of {length} us is too short; take 1s or more")
    if schedule.dates is not None and not schedule.dates:
        raise BadSchedule("a schedule of dates needs one at least")
    if schedule.cron is not None and next_fire_time(schedule, timezone, after=0) is None:
        raise BadSchedule(
            f"the cron expression {schedule.cron!r} never fires: there is no such day"
        )
    if schedule.cron is not None:
        _check_steps(schedule.cron)
    for part in schedule.parts:
        if not part.has_fire_times:
            raise BadSchedule("@once and @continuous stand alone, not beside other schedules")
        _check(part, timezone)


def _check_steps(expression: str) -> None:
    """Reject a step that is larger than the number of values of its field.

    Checked only when a schedule is declared, so that the schedules of stored versions stay valid.
    """
    fields = expression.split()
    for (name, size), field in zip(_FIELD_SIZES[-len(fields) :], fields, strict=True):
        for term in field.split(","):
            step = term.partition("/")[2]
            if step and int(step) > size:
                raise BadSchedule(
                    f"the cron expression {expression!r} has a step of {step} in the field "
                    f"{name}, which has {size} values; Every(...) takes longer intervals"
                )


# ── fire times ───────────────────────────────────────────────────────────────────────────────


def fire_times_after(
    schedule: ScheduleSpec, timezone: str, *, after: Timestamp
) -> Iterator[Timestamp]:
    """Yield all fire times after ``after``, up to the year 9900.

    Raises:
        BadSchedule: If ``validate`` would return this error.
    """
    return takewhile(lambda fire_time: fire_time <= _LATEST, _fire_times(schedule, timezone, after))


def _fire_times(schedule: ScheduleSpec, timezone: str, after: Timestamp) -> Iterator[Timestamp]:
    if after >= _LATEST:
        return iter(())
    if schedule.parts:
        parts = (fire_times_after(part, timezone, after=after) for part in schedule.parts)
        return _distinct(heapq.merge(*parts))
    if schedule.every_us is not None:
        return _multiples(schedule.every_us, schedule.anchor, after)
    if schedule.cron is not None:
        return _cron_fire_times(schedule.cron, _zone(timezone), max(after, _EARLIEST))
    dates = schedule.dates or ()
    return iter(dates[bisect_right(dates, after) :])


def _distinct(fire_times: Iterable[Timestamp]) -> Iterator[Timestamp]:
    last = None
    for fire_time in fire_times:
        if fire_time != last:
            yield fire_time
        last = fire_time


def _multiples(every_us: int, anchor: Timestamp, after: Timestamp) -> Iterator[Timestamp]:
    fire_time = anchor + ((after - anchor) // every_us + 1) * every_us
    while True:
        yield fire_time
        fire_time += every_us


def next_fire_time(schedule: ScheduleSpec, timezone: str, *, after: Timestamp) -> Timestamp | None:
    """Return the first fire time after ``after``, never ``after`` itself.

    Return ``None`` if there is none within fifty years, or before the year 9900.

    Raises:
        BadSchedule: If ``validate`` would return this error.
    """
    return next(fire_times_after(schedule, timezone, after=after), None)


def fire_times_between(
    schedule: ScheduleSpec, timezone: str, *, after: Timestamp, until: Timestamp, limit: int
) -> list[Timestamp]:
    """Return the first ``limit`` fire times later than ``after`` and not later than ``until``."""
    fire_times = islice(fire_times_after(schedule, timezone, after=after), limit)
    return list(takewhile(lambda fire_time: fire_time <= until, fire_times))


def latest_fire_time(
    schedule: ScheduleSpec, timezone: str, *, after: Timestamp, until: Timestamp
) -> Timestamp | None:
    """Return the last fire time later than ``after`` and not later than ``until``, if any.

    Its cost grows with the logarithm of the span, not with the number of fire times in it.
    """
    if schedule.parts:
        found = [latest_fire_time(p, timezone, after=after, until=until) for p in schedule.parts]
        return max((fire_time for fire_time in found if fire_time is not None), default=None)
    if schedule.every_us is not None:
        fire_time = (
            schedule.anchor + (until - schedule.anchor) // schedule.every_us * schedule.every_us
        )
        return fire_time if fire_time > after else None
    if schedule.dates is not None:
        count = bisect_right(schedule.dates, until)
        return schedule.dates[count - 1] if count and schedule.dates[count - 1] > after else None
    return _latest_cron(schedule, timezone, after, until)


def _latest_cron(
    schedule: ScheduleSpec, timezone: str, after: Timestamp, until: Timestamp
) -> Timestamp | None:
    # Search back in growing steps until a step contains a fire time, then bisect to the last one.
    # Each probe reads forward, because cron handles clock changes differently when read backwards.
    reach_us, low, found = 60 * _SECOND, until, None
    while found is None and low > after:
        low = max(after, until - reach_us)
        reach_us *= 2
        found = _fire_time_within(schedule, timezone, low, until)
    if found is None:
        return None
    low, high = found, until
    while high - low > _SECOND:
        middle = (low + high) // 2
        later = _fire_time_within(schedule, timezone, middle, until)
        if later is None:
            high = middle
        else:
            low = later
    # Fire times are whole seconds, so one more probe finds a fire time within the last second.
    return _fire_time_within(schedule, timezone, low, until) or low


def _fire_time_within(
    schedule: ScheduleSpec, timezone: str, after: Timestamp, until: Timestamp
) -> Timestamp | None:
    fire_time = next_fire_time(schedule, timezone, after=after)
    return fire_time if fire_time is not None and fire_time <= until else None


def interval_up_to(
    schedule: ScheduleSpec, timezone: str, at: Timestamp
) -> tuple[Timestamp, Timestamp] | None:
    """Return the last two fire times not later than ``at``; ``None`` if there are fewer."""
    end = latest_fire_time(schedule, timezone, after=_EARLIEST, until=at)
    if end is None:
        return None
    start = latest_fire_time(schedule, timezone, after=_EARLIEST, until=end - 1)
    return None if start is None else (start, end)


def starts_at(
    schedule: ScheduleSpec, timezone: str, fire_time: Timestamp, *, salt: str
) -> Timestamp:
    """Return when the run of a fire time may start: at the fire time plus a part of the jitter.

    The part depends only on the fire time and on ``salt``, the name of the DAG. The delay is at
    most half the distance to the next fire time, so that runs start in the order of their fire
    times.
    """
    jitter_us = _jitter_us(schedule, timezone, fire_time)
    if not jitter_us:
        return fire_time
    following = next_fire_time(schedule, timezone, after=fire_time)
    most = jitter_us if following is None else min(jitter_us, (following - fire_time) // 2)
    digest = blake2b(f"{salt}/{fire_time}".encode(), digest_size=8).digest()
    return fire_time + (most * int.from_bytes(digest) >> 64)


def _jitter_us(schedule: ScheduleSpec, timezone: str, fire_time: Timestamp) -> int:
    """Return the jitter of a fire time.

    If several parts of the schedule have this fire time, the smallest jitter applies.
    """
    if not any(_is_shaky(part) for part in schedule.parts):
        return schedule.jitter_us
    own = [part for part in schedule.parts if _has(part, timezone, fire_time)]
    return min((_jitter_us(part, timezone, fire_time) for part in own), default=0)


def _is_shaky(schedule: ScheduleSpec) -> bool:
    return schedule.jitter_us > 0 or any(_is_shaky(part) for part in schedule.parts)


def _has(schedule: ScheduleSpec, timezone: str, fire_time: Timestamp) -> bool:
    return next_fire_time(schedule, timezone, after=fire_time - 1) == fire_time


# ── cron: the only code with calendars ──────────────────────────────────────────────────


def _cron_fire_times(expression: str, zone: ZoneInfo, after: Timestamp) -> Iterator[Timestamp]:
    fields = expression.split()
    if len(fields) not in {5, 6}:
        raise BadSchedule(
            f"the cron expression {expression!r} has {len(fields)} fields; it takes five: "
            "minute, hour, day of month, month, day of week; or six, of which the first is "
            "the second"
        )
    if any(len(field) > _FIELD_LENGTH for field in fields):
        raise BadSchedule("the cron expression is too long to be meant")
    follows_elapsed_time = any(field.startswith("*") for field in fields[:-3])
    at = to_datetime(after)
    try:
        walk = _elapsed if follows_elapsed_time else _on_the_wall
        for fire_time in walk(expression, zone, at):
            yield to_timestamp(fire_time)
    except CronSimError as exc:
        raise BadSchedule(
            f"the cron expression {expression!r} cannot be understood: {str(exc).lower()}"
        ) from exc


def _on_the_wall(expression: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield fixed times: when the wall clock shows each, or at the first valid time after it."""
    # Treat the wall time as UTC, because the offset of UTC never changes.
    for reading in CronSim(expression, after + _offset(zone, after)):
        found = first_instant(reading, zone)
        if found > after:
            yield found
            after = found


def first_instant(reading: datetime, zone: ZoneInfo) -> datetime:
    """Return when a clock first shows a wall time.

    If the clock skips that time, return when it first shows a later time.
    """
    wall = reading.replace(tzinfo=None)
    found = wall.replace(tzinfo=zone).astimezone(UTC)
    if found.astimezone(zone).replace(tzinfo=None) == wall:
        return found
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _next_change(zone, before, found, _offset(zone, before)) or found


def _elapsed(expression: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield wildcard times, computed separately for each period with a constant UTC offset.

    The time zone support of cronsim is not used, because it is wrong where clocks change by half an
    hour.
    """
    change: datetime | None = after
    clock = after + _offset(zone, after)
    while change is not None:
        at, offset, change = change, _offset(zone, change), None
        for reading in CronSim(expression, clock):
            found = reading - offset
            change = _next_change(zone, at, found, offset)
            if change is not None:
                break
            yield found
            at = found
        else:
            return
        clock = (
            change + _offset(zone, change) - timedelta(seconds=1)
        )  # the start may be a fire time itself


def _next_change(
    zone: ZoneInfo, after: datetime, until: datetime, offset: timedelta
) -> datetime | None:
    """Return the first second in ``(after, until]`` at which the UTC offset is not ``offset``."""
    low = after
    while low < until:
        high = min(low + timedelta(days=1), until)
        if _offset(zone, high) != offset:
            break
        low = high
    else:
        return None
    low, high = low.replace(microsecond=0), high.replace(microsecond=0)
    while high - low > timedelta(seconds=1):
        middle = (low + (high - low) / 2).replace(microsecond=0)
        if _offset(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def _zone(timezone: str) -> ZoneInfo:
    try:
        return ZoneInfo(timezone)
    # The name is unknown, an absolute path, or a folder of the zone database.
    except (KeyError, ValueError, OSError) as exc:
        raise BadSchedule(
            f"there is no time zone {timezone!r}; take a name such as 'Europe/Berlin'"
        ) from exc
