"""Sends what hosted coroutines print, each to its own log, as fast as the daemon takes it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

from aioflow.host.output import Attributed, OutputBuffer, Printing, waker
from aioflow.host.shared import Line
from aioflow.model import StartNo, TaskNo

__all__ = ("OutputPump",)


class OutputPump:
    """Takes the place of the standard streams of a shared host.

    Args:
        line: Where output is reported.
        serve: Runs a coroutine of the host itself.
    """

    def __init__(self, line: Line, serve: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._line = line
        self._serve = serve
        self._is_pumping = False
        self._current: ContextVar[Printing | None] = ContextVar("aioflow_current", default=None)
        self._buffer = OutputBuffer(waker(asyncio.get_running_loop(), self._pump))
        sys.stdout = Attributed(sys.stdout, self._current, self._buffer)
        sys.stderr = Attributed(sys.stderr, self._current, self._buffer)

    def attribute(self, printing: Printing) -> None:
        """What is printed in this context, and in those made of it, belongs to this one."""
        self._current.set(printing)

    def flush(self, of: tuple[TaskNo, StartNo]) -> None:
        """Report what one has printed, before something that shall not overtake it."""
        for output in self._buffer.take(of):
            self._line.report(output)

    def _pump(self) -> None:
        if not self._is_pumping:
            self._is_pumping = True
            self._serve(self._send())

    async def _send(self) -> None:
        try:
            while outputs := self._buffer.take():
                for output in outputs:
                    self._line.report(output)
                await asyncio.sleep(0)  # the line sends when the loop comes round
                await self._line.drain()
        finally:
            self._is_pumping = False
