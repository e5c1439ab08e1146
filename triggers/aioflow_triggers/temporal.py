"""Triggers that wait for time to pass: for an instant, a length of time, the ticks of a cron."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from aioflow import Cron, DagError, Duration, Trigger, TriggerEvent, as_timedelta

__all__ = ("CronTrigger", "DateTimeTrigger", "TimeDeltaTrigger")

_LONGEST_SLEEP_SECONDS = 60.0
_SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC)


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


@dataclass(frozen=True)
class CronTrigger(Trigger[datetime]):
    """Fires at every tick of a cron expression: a stream without end.

    What an expression means when clocks change is the rule of schedules. Ticks that passed while
    nobody hosted the trigger come at once, in order, none left out.

    Attributes:
        expression: Five fields, or a name such as ``@daily``.
        timezone: What the clock on the wall shows; a name such as ``Asia/Kolkata``.

    Raises:
        DagError: If the expression cannot be understood or never fires, or there is no such zone.

    Events:
        Many: the first is the first tick after the task began to wait. ``payload`` is the tick,
        in UTC; ``key`` is the same as text.

    Errors:
        None. Where no tick follows within fifty years the trigger ends.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if Cron(self.expression).next_after(_SOME_DAY, self.timezone) is None:
            raise DagError(f"the cron expression {self.expression!r} never fires")

    async def run(self) -> AsyncIterator[TriggerEvent[datetime]]:
        """Yield an event at each tick."""
        cron = Cron(self.expression)
        after = self.since if self.last is None else _instant(self.last)
        while (tick := cron.next_after(after, self.timezone)) is not None:
            after = await _wait_until(tick)
            yield TriggerEvent(after, key=after.isoformat())


def _instant(event: TriggerEvent[datetime]) -> datetime:
    """Return the tick of a stored event; its key is text whatever became of the payload."""
    return event.payload if event.key is None else datetime.fromisoformat(event.key)


async def _wait_until(moment: datetime) -> datetime:
    """Return ``moment`` in UTC, not before it has come."""
    moment = moment.astimezone(UTC)
    while (left := (moment - _now()) / timedelta(seconds=1)) > 0:
        # A clock that is set while we sleep must not cost more than a minute.
        await asyncio.sleep(min(left, _LONGEST_SLEEP_SECONDS))
    return moment


def _now() -> datetime:
    return datetime.now(UTC)
