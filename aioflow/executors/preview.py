"""Questions to the timetables of one host: few at a time, each answered or given up in time."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import anyio
import msgspec

from aioflow.model.ids import TriggerNo
from aioflow.model.states import Failure
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import PreviewFireTimes, StartTrigger
from aioflow.protocol.reports import FireTimesPreviewed

__all__ = ("LIMIT_SECONDS", "Foresight")

LIMIT_SECONDS = 5.0
"""How long whoever asks is kept."""

_AT_ONCE = 4
"""Questions a host has at a time: it has slots to tell when they come."""


class _Asked(msgspec.Struct):
    """A question on its way."""

    class_path: str
    number: TriggerNo
    heard: anyio.Event
    answer: FireTimesPreviewed | None = None


class Foresight:
    """Asks one host; ``answered`` and ``lost`` are told by whoever listens to it.

    Args:
        put: Sends an order to the host.
    """

    def __init__(self, put: Callable[[object], None]) -> None:
        self._put = put
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._turn = anyio.Semaphore(_AT_ONCE)

    async def ask(self, host: StartTrigger, *, after: Timestamp, count: int) -> FireTimesPreviewed:
        """Return the slots of a timetable behind an instant, or why they cannot be said."""
        number = next(self._numbers)
        try:
            with anyio.fail_after(LIMIT_SECONDS):
                async with self._turn:
                    return await self._ask(
                        PreviewFireTimes(number, host, after, count, LIMIT_SECONDS)
                    )
        except TimeoutError:
            message = f"it has not answered within {LIMIT_SECONDS:g} s"
            return FireTimesPreviewed(number, failure=_failure("TimeoutError", message, "timeout"))

    async def _ask(self, order: PreviewFireTimes) -> FireTimesPreviewed:
        asked = _Asked(order.host.class_path, order.host.trigger_no, anyio.Event())
        self._asked[order.question] = asked
        try:
            self._put(order)
            await asked.heard.wait()
        finally:
            del self._asked[order.question]
        assert asked.answer is not None  # noqa: S101 - it was heard
        return asked.answer

    def class_of(self, number: TriggerNo) -> str:
        """Return the class of a timetable that is asked just now; empty for any other."""
        found = (asked.class_path for asked in self._asked.values() if asked.number == number)
        return next(found, "")

    def answered(self, answer: FireTimesPreviewed) -> None:
        """The host has answered; perhaps nobody waits for that any more."""
        asked = self._asked.get(answer.question)
        if asked is not None:
            asked.answer = answer
            asked.heard.set()

    def lost(self) -> None:
        """The host is gone with what it was asked."""
        for number in list(self._asked):
            failure = _failure("Killed", "its host was lost while it was asked", "lost")
            self.answered(FireTimesPreviewed(number, failure=failure))


def _failure(kind: str, message: str, reason: str) -> Failure:
    return Failure(type=kind, message=message, reason=reason)
