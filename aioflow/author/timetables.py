"""Authors' own timetables: hosted as triggers whose events are their slots.

A timetable is code of its author, so the daemon never asks it anything. An object with a method
``next_after(moment)`` is one; its fields are what is stored, as those of a trigger.
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
    "SlotTrigger",
    "Timetable",
    "is_timetable",
    "is_timetable_class",
    "slot_trigger",
    "until",
)

_SET_BACK = timedelta(minutes=1)
_LONGEST_SLEEP_SECONDS = 60.0
_AT_ONCE = 100
"""Slots asked for before others on the loop have their turn."""


@runtime_checkable
class Timetable(Protocol):
    """When runs start, as an author works it out. It has to be a pure function of its fields."""

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first slot later than ``moment``, which is in UTC; ``None`` for none any more.

        With a time zone.
        """
        ...


def is_timetable(schedule: object) -> bool:
    """Return whether a schedule is an author's own timetable; ours the daemon works out itself."""
    is_ours = type(schedule).__module__.startswith("aioflow.")
    return not is_ours and not isinstance(schedule, type) and isinstance(schedule, Timetable)


def is_timetable_class(found: object) -> bool:
    """Return whether this is a class of such timetables."""
    return isinstance(found, type) and hasattr(found, "next_after")


def slot_trigger(
    schedule: Timetable, *, catchup: bool, begin: Timestamp | None, end: Timestamp | None
) -> SlotTrigger:
    """Return the trigger that a timetable is hosted as.

    Raises:
        Unserializable: If the timetable cannot be stored.
    """
    path, fields = serialize(cast("Trigger[Any]", schedule))
    return SlotTrigger(path, fields, _code_of(type(schedule)), catchup, begin, end)


def _code_of(cls: type) -> str:
    """Return a digest of the module of a timetable: with other code it is hosted anew."""
    try:
        source = inspect.getsource(inspect.getmodule(cls) or cls)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class SlotTrigger(Trigger[None]):
    """Yields an event at each slot of a timetable; its key is the slot, microseconds since 1970.

    Attributes:
        timetable: The class path of the timetable.
        fields: msgpack of its fields.
        code: What its code was when it was written down.
        catchup: Whether each slot that was missed counts, or only the latest.
        begin: Before this there is no slot; ``None`` for when the trigger began.
        end: Behind this there is none.
    """

    timetable: str
    fields: bytes
    code: str
    catchup: bool = False
    begin: Timestamp | None = None
    end: Timestamp | None = None

    def __post_init__(self) -> None:
        """Until somebody wants to know, nobody is told what is waited for."""
        self._tell: Callable[[datetime | None], None] = _nobody

    def load(self, find: Callable[[str], type]) -> None:
        """Make the timetable itself, of the class that is found by its path."""
        cls = cast("type[Trigger[Any]]", find(self.timetable))
        self._made: Any = construct(cls, self.fields)

    def expect_by(self, tell: Callable[[datetime | None], None]) -> None:
        """Have ``tell`` called with each slot that is waited for; ``None`` for none any more."""
        self._tell = tell

    async def foresee(self, after: datetime, count: int) -> list[datetime]:
        """Return the slots behind ``after``, at most so many.

        Others on the loop have their turn after each.
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
        """Yield the slots, each when it has come."""
        import asyncio  # a DAG file that only describes tasks does without

        after = self._begins_after()
        while (slot := await self._next(after)) is not None:
            self._tell(slot)
            if await self._has_come(slot, after):
                after = slot
                yield TriggerEvent(None, key=str(to_timestamp(slot)))
            else:
                after = self._from_now_on()
        self._tell(None)
        await asyncio.Event().wait()  # there is none any more, and nothing to begin again

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
        """Return an instant behind which the last slot up to ``since`` comes, and few before it.

        ``since`` itself if there is none behind ``first``.
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
        """Return once a slot has come, or the clock was set back far behind ``after``.

        A clock that is set meanwhile costs a minute at most.
        """
        while (left := (slot - _now()) / timedelta(seconds=1)) > 0:
            if self._from_now_on() < after - _SET_BACK:
                return False
            await _rest(min(left, _LONGEST_SLEEP_SECONDS))
        return True

    def _from_now_on(self) -> datetime:
        """Return where slots begin once the clock was set back; a known key has no second run."""
        return _now() if self.begin is None else max(_now(), to_datetime(self.begin - 1))

    async def _next(self, after: datetime) -> datetime | None:
        """Return the next slot that counts."""
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


def _nobody(_slot: datetime | None) -> None:
    """Who is told where nobody asked."""


async def until(moment: datetime) -> None:
    """Return when a moment has come; a clock that is set meanwhile costs a minute at most."""
    while (left := (moment - _now()) / timedelta(seconds=1)) > 0:
        await _rest(min(left, _LONGEST_SLEEP_SECONDS))


async def _rest(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)  # noqa: TID251 - in a process of user code


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - in a process of user code
