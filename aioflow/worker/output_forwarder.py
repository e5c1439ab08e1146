"""Forwards the output of user coroutines to their logs, as fast as the daemon accepts it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from aioflow.model.ids import StartNo, TaskNo
from aioflow.worker.output import Attributed, OutputBuffer, OutputOwner, waker
from aioflow.worker.shared_host import ReportBuffer

__all__ = ("OutputForwarder",)


class OutputForwarder:
    """Replaces the standard streams of a shared child.

    Args:
        reports: Where output is reported.
        serve: Runs a coroutine of the child itself.
        current: Returns the supervised coroutine whose code is running.
    """

    def __init__(
        self,
        reports: ReportBuffer,
        serve: Callable[[Coroutine[Any, Any, None]], None],
        current: Callable[[], OutputOwner | None],
    ) -> None:
        self._reports = reports
        self._serve = serve
        self._is_pumping = False
        self._buffer = OutputBuffer(waker(asyncio.get_running_loop(), self._forward))
        sys.stdout = Attributed(sys.stdout, current, self._buffer)
        sys.stderr = Attributed(sys.stderr, current, self._buffer)

    def add(self, of: tuple[TaskNo, StartNo], text: str) -> None:
        """Add text to the output of a try or trigger."""
        if text:
            self._buffer.add(of, text.encode("utf-8", "backslashreplace"))

    def flush(self, of: tuple[TaskNo, StartNo]) -> None:
        """Report the buffered output of a try or trigger, before a report that must follow it."""
        for output in self._buffer.take(of):
            self._reports.report(output)

    def _forward(self) -> None:
        if not self._is_pumping:
            self._is_pumping = True
            self._serve(self._send())

    async def _send(self) -> None:
        try:
            while outputs := self._buffer.take():
                for output in outputs:
                    self._reports.report(output)
                await asyncio.sleep(0)  # the line sends in the next loop iteration
                await self._reports.drain()
        finally:
            self._is_pumping = False
