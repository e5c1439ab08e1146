"""Custom timetables, which run as triggers that yield an event at each fire time.

A timetable is user code, so the daemon never calls it. Any object with a method
``next_after(moment)`` is a timetable; its fields are stored like those of a trigger.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, cast, runtime_checkable

from aioflow.author.trigger import Trigger, TriggerEvent, construct, serialize
from aioflow.errors import BadSchedule
from aioflow.model.timestamps import Timestamp, to_datetime, to_timestamp

__all__ = (
    "Timetable",
    "TimetableTrigger",
    "is_timetable",
    "is_timetable_class",
    "timetable_trigger",
    "until",
)

_SET_BACK = timedelta(minutes=1)
_LONGEST_SLEEP_SECONDS = 60.0
_AT_ONCE = 100
"""How many fire times are computed before the event loop gets control."""


@runtime_checkable
class Timetable(Protocol):
    """A custom schedule, computed by user code. It must be a pure function of its fields."""

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first fire time after ``moment``; ``None`` if there are no more.

        ``moment`` is in UTC. The result must have a time zone.
        """
        ...


def is_timetable(schedule: object) -> bool:
    """Return whether a schedule is a custom timetable, rather than one of aioflow's."""
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
    return TimetableTrigger(path, fields, _code_of(type(schedule)), catchup, begin, end)


def _code_of(cls: type) -> str:
    """Return a digest of a timetable's module: a code change restarts its trigger."""
    try:
        source = inspect.getsource(inspect.getmodule(cls) or cls)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class TimetableTrigger(Trigger[None]):
    """Yields an event at each fire time of a timetable; its key is the time in µs since 1970.

    Attributes:
        timetable: The class path of the timetable.
        fields: msgpack of its fields.
        code: A digest of its code when the DAG file was parsed.
        catchup: Whether every missed fire time counts, or only the latest.
        begin: The earliest fire time; ``None`` for the time the trigger started.
        end: The latest fire time.
    """

    timetable: str
    fields: bytes
    code: str
    catchup: bool = False
    begin: Timestamp | None = None
    end: Timestamp | None = None

    def __post_init__(self) -> None:
        """Set the callback for fire times, which does nothing by default."""
        self._tell: Callable[[datetime | None], None] = _ignore

    def load(self, find: Callable[[str], type]) -> None:
        """Create the timetable from the class that ``find`` returns for its path."""
        cls = cast("type[Trigger[Any]]", find(self.timetable))
        self._made: Any = construct(cls, self.fields)

    def expect_by(self, tell: Callable[[datetime | None], None]) -> None:
        """Call ``tell`` with each fire time that is waited for; ``None`` after the last one."""
        self._tell = tell

    async def foresee(self, after: datetime, count: int) -> list[datetime]:
        """Return the fire times after ``after``, at most ``count``.

        Gives up control of the event loop after each of them.
        """
        if self.begin is not None:
            after = max(after, to_datetime(self.begin - 1))
        slots: list[datetime] = []
        while len(slots) < count and (slot := self._slot(after)) is not None:
            slots.append(slot)
            after = slot
            await _rest(0)
        return slots

    async def run(self) -> AsyncIterator[TriggerEvent[None]]:
        """Yield an event at each fire time."""
        import asyncio  # imported late: a DAG file that only describes tasks does not need it

        after = self._begins_after()
        while (slot := await self._next(after)) is not None:
            self._tell(slot)
            if await self._has_come(slot, after):
                after = slot
                yield TriggerEvent(None, key=str(to_timestamp(slot)))
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

        ``since`` itself if there is no fire time after ``first``.
        """
        reach, after = timedelta(minutes=1), since
        while after > first:
            after = max(first, since - reach)
            reach *= 2
            slot = self._slot(after)
            if slot is not None and slot <= since:
                return after
        return since

    async def _has_come(self, slot: datetime, after: datetime) -> bool:
        """Wait for a fire time; return ``False`` if the clock was set back far before ``after``.

        If the clock is changed meanwhile, the wait is at most a minute too long.
        """
        while (left := (slot - _now()) / timedelta(seconds=1)) > 0:
            if self._from_now_on() < after - _SET_BACK:
                return False
            await _rest(min(left, _LONGEST_SLEEP_SECONDS))
        return True

    def _from_now_on(self) -> datetime:
        """Return where to continue after the clock was set back; known keys start no second run."""
        return _now() if self.begin is None else max(_now(), to_datetime(self.begin - 1))

    async def _next(self, after: datetime) -> datetime | None:
        """Return the next fire time that counts."""
        slot, asked = self._slot(after), 0
        while slot is not None and not self.catchup:
            following = self._slot(slot)
            if following is None or following > _now():
                break
            slot, asked = following, asked + 1
            if asked % _AT_ONCE == 0:
                await _rest(0)
        return slot

    def _slot(self, after: datetime) -> datetime | None:
        slot = self._made.next_after(after)
        if slot is None:
            return None
        if not isinstance(slot, datetime) or slot.tzinfo is None:
            raise BadSchedule(f"{self.timetable} gave {slot!r}; a slot has a time zone")
        slot = slot.astimezone(UTC)
        if slot <= after:
            raise BadSchedule(f"{self.timetable} gave {slot} as the slot after {after}")
        end = self.end
        return None if end is not None and to_timestamp(slot) > end else slot


def _ignore(_slot: datetime | None) -> None:
    """Do nothing: the default callback."""


async def until(moment: datetime) -> None:
    """Wait until a time; if the clock is changed, the wait is at most a minute too long."""
    while (left := (moment - _now()) / timedelta(seconds=1)) > 0:
        await _rest(min(left, _LONGEST_SLEEP_SECONDS))


async def _rest(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)  # noqa: TID251 - in a process of user code


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - in a process of user code
