"""Asks a shared host about the triggers and sensors in it, for people."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import anyio

from aioflow.model.trigger_description import Watched
from aioflow.protocol.commands import Describe
from aioflow.protocol.reports import Described

__all__ = ("PATIENCE_SECONDS", "Describing")

PATIENCE_SECONDS = 0.5
"""How long people wait for what a host says: its loop may stand still."""


class _Waiting:
    """A caller that waits for an answer."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.answer: dict[int, Watched] = {}


class Describing:
    """Questions to one host; its reports are passed to ``answered``.

    Args:
        put: Sends an order to the host.
    """

    def __init__(self, put: Callable[[object], None]) -> None:
        self._put = put
        self._questions = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}

    async def ask(self, numbers: Sequence[int]) -> dict[int, Watched]:
        """Return what the host says of these, by number; nothing if it does not do so at once."""
        question = next(self._questions)
        waiting = self._waiting[question] = _Waiting()
        self._put(Describe(question, tuple(numbers)))
        try:
            with anyio.move_on_after(PATIENCE_SECONDS):
                await waiting.answered.wait()
        finally:
            del self._waiting[question]
        return waiting.answer

    def answered(self, described: Described) -> None:
        """Take an answer; one that comes late is dropped."""
        waiting = self._waiting.get(described.question)
        if waiting is not None:
            waiting.answer = dict(described.triggers)
            waiting.answered.set()
