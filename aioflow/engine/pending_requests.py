"""Those who wait for the answer to a request: they have it once it is durable."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import anyio

from aioflow.errors import DaemonStopping
from aioflow.protocol.effects import Acknowledge

__all__ = ("Askers",)


class _Waiting:
    """One of them."""

    __slots__ = ("answer", "done", "error", "hears_end")

    def __init__(self, *, hears_end: bool) -> None:
        self.done = anyio.Event()
        self.answer: object = None
        self.error: Exception | None = None
        self.hears_end = hears_end


class Askers:
    """Hands out tickets, and to each who holds one what became of it."""

    def __init__(self) -> None:
        self._tickets = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._is_over = False

    async def ask(self, put: Callable[[int], None], *, hears_end: bool) -> object:
        """Put a request, under its ticket, and wait for the answer.

        Args:
            put: Puts it where it is taken.
            hears_end: Whether there is an answer also when nobody takes it any more; else one
                waits to be cancelled.

        Raises:
            DaemonStopping: If that is so, of those who hear it.
        """
        if self._is_over and hears_end:
            raise DaemonStopping
        ticket, waiting = next(self._tickets), _Waiting(hears_end=hears_end)
        self._waiting[ticket] = waiting
        try:
            put(ticket)
            await waiting.done.wait()
        finally:
            self._waiting.pop(ticket, None)
        if waiting.error is not None:
            raise waiting.error
        return waiting.answer

    def answer(self, told: Acknowledge) -> None:
        """Give one who waits the answer."""
        waiting = self._waiting.get(told.ticket)
        if waiting is not None:  # else whoever asked has gone
            waiting.answer, waiting.error = told.answer, told.error
            waiting.done.set()

    def end(self) -> None:
        """Answer all who hear it that nothing is decided any more."""
        self._is_over = True
        for waiting in self._waiting.values():
            if waiting.hears_end and not waiting.done.is_set():
                waiting.error = DaemonStopping()
                waiting.done.set()
