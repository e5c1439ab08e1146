"""Triggers that wait for time to pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from aioflow import Duration, Trigger, TriggerEvent, as_timedelta

__all__ = ("DateTimeTrigger", "TimeDeltaTrigger")

_LONGEST_SLEEP_SECONDS = 60.0


@dataclass(frozen=True)
class DateTimeTrigger(Trigger[datetime]):
    """Fires at an instant, or at once if it has passed.

    It goes by the wall clock: where that is set, forward or back, the trigger follows within a
    minute.

    Attributes:
        moment: When; with a time zone.

    Raises:
        ValueError: If ``moment`` has no time zone.

    Events:
        One. ``payload`` is ``moment``, in UTC; ``key`` is the same as text.

    Errors:
        None.
    """

    moment: datetime

    def __post_init__(self) -> None:
        if self.moment.tzinfo is None:
            raise ValueError(f"moment={self.moment} needs a time zone")

    async def run(self) -> AsyncIterator[TriggerEvent[datetime]]:
        """Yield one event when the moment has come."""
        moment = await _wait_until(self.moment)
        yield TriggerEvent(moment, key=moment.isoformat())


@dataclass(frozen=True)
class TimeDeltaTrigger(Trigger[datetime]):
    """Fires once a length of time has passed since its task began to wait.

    The count goes on while nobody hosts it: an hour is an hour, also across a restart of the
    daemon.

    Attributes:
        delta: How long: a timedelta, seconds, or text such as ``"90s"`` and ``"1h30m"``.

    Raises:
        DagError: If ``delta`` is no duration, negative, or longer than a hundred years.

    Events:
        One. ``payload`` is the instant at which the time was over, in UTC; ``key`` is the same
        as text.

    Errors:
        None.
    """

    delta: Duration

    def __post_init__(self) -> None:
        as_timedelta(self.delta, "delta")

    async def run(self) -> AsyncIterator[TriggerEvent[datetime]]:
        """Yield one event when the time is over."""
        moment = await _wait_until(self.since + as_timedelta(self.delta, "delta"))
        yield TriggerEvent(moment, key=moment.isoformat())


async def _wait_until(moment: datetime) -> datetime:
    """Return ``moment`` in UTC, not before it has come."""
    moment = moment.astimezone(UTC)
    while (left := (moment - _now()) / timedelta(seconds=1)) > 0:
        # A clock that is set while we sleep must not cost more than a minute.
        await asyncio.sleep(min(left, _LONGEST_SLEEP_SECONDS))
    return moment


def _now() -> datetime:
    return datetime.now(UTC)
