"""When runs start, as authors say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from aioflow.author.duration import Duration, microseconds
from aioflow.errors import BadSchedule
from aioflow.model import Instant, ScheduleSpec

__all__ = ("Cron", "Every", "Schedule", "instant", "schedule_spec", "zone")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Cron:
    """Runs start when a cron expression says so, in the zone of the DAG."""

    expression: str

    def next_after(self, moment: datetime, timezone: str = "UTC") -> datetime | None:
        """Return the first tick later than ``moment``, in UTC, as a DAG would start by it.

        ``None`` if there is none within fifty years.

        Raises:
            BadSchedule: If the expression or the zone makes no sense, or ``moment`` has no zone.
        """
        # The calendar is loaded where it is used: most children never ask.
        from aioflow.core.timetable import CRON_NAMES, next_slot

        if moment.tzinfo is None:
            raise BadSchedule(f"moment={moment} needs a time zone")
        spec = schedule_spec(self, CRON_NAMES, anchor=0)
        assert spec is not None  # noqa: S101 - a Cron is a schedule
        after = (moment - _EPOCH) // timedelta(microseconds=1)
        slot = next_slot(spec, zone(timezone).key, after=after)
        return None if slot is None else _EPOCH + timedelta(microseconds=slot)


@dataclass(frozen=True)
class Every:
    """Runs start at a fixed interval, counted from the DAG's ``start_date``; at least 1 s."""

    interval: Duration


Schedule: TypeAlias = str | timedelta | Cron | Every | None


def schedule_spec(
    schedule: Schedule, names: Mapping[str, str], *, anchor: Instant
) -> ScheduleSpec | None:
    """Return a schedule for the engine.

    Args:
        schedule: What the author wrote.
        names: Cron expressions by name, such as ``@daily``.
        anchor: An instant from which an interval is counted.

    Raises:
        BadSchedule: If it is none.
    """
    if schedule is None:
        return None
    if isinstance(schedule, timedelta):
        schedule = Every(schedule)
    if isinstance(schedule, Every):
        return ScheduleSpec(every_us=microseconds(schedule.interval, "schedule"), anchor=anchor)
    expression = schedule.expression if isinstance(schedule, Cron) else schedule
    if not isinstance(expression, str):
        raise BadSchedule(
            f"schedule={schedule!r} is no schedule; write a cron string, Every(...) or a timedelta"
        )
    text = expression.strip()
    if text.startswith("@") and text not in names:
        raise BadSchedule(f"schedule={text!r} is unknown; there are {', '.join(names)}")
    return ScheduleSpec(cron=names.get(text, text))


def zone(name: str) -> ZoneInfo:
    """Return a time zone by name.

    Raises:
        BadSchedule: If there is none of that name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as exc:
        raise BadSchedule(f"timezone={name!r} is unknown; write one as in 'Asia/Kolkata'") from exc


def instant(value: datetime | date | None, timezone: str, what: str) -> Instant | None:
    """Return a date an author wrote, in the zone of the DAG unless it has one of its own."""
    if value is None:
        return None
    if not isinstance(value, date):
        raise BadSchedule(f"{what}={value!r} is neither a datetime nor a date")
    if not isinstance(value, datetime):
        value = datetime.combine(value, time(0), tzinfo=zone(timezone))
    if value.tzinfo is None:
        value = value.replace(tzinfo=zone(timezone))
    return (value - _EPOCH) // timedelta(microseconds=1)
