"""Pending requests, each of which waits until its response is durable."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import anyio

from aioflow.errors import DaemonStopping
from aioflow.protocol.effects import Acknowledge

__all__ = ("PendingRequests",)


class _PendingRequest:
    """One pending request."""

    __slots__ = ("answer", "done", "error", "fails_at_end")

    def __init__(self, *, fails_at_end: bool) -> None:
        self.done = anyio.Event()
        self.answer: object = None
        self.error: Exception | None = None
        self.fails_at_end = fails_at_end


class PendingRequests:
    """Pending requests by ticket."""

    def __init__(self) -> None:
        self._tickets = itertools.count(1)
        self._waiting: dict[int, _PendingRequest] = {}
        self._is_over = False

    async def ask(self, put: Callable[[int], None], *, fails_at_end: bool) -> object:
        """Submit a request under a new ticket and wait for the response.

        Args:
            put: Submits the request.
            fails_at_end: Whether this method raises if no more requests are processed. Otherwise it
                waits until it is cancelled.

        Raises:
            DaemonStopping: If no more requests are processed and ``fails_at_end`` is set.
        """
        if self._is_over and fails_at_end:
            raise DaemonStopping
        ticket, waiting = next(self._tickets), _PendingRequest(fails_at_end=fails_at_end)
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
        """Deliver the response to a pending request."""
        waiting = self._waiting.get(told.ticket)
        if waiting is not None:  # otherwise the caller was cancelled
            waiting.answer, waiting.error = told.answer, told.error
            waiting.done.set()

    def end(self) -> None:
        """Fail all pending and future requests that have ``fails_at_end`` set."""
        self._is_over = True
        for waiting in self._waiting.values():
            if waiting.fails_at_end and not waiting.done.is_set():
                waiting.error = DaemonStopping()
                waiting.done.set()
