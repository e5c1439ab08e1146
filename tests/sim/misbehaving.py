"""Badly written triggers."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from aioflow.author.client import named_events
from aioflow.author.deferral import TaskFailedEvent, TaskSkippedEvent, TaskSuccessEvent
from aioflow.author.trigger import Share, Trigger, TriggerEvent, Watch
from aioflow.worker.task_supervisor import current_coroutine
from aioflow.worker.trigger import shared_poller
from tests.sim.script import StreamPlan

__all__ = ("NAMED", "RAISED", "Misbehaving", "Named", "Streaming", "draw", "draw_stream")

_HERE = __name__
NAMED = f"{_HERE}:Named"
"""The class of triggers that wait for named events."""

_TOO_LONG_SECONDS = 40.0
_WELL = ("event", "event", "event", "many", "none", "raise")
_BADLY = (
    "raise", "exit", "interrupt", "generator exit", "cancelled", "base", "unspeakable",
    "foreign", "odd key", "no msgpack", "stubborn", "slow to close",
)  # fmt: skip
_FOR_EVER = ("hang", "swallow")
_ELSEWHERE = ("Returns", "Refuses", "RAISED", "NoTrigger")
"""Ways to misbehave of a trigger that cannot be constructed or is none.

A missing class is left out: the host would wait for its code, which cannot be restored here.
"""
_FORMS = ("Misbehaving", "Together", "Quietly")
"""Trigger classes: with their own coroutine; in a shared poller, with and without a cleanup."""
_ENDINGS = {"success": TaskSuccessEvent, "failed": TaskFailedEvent, "skipped": TaskSkippedEvent}
_LEAVING = ("", "", "raise", "exit", "hang", "swallow")
_DELAYS = (0.0, 0.001, 5.0, 600.0)


class Base(BaseException):
    """An exception that is not an ``Exception``."""


class Unspeakable(Exception):
    """An exception whose text cannot be produced."""

    def __str__(self) -> str:
        raise Base


DRAWN = ("as drawn",)
"""The arguments of every exception raised here, by which an exit raised by a trigger is recognized.
"""

RAISED: dict[str, type[BaseException]] = {
    "raise": OSError,
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "generator exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "base": Base,
    "unspeakable": Unspeakable,
}


@dataclass
class Named(Trigger[list[Any]]):
    """Waits for a named event as the built-in trigger does. Its event carries its token."""

    password: str
    token: list[int]
    plan: None = None
    topic: str = ""
    after: int = -1

    async def run(self) -> AsyncIterator[TriggerEvent[list[Any]]]:
        events = named_events(self.topic, after=self.after if self.after >= 0 else None)
        try:
            async for event in events:
                told = ["event", self.token, {"event_no": event.id}]
                yield TriggerEvent(told, key=str(event.id))
        finally:
            await events.aclose()


def draw(
    rng: random.Random, carried: bytes, *, badly: bool, has_timeout: bool, ends: str = ""
) -> tuple[str, bytes]:
    """Return the class path and fields of a trigger. It may hang only if it has a timeout.

    Args:
        carried: Further fields in msgpack, with a token that the events of the trigger carry.
        ends: How the event of the trigger ends the task, if it does.
    """
    ways: tuple[str, ...] = _WELL
    if badly:
        ways = (*_BADLY, *_FOR_EVER) if has_timeout else _BADLY
    name = rng.choice(_ELSEWHERE) if badly and rng.random() < 0.2 else rng.choice(_FORMS)
    fields = {
        "carried": msgspec.msgpack.decode(carried),
        "way": rng.choice(ways),
        "delay": rng.choice(_DELAYS),
        "leaving": rng.choice(_LEAVING) if badly else "",
        "ends": ends,
    }
    return f"{_HERE}:{name}", msgspec.msgpack.encode(fields)


def draw_stream(rng: random.Random, carried: bytes, dag_version: StreamPlan) -> tuple[str, bytes]:
    """Return the class path and fields of a stream."""
    fields = {
        "carried": msgspec.msgpack.decode(carried),
        "keyed": dag_version.keyed,
        "count": dag_version.count,
        "ends": dag_version.ends,
        "between": rng.choice((0.0, 0.0, 0.001, 5.0)),
        "goes_on": rng.random() < 0.5,
    }
    return f"{_HERE}:Streaming", msgspec.msgpack.encode(fields)


@dataclass
class Misbehaving(Trigger[Any]):
    """Behaves as drawn. Each assignment yields a different payload."""

    carried: Any
    way: str
    delay: float
    leaving: str
    ends: str = ""

    payloads: ClassVar[Any] = itertools.count()
    killed: ClassVar[set[int]] = set()
    """The triggers whose ``on_kill`` was called."""

    async def run(self) -> AsyncIterator[TriggerEvent[Any]]:
        await asyncio.sleep(self.delay)
        if (raised := RAISED.get(self.way)) is not None:
            raise raised(*DRAWN)
        if self.way == "none":
            return
        if self.way in _FOR_EVER:
            await _never(swallow=self.way == "swallow")
        try:
            for event in self.events():
                yield event
        finally:
            if self.way == "stubborn":
                yield TriggerEvent("I do not go")
            elif self.way == "slow to close":
                await asyncio.sleep(_TOO_LONG_SECONDS)

    def events(self) -> list[Any]:
        """Return the events that the trigger yields."""
        payload = [f"event {next(self.payloads)}", self.carried["token"]]
        if self.ends:
            return [_ENDINGS[self.ends]("as drawn")]
        match self.way:
            case "foreign":
                return [payload]
            case "odd key":
                return [TriggerEvent(payload, key="\ud800")]
            case "no msgpack":
                return [TriggerEvent(object())]
            case _:
                second = TriggerEvent("second", key="same")
                return [TriggerEvent(payload, key="same"), second, second]

    async def on_kill(self) -> None:
        hosted = current_coroutine.get()
        assert hosted is not None
        self.killed.add(hosted.number)

    async def cleanup(self, reason: str) -> None:
        match self.leaving:
            case "raise":
                raise OSError(reason)
            case "exit":
                raise SystemExit(*DRAWN)
            case "hang" | "swallow" as how:
                await _never(swallow=how == "swallow")
            case _:
                return


class Corner(Watch[bytes, Any]):
    """A shared poller for triggers that misbehave in the same way."""

    def __init__(self, way: str, delay: float) -> None:
        self._way = way
        self._delay = delay
        self._due: asyncio.Queue[bytes] = asyncio.Queue()

    @property
    def is_always_sound(self) -> bool:
        """Whether it fails only as a whole, and each time so late that no trigger is charged."""
        is_failing = self._way == "none" or (self._way in RAISED and self._way != "raise")
        return is_failing and self._delay > shared_poller._SOUND_SECONDS

    def joined(self, wanted: bytes) -> None:
        """Finish the trigger after the delay, or never if it hangs."""
        if self._way not in _FOR_EVER:
            asyncio.get_running_loop().call_later(self._delay, self._due.put_nowait, wanted)

    async def run(self) -> AsyncIterator[tuple[bytes, Any]]:
        """Yield the events of all triggers, or misbehave as drawn."""
        try:
            while True:
                if self._way == "swallow":
                    await _never(swallow=True)
                wanted = await self._due.get()
                if self._way == "none":
                    return
                if (raised := RAISED.get(self._way)) is not None:
                    if self._way == "raise":
                        yield wanted, OSError("as drawn")
                        continue
                    raise raised(*DRAWN)
                token, ends = msgspec.msgpack.decode(wanted)
                told = Misbehaving({"token": token}, self._way, self._delay, "", ends)
                for event in told.events():
                    yield wanted, event
        finally:
            if self._way == "stubborn":
                yield b"", TriggerEvent("I do not go")
            elif self._way == "slow to close":
                await asyncio.sleep(_TOO_LONG_SECONDS)


class Together(Misbehaving):
    """A trigger that uses a shared poller and has a ``cleanup``."""

    def share(self) -> Share | None:
        """Return one poller for each way to misbehave."""
        wanted = msgspec.msgpack.encode([self.carried["token"], self.ends])
        return Share(Corner, wanted, of=(self.way, self.delay))


class Quietly(Together):
    """A trigger that uses a shared poller and has no methods, only data."""

    cleanup = Trigger.cleanup
    on_kill = Trigger.on_kill


class Returns(Misbehaving):
    """A trigger whose ``run`` is not a generator."""

    async def run(self) -> Any:  # type: ignore[override]
        return TriggerEvent(1)


class Refuses(Misbehaving):
    """A trigger whose construction raises."""

    def __init__(self, carried: Any, way: str, delay: float, leaving: str, ends: str) -> None:
        raise SystemExit(*DRAWN)


@dataclass
class Streaming(Trigger[Any]):
    """Yields its numbers in order. When reassigned, starts over or continues where it was."""

    carried: Any
    keyed: bool
    count: int
    ends: str
    between: float
    goes_on: bool

    async def run(self) -> AsyncIterator[TriggerEvent[Any]]:
        assignment_id, first = next(Misbehaving.payloads), 0
        if self.last is not None and self.goes_on:
            first = self.last.payload[-1] + 1
        for number in range(first, self.count):
            await asyncio.sleep(self.between)
            which = [number] if self.keyed else [assignment_id, number]
            key = str(number) if self.keyed else None
            yield TriggerEvent(["event", self.carried["token"], *which], key=key)
        if self.ends == "fail":
            raise OSError("as drawn")
        if self.ends == "hang":
            await _never(swallow=False)


class NoTrigger:
    """A class that is not a trigger."""


async def _never(*, swallow: bool) -> None:
    while True:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if not swallow:
                raise
