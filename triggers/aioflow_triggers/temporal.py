"""Triggers that wait for a point in time, a duration, or the fire times of a cron expression."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush

from aioflow import Cron, DagError, Duration, Share, Trigger, TriggerEvent, Watch, as_timedelta
from aioflow_triggers.instants import instant_of

__all__ = ("CronTrigger", "DateTimeTrigger", "Lengths", "TimeDeltaTrigger", "TimeHeap")

_LONGEST_SLEEP_SECONDS = 60.0
_FEW = 1_000
_SET_BACK = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class DateTimeTrigger(Trigger[datetime]):
    """Fires at a point in time, or immediately if that time has passed.

    It uses the wall clock. If the clock is changed, forward or back, the trigger adapts within a
    minute.

    Attributes:
        moment: The time, with a time zone. Text is ISO 8601.

    Raises:
        ValueError: If ``moment`` is invalid, has no time zone, or is not in the years 1 to 9999 in
            UTC.

    Events:
        One. ``payload`` is ``moment`` in UTC; ``key`` is this time as text.

    Errors:
        None.
    """

    public_fields = ("moment",)

    moment: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "moment", instant_of(self.moment, "moment"))

    def share(self) -> Share:
        """Share one watch between all points in time."""
        return Share(TimeHeap, _microseconds(self.moment))


@dataclass(frozen=True)
class TimeDeltaTrigger(Trigger[datetime]):
    """Fires once a duration has passed since its task began to wait.

    Time in which the trigger is not running counts: an hour stays an hour across a restart of the
    daemon and across changes of the wall clock. Time in which the machine is suspended does not
    count.

    Attributes:
        delta: The duration: a timedelta, seconds, or text such as ``"90s"`` and ``"1h30m"``.

    Raises:
        DagError: If ``delta`` is not a duration, negative, or longer than a hundred years.

    Events:
        One. ``payload`` is the time at which the duration had passed, in UTC, by a clock that
        ignores
        changes of the wall clock since the trigger started; ``key`` is this time as text.

    Errors:
        None.
    """

    public_fields = ("delta",)

    delta: Duration

    def __post_init__(self) -> None:
        as_timedelta(self.delta, "delta")

    def share(self) -> Share:
        """Share one watch between all durations that start between two wall clock changes."""
        since = _microseconds(self.since)
        ahead = since - round(self.since_monotonic * 1e6)
        return Share(Lengths, since + as_timedelta(self.delta, "delta") // _MICROSECOND, (ahead,))


@dataclass(frozen=True)
class CronTrigger(Trigger[datetime]):
    """Fires at every fire time of a cron expression: a stream without end.

    Changes between standard and daylight saving time are handled as in schedules. Fire times that
    passed while the trigger was not running are yielded immediately, in order and without gaps. If
    the wall clock is set back by more than a minute, the trigger continues from the new time, but
    omits fire times that it has yielded already.

    Attributes:
        expression: Five fields, or a name such as ``@daily``.
        timezone: The time zone of the expression; a name such as ``Asia/Kolkata``.

    Raises:
        DagError: If the expression is invalid or never fires, or the time zone is unknown.

    Events:
        Many, starting with the first fire time after the task began to wait. ``payload`` is the
        fire
        time in UTC; ``key`` is this time as text.

    Errors:
        None. If there is no fire time within fifty years, the trigger ends.
    """

    public_fields = ("expression", "timezone")

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if Cron(self.expression).next_after(_SOME_DAY, self.timezone) is None:
            raise DagError(f"the cron expression {self.expression!r} never fires")

    async def run(self) -> AsyncIterator[TriggerEvent[datetime]]:
        """Yield an event at each fire time."""
        cron = Cron(self.expression)
        after = self.since if self.last is None else _instant(self.last)
        while (tick := cron.next_after(after, self.timezone)) is not None:
            tick = tick.astimezone(UTC)
            if await _has_come(tick, after):
                after = tick
                yield TriggerEvent(tick, key=tick.isoformat())
            else:
                after = min(after, _now())


class TimeHeap(Watch[int, datetime]):
    """A heap of times, in microseconds since 1970, with a single timer for the first of them."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._sleep: asyncio.Future[None] | None = None

    def joined(self, wanted: int) -> None:
        """Add a time. If it is the earliest, shorten the sleep.

        Raises:
            OverflowError: If it is out of the range of ``datetime``.
        """
        if not _FIRST <= wanted <= _LAST:
            raise OverflowError(f"no calendar has {wanted} µs")  # here, to fail this trigger only
        heappush(self._heap, wanted)
        if self._heap[0] == wanted:
            _wake(self._sleep)

    def left(self, wanted: int) -> None:
        """Rebuild the heap once most of its times are no longer wanted."""
        if len(self._heap) > 2 * len(self.wanted) + _FEW:
            self._heap = list(self.wanted)
            heapify(self._heap)

    def next_check(self) -> datetime | None:
        """Return the earliest of the times."""
        return _moment(self._heap[0]) if self._heap else None

    async def run(self) -> AsyncIterator[tuple[int, TriggerEvent[datetime]]]:
        """Yield each time when it is reached."""
        while True:
            now = self._time()
            while self._heap and self._heap[0] <= now:
                due = heappop(self._heap)
                if due in self.wanted:  # else it was cancelled, or is in the heap twice
                    moment = _moment(due)
                    yield due, TriggerEvent(moment, key=moment.isoformat())
            await self._rest(now)

    def _time(self) -> int:
        """Return the current time in microseconds since 1970."""
        return _microseconds(_now())

    async def _rest(self, now: int) -> None:
        """Sleep until the earliest of the times may have been reached."""
        seconds = _LONGEST_SLEEP_SECONDS
        if self._heap:
            # Rounded up to a millisecond, the resolution of the event loop. Otherwise the loop
            # would be busy.
            seconds = min(seconds, -(-(self._heap[0] - now) // 1000) / 1000)
        loop = asyncio.get_running_loop()
        self._sleep = loop.create_future()
        timer = loop.call_later(seconds, _wake, self._sleep)
        try:
            await self._sleep
        finally:
            timer.cancel()
            self._sleep = None


class Lengths(TimeHeap):
    """A ``TimeHeap`` for durations, on a clock that is never set forward or back.

    Args:
        ahead: How far this clock is ahead of the clock of the event loop, in microseconds.
    """

    def __init__(self, ahead: int) -> None:
        super().__init__()
        self._ahead = ahead

    def _time(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e6) + self._ahead


def _wake(sleep: asyncio.Future[None] | None) -> None:
    if sleep is not None and not sleep.done():
        sleep.set_result(None)


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _instant(event: TriggerEvent[datetime]) -> datetime:
    """Return the fire time of a stored event. It is read from the key, which is always text."""
    return event.payload if event.key is None else datetime.fromisoformat(event.key)


async def _has_come(moment: datetime, after: datetime) -> bool:
    """Wait for ``moment``; return ``False`` if the clock was set back far before ``after``."""
    while (left := (moment - _now()) / timedelta(seconds=1)) > 0:
        if _now() < after - _SET_BACK:
            return False
        # If the clock is changed during the sleep, the wait is at most a minute too long.
        await asyncio.sleep(min(left, _LONGEST_SLEEP_SECONDS))
    return True


def _now() -> datetime:
    return datetime.now(UTC)
