"""Catch-up: decide which of the past fire times get a run, according to the DAG's policy."""

from __future__ import annotations

from itertools import takewhile

from aioflow.core.scheduling.timetable import (
    fire_times_between,
    latest_fire_time,
    next_fire_time,
    starts_at,
)
from aioflow.model.dag import MissedFireTimes, ScheduleSpec
from aioflow.model.timestamps import Timestamp

__all__ = (
    "MISSED_US",
    "missed",
)

MISSED_US = 30_000_000
"""Delay from which a fire time counts as missed under the policy ``skip``."""


def missed(
    schedule: ScheduleSpec,
    timezone: str,
    *,
    cursor: Timestamp,
    now: Timestamp,
    policy: MissedFireTimes,
    limit: int,
    last: Timestamp | None = None,
    salt: str = "",
) -> tuple[list[Timestamp], Timestamp | None]:
    """Return the fire times to run now, oldest first, and the next cursor.

    The cursor is the first fire time that has not been handled; all fire times from the cursor on
    are pending. If the schedule has changed, the cursor need not be a fire time of the new
    schedule. If the run of the next cursor should already have started, ``limit`` was reached and
    the caller must call again.

    Args:
        schedule: A valid schedule that has fire times.
        timezone: The time zone of its wall clock.
        cursor: The cursor returned by the last call. For the first call, the first fire time of the
            DAG.
        now: The end of the period that is searched, inclusive.
        policy: Which missed fire times run: ``all``, the ``latest``, or none.
        limit: Maximum number of fire times per call, at least 1.
        last: No fire time after this one runs.
        salt: See ``starts_at``.

    Raises:
        ValueError: If ``limit`` is below 1, because the cursor could never advance.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    until = now if last is None else min(now, last)

    def start(fire_time: Timestamp) -> Timestamp:
        return starts_at(schedule, timezone, fire_time, salt=salt)

    if policy == "all":
        between = fire_times_between(schedule, timezone, after=cursor - 1, until=until, limit=limit)
        due = list(takewhile(lambda fire_time: start(fire_time) <= now, between))
        passed = due[-1] if due else cursor - 1
    else:
        latest = latest_fire_time(schedule, timezone, after=cursor - 1, until=until)
        while latest is not None and start(latest) > now:
            latest = latest_fire_time(schedule, timezone, after=cursor - 1, until=latest - 1)
        is_too_late = policy == "skip" and latest is not None and now - start(latest) > MISSED_US
        due = [] if latest is None or is_too_late else [latest]
        passed = cursor - 1 if latest is None else latest
    return due, next_fire_time(schedule, timezone, after=passed)
