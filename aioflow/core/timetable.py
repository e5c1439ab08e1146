"""When does a schedule fire, and what did it miss?

A schedule is a cron expression in a time zone, or a fixed interval of elapsed time. Its *slots*
are instants, strictly increasing. What a cron expression means when clocks change is the rule
of Debian's cron:

* **Fixed times** (neither the minute nor the hour begins with ``*``) follow the clock on the
  wall, once per local day: a time that is missing that day fires at the first valid instant
  after it, one that comes twice fires the first time.
* **Wildcards** (``*/15 * * * *``, ``0 * * * *``, ``*/15 2 * * *``) follow elapsed time: what is
  missing is left out, what comes twice fires twice.

Days of the month and of the week that are both restricted are joined by *or*, as in every cron.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from aioflow.errors import BadSchedule
from aioflow.model import Instant, ScheduleSpec

__all__ = (
    "CRON_NAMES",
    "latest_slot",
    "missed",
    "next_slot",
    "slots_between",
    "validate",
)

CRON_NAMES = {
    "@annually": "0 0 1 1 *",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
    "@midnight": "0 0 * * *",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@weekly": "0 0 * * 0",
    "@yearly": "0 0 1 1 *",
}
"""What an author may write instead of five fields. ``@once`` is no cron and not among them."""

_SECOND: Instant = 1_000_000
_FIELD_LENGTH = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# Beyond these a datetime, or the fifty years in which a match is sought, overflows.
_EARLIEST: Instant = (datetime(2, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LATEST: Instant = (datetime(9900, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND


def validate(schedule: ScheduleSpec, timezone: str) -> BadSchedule | None:
    """Return what is wrong with a schedule, if anything; also if it would never fire."""
    try:
        zone = _zone(timezone)
        if (schedule.cron is None) == (schedule.every_us is None):
            return BadSchedule("a schedule is a cron expression or an interval, one of the two")
        if schedule.every_us is not None:
            if schedule.every_us < _SECOND:
                return BadSchedule(
                    f"an interval of {schedule.every_us} us is too short; take 1s or more"
                )
            return None
        if _next_cron(schedule.cron or "", zone, 0) is None:
            return BadSchedule(
                f"the cron expression {schedule.cron!r} never fires: there is no such day"
            )
    except BadSchedule as exc:
        return exc
    return None


def next_slot(schedule: ScheduleSpec, timezone: str, *, after: Instant) -> Instant | None:
    """Return the first slot after ``after``, never ``after`` itself.

    ``None`` if there is none within fifty years, or before the year 9900.

    Raises:
        BadSchedule: If ``validate`` would have returned it.
    """
    if after >= _LATEST:
        return None
    if schedule.every_us is not None:
        every_us, anchor = schedule.every_us, schedule.anchor
        return anchor + ((after - anchor) // every_us + 1) * every_us
    return _next_cron(schedule.cron or "", _zone(timezone), max(after, _EARLIEST))


def slots_between(
    schedule: ScheduleSpec, timezone: str, *, after: Instant, until: Instant, limit: int
) -> list[Instant]:
    """Return the first ``limit`` slots later than ``after`` and not later than ``until``."""
    slots: list[Instant] = []
    slot = next_slot(schedule, timezone, after=after)
    while slot is not None and slot <= until and len(slots) < limit:
        slots.append(slot)
        slot = next_slot(schedule, timezone, after=slot)
    return slots


def latest_slot(
    schedule: ScheduleSpec, timezone: str, *, after: Instant, until: Instant
) -> Instant | None:
    """Return the last slot later than ``after`` and not later than ``until``, if any.

    Its cost grows with the logarithm of the span, not with the number of slots in it.
    """
    if schedule.every_us is not None:
        slot = schedule.anchor + (until - schedule.anchor) // schedule.every_us * schedule.every_us
        return slot if slot > after else None
    # Gallop back until there is a slot, then close in on the last one. Always looking
    # forward, because a cron that is read backwards changes clocks differently.
    reach_us, low, found = 60 * _SECOND, until, None
    while found is None and low > after:
        low = max(after, until - reach_us)
        reach_us *= 2
        found = _slot_within(schedule, timezone, low, until)
    if found is None:
        return None
    low, high = found, until
    while high - low > _SECOND:
        middle = (low + high) // 2
        later = _slot_within(schedule, timezone, middle, until)
        if later is None:
            high = middle
        else:
            low = later
    return low


def missed(
    schedule: ScheduleSpec,
    timezone: str,
    *,
    cursor: Instant,
    now: Instant,
    catchup: bool,
    limit: int,
) -> tuple[list[Instant], Instant | None]:
    """Return the slots to run now, oldest first, and the next cursor.

    The cursor is the first slot that has not been dealt with: everything from it on is still
    owed. If the schedule has changed since, it need not be a slot of the new one. A next
    cursor that is not in the future means that ``limit`` left some over: ask again.

    Args:
        schedule: A valid one.
        timezone: What its wall clock shows.
        cursor: As returned last; at first the slot the DAG begins with.
        now: Up to here, inclusive.
        catchup: Whether every missed slot runs, or only the latest one.
        limit: How many at once, at least 1.

    Raises:
        ValueError: If ``limit`` is below 1: the cursor could never move on.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if cursor > now:
        return [], next_slot(schedule, timezone, after=cursor - 1)
    if catchup:
        slots = slots_between(schedule, timezone, after=cursor - 1, until=now, limit=limit)
        last = slots[-1] if slots else now
        return slots, next_slot(schedule, timezone, after=last)
    latest = latest_slot(schedule, timezone, after=cursor - 1, until=now)
    return ([] if latest is None else [latest]), next_slot(schedule, timezone, after=now)


def _slot_within(
    schedule: ScheduleSpec, timezone: str, after: Instant, until: Instant
) -> Instant | None:
    slot = next_slot(schedule, timezone, after=after)
    return slot if slot is not None and slot <= until else None


# ── cron: the only place with calendars ─────────────────────────────────────────────────


def _next_cron(expression: str, zone: ZoneInfo, after: Instant) -> Instant | None:
    fields = expression.split()
    if len(fields) != 5:
        raise BadSchedule(
            f"the cron expression {expression!r} has {len(fields)} fields; it takes five: "
            "minute, hour, day of month, month, day of week"
        )
    if any(len(field) > _FIELD_LENGTH for field in fields):
        raise BadSchedule("the cron expression is too long to be meant")
    follows_elapsed_time = fields[0].startswith("*") or fields[1].startswith("*")
    at = _EPOCH + timedelta(microseconds=after)
    try:
        if follows_elapsed_time:
            found = _next_elapsed(expression, zone, at)
        else:
            found = _next_on_the_wall(expression, zone, at)
    except CronSimError as exc:
        raise BadSchedule(
            f"the cron expression {expression!r} cannot be understood: {str(exc).lower()}"
        ) from exc
    return None if found is None else (found - _EPOCH) // _MICROSECOND


def _next_on_the_wall(expression: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Fixed times: cronsim's own rule, which forgets in which of two equal hours it started."""
    for slot in CronSim(expression, after.astimezone(zone)):
        found = slot.astimezone(UTC)
        if found > after:
            return found
    return None


def _next_elapsed(expression: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Wildcards: plain calendar arithmetic, as far as the offset to UTC stays the same.

    cronsim goes astray here where clocks change by half an hour.
    """
    at = after
    offset = _offset(zone, at)
    clock = at + offset
    while True:
        # Labelled UTC, a clock reading is one that never changes its offset.
        reading = next(CronSim(expression, clock), None)
        if reading is None:
            return None
        found = reading - offset
        change = _next_change(zone, at, found, offset)
        if change is None:
            return found
        at, offset = change, _offset(zone, change)
        clock = at + offset - timedelta(seconds=1)  # the change itself may be a slot


def _next_change(
    zone: ZoneInfo, after: datetime, until: datetime, offset: timedelta
) -> datetime | None:
    """Return the first second in ``(after, until]`` at which the offset is another one."""
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
    # A name that is unknown, no relative path, or a folder of the zone database.
    except (KeyError, ValueError, OSError) as exc:
        raise BadSchedule(
            f"there is no time zone {timezone!r}; take a name such as 'Europe/Berlin'"
        ) from exc
