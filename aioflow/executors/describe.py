"""Queries to a shared host about its triggers and sensors, for display."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import anyio

from aioflow.model.trigger_description import Watched
from aioflow.protocol.commands import Describe
from aioflow.protocol.reports import Described

__all__ = ("PATIENCE_SECONDS", "DescriptionRequests")

PATIENCE_SECONDS = 0.5
"""How long a query waits for the host, whose event loop may be blocked."""


class _Request:
    """A query that waits for its reply."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.answer: dict[int, Watched] = {}


class DescriptionRequests:
    """Queries to one host. Its ``Described`` reports must be passed to ``answered``.

    Args:
        put: Sends a command to the host.
    """

    def __init__(self, put: Callable[[object], None]) -> None:
        self._put = put
        self._questions = itertools.count(1)
        self._waiting: dict[int, _Request] = {}

    async def request(self, numbers: Sequence[int]) -> dict[int, Watched]:
        """Return the host's descriptions by number, or ``{}`` if it does not reply in time."""
        question = next(self._questions)
        waiting = self._waiting[question] = _Request()
        self._put(Describe(question, tuple(numbers)))
        try:
            with anyio.move_on_after(PATIENCE_SECONDS):
                await waiting.answered.wait()
        finally:
            del self._waiting[question]
        return waiting.answer

    def answered(self, described: Described) -> None:
        """Handle a reply. A late one is dropped."""
        waiting = self._waiting.get(described.question)
        if waiting is not None:
            waiting.answer = dict(described.triggers)
            waiting.answered.set()
