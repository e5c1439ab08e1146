"""Schedules: times, custom timetables, triggers and assets that start runs.

A timetable is user code, so the daemon never calls it. Any object with a method
``next_after(moment)`` is a timetable; its fields are stored like the fields of a trigger. It runs
as a trigger that yields an event at each fire time.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Protocol, TypeAlias, cast, get_args, runtime_checkable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from aioflow.author.assets import Asset, AssetExpression, asset_condition, lists_assets
from aioflow.author.duration import Duration, microseconds
from aioflow.author.trigger import Trigger, TriggerEvent, construct, never_yields, serialize
from aioflow.errors import BadSchedule
from aioflow.model.dag import CRON_NAMES, ScheduleSpec
from aioflow.model.timestamps import (
    EARLIEST_DATE,
    LATEST_DATE,
    Timestamp,
    to_datetime,
    to_timestamp,
)
from aioflow.model.triggers import ASSETS, DagTriggerSpec, IfRunning

__all__ = (
    "Continuous",
    "Cron",
    "Dates",
    "Every",
    "Schedule",
    "Timetable",
    "TimetableTrigger",
    "clock_schedule",
    "dag_trigger_spec",
    "instant",
    "is_timetable",
    "is_timetable_class",
    "schedule_spec",
    "sleep_until",
    "time_zone",
    "timetable_trigger",
)

ONCE, CONTINUOUS = "@once", "@continuous"

_DATES_AT_MOST = 10_000


@dataclass(frozen=True)
class Cron:
    """Starts runs by a cron expression, in the time zone of the DAG.

    Attributes:
        expression: Five fields, six fields of which the first is for seconds, or ``@daily`` and the
            like.
        jitter: The maximum delay of a run after its fire time. The actual delay depends only on
            the DAG and the fire time, and is at most half of the time until the next fire time.
            The logical date is the fire time without the delay.
    """

    expression: str
    jitter: Duration = 0

    def next_after(self, moment: datetime, timezone: str = "UTC") -> datetime | None:
        """Return the first fire time after ``moment``, in UTC, as for a DAG with this schedule.

        Return ``None`` if there is no fire time within fifty years.

        Raises:
            BadSchedule: If the expression or the time zone is invalid, or ``moment`` has no zone.
        """
        # Imported late, as most processes never need the timetable.
        from aioflow.core.scheduling.timetable import next_fire_time

        if moment.tzinfo is None:
            raise BadSchedule(f"moment={moment} needs a time zone")
        spec = _cron_spec(self)
        fire_time = next_fire_time(spec, time_zone(timezone).key, after=to_timestamp(moment))
        return None if fire_time is None else to_datetime(fire_time)


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
    """Starts runs at the given times. Times without a time zone are in the time zone of the DAG.

    Attributes:
        dates: At most 10,000, in any order; a date means midnight.
        jitter: See ``Cron``.
    """

    dates: Sequence[datetime | date]
    jitter: Duration = 0


@dataclass(frozen=True)
class Continuous:
    """Starts a new run as soon as the DAG has no active run. The same as ``@continuous``.

    Attributes:
        gap: The minimum time between the starts of two successive runs, at least 1 s. It
            prevents a tight loop of runs that fail immediately.
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
        BadSchedule: If ``schedule`` is invalid.
    """
    match schedule:
        case None:
            return None
        case str() if schedule.strip() == ONCE:
            return ScheduleSpec(once=True)
        case str() if schedule.strip() == CONTINUOUS:
            return schedule_spec(Continuous(), timezone=timezone, anchor=anchor)
        case str() | Cron():
            return _cron_spec(schedule if isinstance(schedule, Cron) else Cron(schedule))
        case timedelta() | Every():
            every = schedule if isinstance(schedule, Every) else Every(schedule)
            return _interval_spec(every, anchor)
        case Dates():
            return _dates_spec(schedule, timezone)
        case Continuous():
            return ScheduleSpec(gap_us=microseconds(schedule.gap, "gap"))
        case list() | tuple():
            return _joined_spec(schedule, timezone=timezone, anchor=anchor)
        case _:
            raise BadSchedule(
                f"schedule={schedule!r} is not a schedule; write a cron string, Every(...), "
                "a timedelta, Dates(...), Continuous(), or a list of these"
            )


def _joined_spec(schedule: Sequence[object], *, timezone: str, anchor: Timestamp) -> ScheduleSpec:
    """Combine several schedules, or dates, into one that has the fire times of all of them."""
    dates = [part for part in schedule if isinstance(part, date)]
    others = [part for part in schedule if not isinstance(part, date)]
    said: list[Schedule] = [*others, *([Dates(dates)] if dates or not others else [])]  # type: ignore[list-item]  # what is none is refused below
    parts = [schedule_spec(part, timezone=timezone, anchor=anchor) for part in said]
    found = tuple(part for part in parts if part is not None)
    return found[0] if len(found) == 1 else ScheduleSpec(parts=found)


def _cron_spec(schedule: Cron) -> ScheduleSpec:
    if not isinstance(schedule.expression, str):
        raise BadSchedule(f"schedule={schedule!r} is not a schedule; a cron expression is a string")
    text = schedule.expression.strip()
    if text.startswith("@") and text not in CRON_NAMES:
        known = ", ".join((*CRON_NAMES, ONCE, CONTINUOUS))
        raise BadSchedule(f"schedule={text!r} is unknown; there are {known}")
    jitter_us = microseconds(schedule.jitter, "jitter")
    return ScheduleSpec(cron=CRON_NAMES.get(text, text), jitter_us=jitter_us)


def _interval_spec(schedule: Every, anchor: Timestamp) -> ScheduleSpec:
    return ScheduleSpec(
        every_us=microseconds(schedule.interval, "schedule"),
        anchor=anchor,
        jitter_us=microseconds(schedule.jitter, "jitter"),
    )


def _dates_spec(schedule: Dates, timezone: str) -> ScheduleSpec:
    dates = [instant(value, timezone, "a date of the schedule") for value in schedule.dates]
    if len(dates) > _DATES_AT_MOST:
        raise BadSchedule(f"a schedule has at most {_DATES_AT_MOST:,} dates, not {len(dates):,}")
    found = tuple(sorted({at for at in dates if at is not None}))
    return ScheduleSpec(dates=found, jitter_us=microseconds(schedule.jitter, "jitter"))


def time_zone(name: str) -> ZoneInfo:
    """Return a time zone by name.

    Raises:
        BadSchedule: If there is no such time zone.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as exc:
        raise BadSchedule(f"timezone={name!r} is unknown; write one as in 'Asia/Kolkata'") from exc


def instant(value: datetime | date | None, timezone: str, what: str) -> Timestamp | None:
    """Return the timestamp of an author's date. A date without a zone is in the DAG's time zone.

    A local time that the clock skips becomes the first moment after the gap, as in a cron
    expression. A local time that occurs twice means the first occurrence, unless ``fold`` is set. A
    date that does not exist in every time zone, such as ``datetime.max``, becomes the earliest or
    latest time that exists in every zone.
    """
    if value is None:
        return None
    if not isinstance(value, date):
        raise BadSchedule(f"{what}={value!r} is neither a datetime nor a date")
    if not isinstance(value, datetime):
        value = datetime.combine(value, time(0))
    if value.tzinfo is None:
        try:
            value = _on_the_wall(value, time_zone(timezone))
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


_SET_BACK = timedelta(minutes=1)
_LONGEST_SLEEP_SECONDS = 60.0
_FIRE_TIMES_AT_ONCE = 100
"""How many fire times are computed before other coroutines may run."""


@runtime_checkable
class Timetable(Protocol):
    """A custom schedule, computed by user code. It must be a pure function of its fields."""

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first fire time after ``moment``; ``None`` if there are no more.

        ``moment`` is in UTC. The result must have a time zone.
        """
        ...


def is_timetable(schedule: object) -> bool:
    """Return whether a schedule is a custom timetable, rather than a schedule of aioflow."""
    is_ours = type(schedule).__module__.startswith("aioflow.")
    return not is_ours and not isinstance(schedule, type) and isinstance(schedule, Timetable)


def is_timetable_class(found: object) -> bool:
    """Return whether an object is a class of custom timetables."""
    return isinstance(found, type) and hasattr(found, "next_after")


def timetable_trigger(
    schedule: Timetable, *, catchup: bool, begin: Timestamp | None, end: Timestamp | None
) -> TimetableTrigger:
    """Return the trigger that runs a timetable.

    Raises:
        Unserializable: If the timetable cannot be serialized.
    """
    path, fields = serialize(cast("Trigger[Any]", schedule))
    return TimetableTrigger(path, fields, _code_digest(type(schedule)), catchup, begin, end)


def _code_digest(cls: type) -> str:
    """Return a digest of a timetable's module, so that a code change restarts its trigger."""
    try:
        source = inspect.getsource(inspect.getmodule(cls) or cls)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class TimetableTrigger(Trigger[None]):
    """Yields an event at each fire time of a timetable. Its key is the fire time in µs since 1970.

    Attributes:
        timetable: The class path of the timetable.
        fields: msgpack of its fields.
        code: A digest of its code when the DAG file was parsed.
        catchup: Whether every missed fire time counts, or only the latest.
        begin: The earliest fire time; ``None`` for the time at which the trigger started.
        end: The latest fire time.
    """

    timetable: str
    fields: bytes
    code: str
    catchup: bool = False
    begin: Timestamp | None = None
    end: Timestamp | None = None

    def __post_init__(self) -> None:
        """Set a callback for fire times that does nothing; see ``expect_by``."""
        self._tell: Callable[[datetime | None], None] = _ignore_fire_time

    def load(self, find: Callable[[str], type]) -> None:
        """Create the timetable from the class that ``find`` returns for its path."""
        cls = cast("type[Trigger[Any]]", find(self.timetable))
        self._made: Any = construct(cls, self.fields)

    def expect_by(self, tell: Callable[[datetime | None], None]) -> None:
        """Call ``tell`` with each fire time before waiting for it; ``None`` after the last one."""
        self._tell = tell

    async def preview(self, after: datetime, count: int) -> list[datetime]:
        """Return the fire times after ``after``, at most ``count``.

        Yields to the event loop after computing each time.
        """
        if self.begin is not None:
            after = max(after, to_datetime(self.begin - 1))
        fire_times: list[datetime] = []
        while len(fire_times) < count and (fire_time := self._fire_time(after)) is not None:
            fire_times.append(fire_time)
            after = fire_time
            await _sleep(0)
        return fire_times

    async def run(self) -> AsyncIterator[TriggerEvent[None]]:
        """Yield an event at each fire time."""
        import asyncio  # imported late: a DAG file that only describes tasks does not need it

        after = self._begins_after()
        while (fire_time := await self._next(after)) is not None:
            self._tell(fire_time)
            if await self._has_come(fire_time, after):
                after = fire_time
                yield TriggerEvent(None, key=str(to_timestamp(fire_time)))
            else:
                after = self._from_now_on()
        self._tell(None)
        await asyncio.Event().wait()  # no more fire times: ending would restart the trigger

    def _begins_after(self) -> datetime:
        if self.last is not None and self.last.key is not None:
            return to_datetime(int(self.last.key))
        since = self.since
        if self.begin is None:
            return since
        first = to_datetime(self.begin - 1)
        if self.catchup or first >= since:
            return first
        return since if self._is_over(since) else self._before_latest(first, since)

    def _is_over(self, moment: datetime) -> bool:
        return self.end is not None and to_timestamp(moment) > self.end

    def _before_latest(self, first: datetime, since: datetime) -> datetime:
        """Return a time shortly before the last fire time up to ``since``.

        Return ``since`` itself if there is no fire time after ``first``.
        """
        reach, after = timedelta(minutes=1), since
        while after > first:
            after = max(first, since - reach)
            reach *= 2
            fire_time = self._fire_time(after)
            if fire_time is not None and fire_time <= since:
                return after
        return since

    async def _has_come(self, fire_time: datetime, after: datetime) -> bool:
        """Wait for a fire time; return ``False`` if the clock was set back far before ``after``.

        If the clock is changed during the wait, the wait is at most a minute too long.
        """
        while (left := (fire_time - _now()) / timedelta(seconds=1)) > 0:
            if self._from_now_on() < after - _SET_BACK:
                return False
            await _sleep(min(left, _LONGEST_SLEEP_SECONDS))
        return True

    def _from_now_on(self) -> datetime:
        """Return the time to continue from after the clock was set back.

        A repeated fire time starts no second run, because its key is known.
        """
        return _now() if self.begin is None else max(_now(), to_datetime(self.begin - 1))

    async def _next(self, after: datetime) -> datetime | None:
        """Return the next fire time. Without ``catchup``, skip to the latest that has passed."""
        fire_time, asked = self._fire_time(after), 0
        while fire_time is not None and not self.catchup:
            following = self._fire_time(fire_time)
            if following is None or following > _now():
                break
            fire_time, asked = following, asked + 1
            if asked % _FIRE_TIMES_AT_ONCE == 0:
                await _sleep(0)
        return fire_time

    def _fire_time(self, after: datetime) -> datetime | None:
        fire_time = self._made.next_after(after)
        if fire_time is None:
            return None
        if not isinstance(fire_time, datetime) or fire_time.tzinfo is None:
            raise BadSchedule(f"{self.timetable} gave {fire_time!r}; a fire time has a time zone")
        fire_time = fire_time.astimezone(UTC)
        if fire_time <= after:
            raise BadSchedule(f"{self.timetable} gave {fire_time} as the fire time after {after}")
        end = self.end
        return None if end is not None and to_timestamp(fire_time) > end else fire_time


def _ignore_fire_time(_: datetime | None) -> None:
    """Do nothing: the default callback."""


async def sleep_until(moment: datetime) -> None:
    """Wait until a time. If the clock is changed, the wait is at most a minute too long."""
    while (left := (moment - _now()) / timedelta(seconds=1)) > 0:
        await _sleep(min(left, _LONGEST_SLEEP_SECONDS))


async def _sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)  # noqa: TID251 - in a process of user code


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - in a process of user code


def _is_event_schedule(schedule: object) -> bool:
    """Return whether runs are started by events rather than by times."""
    is_one = isinstance(schedule, Trigger | Asset | AssetExpression)
    return is_one or lists_assets(schedule) or is_timetable(schedule)


def clock_schedule(schedule: Any) -> Schedule:
    """Return the schedule if it consists of times; ``None`` if events start the runs."""
    made: Schedule = None if _is_event_schedule(schedule) else schedule
    return made


def _checked_if_running(value: object) -> IfRunning:
    """Return a valid value of ``if_running``.

    Raises:
        BadSchedule: If it is not one of the allowed values.
    """
    for known in get_args(IfRunning):
        if value == known:
            word: IfRunning = known
            return word
    known_words = ", ".join(map(repr, get_args(IfRunning)))
    raise BadSchedule(f"if_running={value!r} is none of {known_words}")


def dag_trigger_spec(
    schedule: Any,
    *,
    if_running: object,
    debounce: Duration | None,
    catchup: bool,
    begin: Timestamp | None,
    end: Timestamp | None,
) -> DagTriggerSpec | None:
    """Return how events start runs; ``None`` for a schedule of times, or for no schedule.

    Args:
        schedule: The ``schedule`` of the DAG.
        if_running: See ``model.IfRunning``.
        debounce: How long there must be no further event before the last event starts a run.
        catchup: For a custom timetable: whether every missed fire time is run.
        begin: The earliest fire time of a custom timetable.
        end: The latest fire time of a custom timetable.

    Raises:
        BadSchedule: If an option is invalid, or does not apply to this kind of schedule.
        Unserializable: If the trigger cannot be serialized.
    """
    word = _checked_if_running(if_running)
    quiet_us = None if debounce is None else microseconds(debounce, "debounce")
    if not _is_event_schedule(schedule):
        if word != "queue" or quiet_us is not None:
            raise BadSchedule("if_running and debounce go with schedule=<a trigger> alone")
        return None
    is_own = is_timetable(schedule)
    if quiet_us is not None and is_own:
        raise BadSchedule("debounce goes with a trigger; a timetable has fire times")
    if quiet_us == 0:
        raise BadSchedule("debounce must be longer than nothing")
    condition = asset_condition(schedule)
    name = type(schedule).__name__
    if is_own:
        trigger = timetable_trigger(schedule, catchup=catchup, begin=begin, end=end)
        path, kwargs = trigger.timetable, serialize(trigger)[1]  # reports name the author's class
    elif condition is None:
        wrong = never_yields(type(schedule))
        if wrong:
            raise BadSchedule(f"the schedule's {wrong}")
        path, kwargs = serialize(schedule)
    elif quiet_us is not None:
        raise BadSchedule(
            "debounce goes with a trigger; a schedule of assets is not notified of single events"
        )
    else:
        path, kwargs, name = ASSETS, msgspec.msgpack.encode(condition), ", ".join(condition.names())
    return DagTriggerSpec(
        class_path=path,
        kwargs=kwargs,
        name=name,
        if_running=word,
        debounce_us=quiet_us,
        is_timetable=is_own,
    )
