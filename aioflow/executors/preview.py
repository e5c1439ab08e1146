"""Fire time previews from the timetables of one host: a few at a time, each with a timeout."""

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

__all__ = ("LIMIT_SECONDS", "FireTimePreviews")

LIMIT_SECONDS = 5.0
"""Timeout of one preview."""

_AT_ONCE = 4
"""Previews a host computes at a time, since it also has to report the slots that are due."""


class _Request(msgspec.Struct):
    """A preview request in flight."""

    class_path: str
    number: TriggerNo
    received: anyio.Event
    answer: FireTimesPreviewed | None = None


class FireTimePreviews:
    """Requests previews from one host; its owner calls ``answered`` and ``lost``.

    Args:
        put: Sends a command to the host.
    """

    def __init__(self, put: Callable[[object], None]) -> None:
        self._put = put
        self._numbers = itertools.count(1)
        self._requests: dict[int, _Request] = {}
        self._turn = anyio.Semaphore(_AT_ONCE)

    async def request(
        self, host: StartTrigger, *, after: Timestamp, count: int
    ) -> FireTimesPreviewed:
        """Return the next fire times of a timetable after a timestamp, or the failure.

        After ``LIMIT_SECONDS``, waiting for earlier requests included, the failure is a timeout.
        """
        number = next(self._numbers)
        try:
            with anyio.fail_after(LIMIT_SECONDS):
                async with self._turn:
                    return await self._request(
                        PreviewFireTimes(number, host, after, count, LIMIT_SECONDS)
                    )
        except TimeoutError:
            message = f"it has not answered within {LIMIT_SECONDS:g} s"
            return FireTimesPreviewed(number, failure=_failure("TimeoutError", message, "timeout"))

    async def _request(self, command: PreviewFireTimes) -> FireTimesPreviewed:
        request = _Request(command.host.class_path, command.host.trigger_no, anyio.Event())
        self._requests[command.question] = request
        try:
            self._put(command)
            await request.received.wait()
        finally:
            del self._requests[command.question]
        assert request.answer is not None  # noqa: S101 - it was received
        return request.answer

    def class_of(self, number: TriggerNo) -> str:
        """Return the class of a timetable whose preview is in flight; empty for any other."""
        found = (
            request.class_path for request in self._requests.values() if request.number == number
        )
        return next(found, "")

    def answered(self, answer: FireTimesPreviewed) -> None:
        """Handle a reply. One that no caller waits for any more is dropped."""
        request = self._requests.get(answer.question)
        if request is not None:
            request.answer = answer
            request.received.set()

    def lost(self) -> None:
        """Fail all requests in flight, because the host was lost."""
        for number in list(self._requests):
            failure = _failure("Killed", "its host was lost while it was asked", "lost")
            self.answered(FireTimesPreviewed(number, failure=failure))


def _failure(kind: str, message: str, reason: str) -> Failure:
    return Failure(type=kind, message=message, reason=reason)
