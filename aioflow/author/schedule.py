"""Schedules: the times at which runs start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from aioflow.author.duration import Duration, microseconds
from aioflow.errors import BadSchedule
from aioflow.model.schedule import CRON_NAMES, ScheduleSpec
from aioflow.model.timestamps import (
    EARLIEST_DATE,
    LATEST_DATE,
    Timestamp,
    to_datetime,
    to_timestamp,
)

__all__ = (
    "Continuous",
    "Cron",
    "Dates",
    "Every",
    "Schedule",
    "instant",
    "schedule_spec",
    "zone",
)

ONCE, CONTINUOUS = "@once", "@continuous"

_DATES_AT_MOST = 10_000


@dataclass(frozen=True)
class Cron:
    """Starts runs by a cron expression, in the time zone of the DAG.

    Attributes:
        expression: Five fields, or six with seconds first; or ``@daily`` and the like.
        jitter: The maximum delay of a run after its fire time. The actual delay depends only on
            the DAG and the fire time, and is at most half of the time until the next fire time.
            The logical date is the fire time without the delay.
    """

    expression: str
    jitter: Duration = 0

    def next_after(self, moment: datetime, timezone: str = "UTC") -> datetime | None:
        """Return the first fire time after ``moment``, in UTC, as for a DAG with this schedule.

        ``None`` if there is none within fifty years.

        Raises:
            BadSchedule: If the expression or the time zone is invalid, or ``moment`` has no zone.
        """
        # Imported late, as most processes never need the timetable.
        from aioflow.core.scheduling.timetable import next_slot

        if moment.tzinfo is None:
            raise BadSchedule(f"moment={moment} needs a time zone")
        spec = _cron(self)
        slot = next_slot(spec, zone(timezone).key, after=to_timestamp(moment))
        return None if slot is None else to_datetime(slot)


@dataclass(frozen=True)
class Every:
    """Starts runs at a fixed interval, at least 1 s, counted from the DAG's ``start_date``.

    Attributes:
        jitter: See ``Cron``.
    """

    interval: Duration
    jitter: Duration = 0


@dataclass(frozen=True)
class Dates:
    """Starts runs at the given times. Those without a time zone are in that of the DAG.

    Attributes:
        dates: At most 10,000, in any order; a date means midnight.
        jitter: See ``Cron``.
    """

    dates: Sequence[datetime | date]
    jitter: Duration = 0


@dataclass(frozen=True)
class Continuous:
    """Starts a new run as soon as the DAG has no active one; the same as ``@continuous``.

    Attributes:
        gap: The minimum time from the start of one run to that of the next, at least 1 s. It keeps
            runs that fail immediately from following each other in a tight loop.
    """

    gap: Duration = 1


OneSchedule: TypeAlias = str | timedelta | Cron | Every | Dates
Schedule: TypeAlias = (
    OneSchedule | Continuous | Sequence[datetime | date] | Sequence[OneSchedule] | None
)


def schedule_spec(schedule: Schedule, *, timezone: str, anchor: Timestamp) -> ScheduleSpec | None:
    """Return a schedule in the form that the engine uses.

    Args:
        schedule: The ``schedule`` of the DAG.
        timezone: The time zone of dates without one.
        anchor: The time from which an interval is counted.

    Raises:
        BadSchedule: If it is no valid schedule.
    """
    match schedule:
        case None:
            return None
        case str() if schedule.strip() == ONCE:
            return ScheduleSpec(once=True)
        case str() if schedule.strip() == CONTINUOUS:
            return schedule_spec(Continuous(), timezone=timezone, anchor=anchor)
        case str() | Cron():
            return _cron(schedule if isinstance(schedule, Cron) else Cron(schedule))
        case timedelta() | Every():
            every = schedule if isinstance(schedule, Every) else Every(schedule)
            return _every(every, anchor)
        case Dates():
            return _dates(schedule, timezone)
        case Continuous():
            return ScheduleSpec(gap_us=microseconds(schedule.gap, "gap"))
        case list() | tuple():
            return _joined(schedule, timezone=timezone, anchor=anchor)
        case _:
            raise BadSchedule(
                f"schedule={schedule!r} is no schedule; write a cron string, Every(...), "
                "a timedelta, Dates(...), Continuous(), or a list of these"
            )


def _joined(schedule: Sequence[object], *, timezone: str, anchor: Timestamp) -> ScheduleSpec:
    """Combine several schedules, or dates: the fire times of any of them are fire times."""
    dates = [part for part in schedule if isinstance(part, date)]
    others = [part for part in schedule if not isinstance(part, date)]
    said: list[Schedule] = [*others, *([Dates(dates)] if dates or not others else [])]  # type: ignore[list-item]  # what is none is refused below
    parts = [schedule_spec(part, timezone=timezone, anchor=anchor) for part in said]
    found = tuple(part for part in parts if part is not None)
    return found[0] if len(found) == 1 else ScheduleSpec(parts=found)


def _cron(schedule: Cron) -> ScheduleSpec:
    if not isinstance(schedule.expression, str):
        raise BadSchedule(f"schedule={schedule!r} is no schedule; a cron expression is a text")
    text = schedule.expression.strip()
    if text.startswith("@") and text not in CRON_NAMES:
        known = ", ".join((*CRON_NAMES, ONCE, CONTINUOUS))
        raise BadSchedule(f"schedule={text!r} is unknown; there are {known}")
    jitter_us = microseconds(schedule.jitter, "jitter")
    return ScheduleSpec(cron=CRON_NAMES.get(text, text), jitter_us=jitter_us)


def _every(schedule: Every, anchor: Timestamp) -> ScheduleSpec:
    return ScheduleSpec(
        every_us=microseconds(schedule.interval, "schedule"),
        anchor=anchor,
        jitter_us=microseconds(schedule.jitter, "jitter"),
    )


def _dates(schedule: Dates, timezone: str) -> ScheduleSpec:
    dates = [instant(value, timezone, "a date of the schedule") for value in schedule.dates]
    if len(dates) > _DATES_AT_MOST:
        raise BadSchedule(f"a schedule has at most {_DATES_AT_MOST:,} dates, not {len(dates):,}")
    found = tuple(sorted({at for at in dates if at is not None}))
    return ScheduleSpec(dates=found, jitter_us=microseconds(schedule.jitter, "jitter"))


def zone(name: str) -> ZoneInfo:
    """Return a time zone by name.

    Raises:
        BadSchedule: If there is no such time zone.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as exc:
        raise BadSchedule(f"timezone={name!r} is unknown; write one as in 'Asia/Kolkata'") from exc


def instant(value: datetime | date | None, timezone: str, what: str) -> Timestamp | None:
    """Return a date given by an author, in the DAG's time zone unless it has one of its own.

    A local time that the clock skips becomes the first moment after the gap, as in a cron
    expression. A local time that occurs twice is the first one, unless ``fold`` says otherwise. A
    date that does not exist in every time zone, such as ``datetime.max``, becomes the earliest or
    latest time that does.
    """
    if value is None:
        return None
    if not isinstance(value, date):
        raise BadSchedule(f"{what}={value!r} is neither a datetime nor a date")
    if not isinstance(value, datetime):
        value = datetime.combine(value, time(0))
    if value.tzinfo is None:
        try:
            value = _on_the_wall(value, zone(timezone))
        except OverflowError:
            return EARLIEST_DATE if value.year == date.min.year else LATEST_DATE
    return min(max(to_timestamp(value), EARLIEST_DATE), LATEST_DATE)


def _on_the_wall(wall: datetime, where: ZoneInfo) -> datetime:
    found = wall.replace(tzinfo=where).astimezone(UTC)
    if found.astimezone(where).replace(tzinfo=None, fold=wall.fold) == wall:
        return found
    # The clock skips this time. Imported late, as most processes never need the timetable.
    from aioflow.core.scheduling.timetable import first_instant

    return first_instant(wall.replace(fold=0), where)
