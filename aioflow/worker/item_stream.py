"""Reports the items that a generator task yields, with backpressure from the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from aioflow.author.steps import Steps
from aioflow.protocol.commands import StartTask
from aioflow.protocol.reports import ItemYielded, Report
from aioflow.worker.items import encoded

__all__ = ("ItemStream",)


class ItemReporter(Protocol):
    """The part of a try that a ``ItemStream`` uses."""

    start: StartTask

    def report(self, report: Report) -> None:
        """Send a report to the engine."""

    async def packed(self, steps: Steps[bytes]) -> bytes:
        """Encode a yielded item; other coroutines run between the steps of a large one."""


class ItemStream:
    """Reports each yielded item, and resumes the generator once the item is stored."""

    def __init__(self, reporter: ItemReporter) -> None:
        self._reporter = reporter
        self._made = 0
        self._stored = reporter.start.stored
        self._window_open: asyncio.Future[None] | None = None

    async def send_all(self, items: AsyncGenerator[Any, None], name: str) -> None:
        """Report all items except those stored by an earlier try, which keep their values."""
        known = self._stored
        async with aclosing(items):
            async for value in items:
                if self._made >= known:
                    what = f"item {self._made} of {name}"
                    await self._send(await self._reporter.packed(encoded(value, what)))
                self._made += 1
        if self._made < known:
            print(  # noqa: T201 - into the log of the task
                f"aioflow: it yielded {self._made} items, and {known} in an earlier try; "
                "those stay as they are"
            )

    async def _send(self, payload: bytes) -> None:
        start = self._reporter.start
        self._reporter.report(ItemYielded(start.task_no, start.start_no, self._made, payload))
        while self._stored <= self._made:
            self._window_open = asyncio.get_running_loop().create_future()
            try:
                await self._window_open
            finally:
                self._window_open = None

    def take(self, upto: int) -> None:
        """Note that the items before ``upto`` are stored, and resume the generator."""
        self._stored = max(self._stored, upto)
        if self._window_open is not None and not self._window_open.done():
            self._window_open.set_result(None)
