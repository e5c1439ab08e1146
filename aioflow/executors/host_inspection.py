"""Inspection of a shared host: its load, its triggers and sensors, and fire time previews.

Timetables in the host compute the previews. Only a few are computed at a time, each with a timeout.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import anyio
import msgspec

from aioflow.model.ids import TriggerNo
from aioflow.model.states import Failure
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import TriggerDescription
from aioflow.protocol.commands import Describe, PreviewFireTimes, StartTrigger
from aioflow.protocol.reports import Described, FireTimesPreviewed

__all__ = (
    "DESCRIPTION_SECONDS",
    "PREVIEW_SECONDS",
    "DescriptionRequests",
    "FireTimePreviews",
    "HostLoad",
    "WatchLoad",
)


class WatchLoad(NamedTuple):
    """The shared pollers of one trigger class in a host."""

    class_path: str
    how_many: int
    next_check_at: Timestamp | None


class HostLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load of one shared host.

    Attributes:
        name: Its role.
        pid: Its process id; ``None`` while there is no process.
        lag_seconds: Greatest lag of its event loop in the last 30 pings (half a minute).
        evicted: Number of suspended coroutines it has evicted since the daemon started, because
            memory was short.
        triggers: Number of triggers it runs.
        waiting: Number of triggers that wait for capacity.
        capacity: Maximum number of triggers; 0 if it runs no triggers.
        watches: Pollers that its triggers share; ``None`` until it has reported them.
    """

    name: str
    pid: int | None
    lag_seconds: float
    evicted: int = 0
    triggers: int = 0
    waiting: int = 0
    capacity: int = 0
    watches: Sequence[WatchLoad] | None = None


DESCRIPTION_SECONDS = 0.5
"""Maximum seconds that a query waits for the host, whose event loop may be blocked."""


class _DescriptionRequest:
    """A query that is waiting for its reply."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.answer: dict[int, TriggerDescription] = {}


class DescriptionRequests:
    """Requests to one host for descriptions of triggers.

    Pass its ``Described`` reports to ``answered``.

    Args:
        put: Sends a command to the host.
    """

    def __init__(self, put: Callable[[object], None]) -> None:
        self._put = put
        self._questions = itertools.count(1)
        self._waiting: dict[int, _DescriptionRequest] = {}

    async def request(self, numbers: Sequence[int]) -> dict[int, TriggerDescription]:
        """Return the host's descriptions by number, or ``{}`` if it does not reply in time."""
        question = next(self._questions)
        waiting = self._waiting[question] = _DescriptionRequest()
        self._put(Describe(question, tuple(numbers)))
        try:
            with anyio.move_on_after(DESCRIPTION_SECONDS):
                await waiting.answered.wait()
        finally:
            del self._waiting[question]
        return waiting.answer

    def answered(self, described: Described) -> None:
        """Handle a reply. A reply that is too late is dropped."""
        waiting = self._waiting.get(described.question)
        if waiting is not None:
            waiting.answer = dict(described.triggers)
            waiting.answered.set()


PREVIEW_SECONDS = 5.0
"""Timeout of one preview."""

_PREVIEWS_AT_ONCE = 4
"""Maximum previews that a host computes at a time, because it must also report due fire times."""


class _PreviewRequest(msgspec.Struct):
    """A preview request in flight."""

    class_path: str
    number: TriggerNo
    received: anyio.Event
    answer: FireTimesPreviewed | None = None


class FireTimePreviews:
    """Requests previews from one host. Its owner calls ``answered`` and ``lost``.

    Args:
        put: Sends a command to the host.
    """

    def __init__(self, put: Callable[[object], None]) -> None:
        self._put = put
        self._numbers = itertools.count(1)
        self._requests: dict[int, _PreviewRequest] = {}
        self._turn = anyio.Semaphore(_PREVIEWS_AT_ONCE)

    async def request(
        self, host: StartTrigger, *, after: Timestamp, count: int
    ) -> FireTimesPreviewed:
        """Return the next fire times of a timetable after a timestamp, or the failure.

        If this takes longer than ``PREVIEW_SECONDS``, including the wait for earlier requests, the
        failure is a timeout.
        """
        number = next(self._numbers)
        try:
            with anyio.fail_after(PREVIEW_SECONDS):
                async with self._turn:
                    return await self._request(
                        PreviewFireTimes(number, host, after, count, PREVIEW_SECONDS)
                    )
        except TimeoutError:
            message = f"it has not answered within {PREVIEW_SECONDS:g} s"
            return FireTimesPreviewed(
                number, failure=_preview_failure("TimeoutError", message, "timeout")
            )

    async def _request(self, command: PreviewFireTimes) -> FireTimesPreviewed:
        request = _PreviewRequest(command.host.class_path, command.host.trigger_no, anyio.Event())
        self._requests[command.question] = request
        try:
            self._put(command)
            await request.received.wait()
        finally:
            del self._requests[command.question]
        assert request.answer is not None  # noqa: S101 - it was received
        return request.answer

    def class_of(self, number: TriggerNo) -> str:
        """Return the class of a timetable whose preview is in flight; otherwise an empty string."""
        found = (
            request.class_path for request in self._requests.values() if request.number == number
        )
        return next(found, "")

    def answered(self, answer: FireTimesPreviewed) -> None:
        """Handle a reply. A reply that no caller waits for any more is dropped."""
        request = self._requests.get(answer.question)
        if request is not None:
            request.answer = answer
            request.received.set()

    def lost(self) -> None:
        """Fail all requests in flight, because the host was lost."""
        for number in list(self._requests):
            failure = _preview_failure("Killed", "its host was lost while it was asked", "lost")
            self.answered(FireTimesPreviewed(number, failure=failure))


def _preview_failure(kind: str, message: str, reason: str) -> Failure:
    return Failure(type=kind, message=message, reason=reason)
