"""Triggers that wait for time to pass: for an instant, a length of time, the ticks of a cron."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush

from aioflow import Cron, DagError, Duration, Share, Trigger, TriggerEvent, Watch, as_timedelta
from aioflow_triggers.instants import instant_of

__all__ = ("CronTrigger", "DateTimeTrigger", "Instants", "Lengths", "TimeDeltaTrigger")

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
    """Fires at an instant, or at once if it has passed.

    It goes by the wall clock: where that is set, forward or back, the trigger follows within a
    minute.

    Attributes:
        moment: When; with a time zone. Text is ISO 8601.

    Raises:
        ValueError: If ``moment`` is no instant, has no time zone, or is in no year from 1 to 9999
            in UTC.

    Events:
        One. ``payload`` is ``moment``, in UTC; ``key`` is the same as text.

    Errors:
        None.
    """

    public_fields = ("moment",)

    moment: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "moment", instant_of(self.moment, "moment"))

    def share(self) -> Share:
        """All instants are in one watch."""
        return Share(Instants, _microseconds(self.moment))


@dataclass(frozen=True)
class TimeDeltaTrigger(Trigger[datetime]):
    """Fires once a length of time has passed since its task began to wait.

    The count continues while nobody hosts it: an hour is an hour, also across a restart of the
    daemon, and when the wall clock is set. Time in which the machine is suspended does not count.

    Attributes:
        delta: How long: a timedelta, seconds, or text such as ``"90s"`` and ``"1h30m"``.

    Raises:
        DagError: If ``delta`` is no duration, negative, or longer than a hundred years.

    Events:
        One. ``payload`` is the instant at which the time was over, in UTC, as a clock shows it
        that has not been set since the trigger was hosted; ``key`` is the same as text.

    Errors:
        None.
    """

    public_fields = ("delta",)

    delta: Duration

    def __post_init__(self) -> None:
        as_timedelta(self.delta, "delta")

    def share(self) -> Share:
        """All lengths are in one watch, as long as the wall clock is not set."""
        since = _microseconds(self.since)
        ahead = since - round(self.since_monotonic * 1e6)
        return Share(Lengths, since + as_timedelta(self.delta, "delta") // _MICROSECOND, (ahead,))


@dataclass(frozen=True)
class CronTrigger(Trigger[datetime]):
    """Fires at every tick of a cron expression: a stream without end.

    What an expression means when clocks change is the rule of schedules. Ticks that passed while
    nobody hosted the trigger come at once, in order, none left out. Where the wall clock is set
    back by more than a minute the ticks from then on come, but for those that came before.

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

    public_fields = ("expression", "timezone")

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
            tick = tick.astimezone(UTC)
            if await _has_come(tick, after):
                after = tick
                yield TriggerEvent(tick, key=tick.isoformat())
            else:
                after = min(after, _now())


class Instants(Watch[int, datetime]):
    """One heap of instants, in microseconds since 1970, and one timer: for the first of them."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._sleep: asyncio.Future[None] | None = None

    def joined(self, wanted: int) -> None:
        """Sleep no longer than until then.

        Raises:
            OverflowError: If no calendar has it.
        """
        if not _FIRST <= wanted <= _LAST:
            raise OverflowError(f"no calendar has {wanted} µs")  # the others are not to suffer
        heappush(self._heap, wanted)
        if self._heap[0] == wanted:
            _wake(self._sleep)

    def left(self, wanted: int) -> None:
        """Forget those that were given up, as soon as they are the most."""
        if len(self._heap) > 2 * len(self.wanted) + _FEW:
            self._heap = list(self.wanted)
            heapify(self._heap)

    def next_check(self) -> datetime | None:
        """Return the first of them."""
        return _moment(self._heap[0]) if self._heap else None

    async def run(self) -> AsyncIterator[tuple[int, TriggerEvent[datetime]]]:
        """Yield each instant when it has come."""
        while True:
            now = self._time()
            while self._heap and self._heap[0] <= now:
                due = heappop(self._heap)
                if due in self.wanted:  # else it was given up, or is in the heap twice
                    moment = _moment(due)
                    yield due, TriggerEvent(moment, key=moment.isoformat())
            await self._rest(now)

    def _time(self) -> int:
        """Return the present instant."""
        return _microseconds(_now())

    async def _rest(self, now: int) -> None:
        """Sleep until the first of them may have come."""
        seconds = _LONGEST_SLEEP_SECONDS
        if self._heap:
            # To the next millisecond: a loop knows no smaller unit, and would turn and turn.
            seconds = min(seconds, -(-(self._heap[0] - now) // 1000) / 1000)
        loop = asyncio.get_running_loop()
        self._sleep = loop.create_future()
        timer = loop.call_later(seconds, _wake, self._sleep)
        try:
            await self._sleep
        finally:
            timer.cancel()
            self._sleep = None


class Lengths(Instants):
    """As ``Instants``, by a clock that nobody sets.

    Args:
        ahead: By how much that is ahead of the clock of the loop.
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
    """Return the tick of a stored event; its key is text whatever became of the payload."""
    return event.payload if event.key is None else datetime.fromisoformat(event.key)


async def _has_come(moment: datetime, after: datetime) -> bool:
    """Return once ``moment`` has come, or the clock was set back far behind ``after``."""
    while (left := (moment - _now()) / timedelta(seconds=1)) > 0:
        if _now() < after - _SET_BACK:
            return False
        # A clock that is set while we sleep must not cost more than a minute.
        await asyncio.sleep(min(left, _LONGEST_SLEEP_SECONDS))
    return True


def _now() -> datetime:
    return datetime.now(UTC)
