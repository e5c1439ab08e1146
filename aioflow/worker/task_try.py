"""One try in the async worker: fetches result pages, awaits the body, enforces the timeout."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from aioflow.author.node import Node
from aioflow.author.signals import NotReady, sensor_saw
from aioflow.model.dag import SensorSpec
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import StartTask
from aioflow.protocol.reports import Labelled
from aioflow.worker.arguments import KnownRun, spec_of
from aioflow.worker.body import Body, PagesOfRun, begin
from aioflow.worker.failures import print_traceback
from aioflow.worker.item_stream import ItemStream
from aioflow.worker.outcome import is_ignored, now
from aioflow.worker.pages import FetchPage, fetch_ahead, no_page

__all__ = ("TaskTry", "interval_after")


class TaskTry:
    """Computes the return value of one try.

    Args:
        expire: Called when a body, or one check of a sensor, exceeds the execution timeout.
        tell: Called with the task's label, before its body runs.
        item_stream: Sends the items that a generator yields; without it they become a list.

    Attributes:
        operator: The instance whose method runs, or ran last; ``None`` for a function.
    """

    def __init__(
        self,
        run: KnownRun,
        node: Node,
        start: StartTask,
        fetch: FetchPage,
        results: Path,
        expire: Callable[[], None],
        tell: Callable[[Labelled], None],
        item_stream: ItemStream | None = None,
    ) -> None:
        self._run = run
        self._node = node
        self._start = start
        self._fetch = fetch
        self._results = results
        self._expire = expire
        self._tell = tell
        self._item_stream = item_stream
        self._pages: PagesOfRun = no_page
        self._label: str | None = None
        self.operator: Any = None
        self.last_poke_at: Timestamp | None = None
        self.next_poke_at: Timestamp | None = None

    async def value(self) -> Any:
        """Return the result of the body, or of the sensor's last poke."""
        self._pages = await fetch_ahead(self._run, self._node, self._start, self._fetch)
        if self._node.sensor is None or self._start.method:
            return await self._once()
        return await self._sense(self._node.sensor)

    async def _once(self) -> Any:
        body = self._begin()
        limit_us = self._limit_us()
        if limit_us is None:
            return await self._called(body)
        timer = asyncio.get_running_loop().call_later(limit_us / 1_000_000, self._expire)
        try:
            return await self._called(body)
        finally:
            timer.cancel()

    async def _called(self, body: Body) -> Any:
        value = body.call()
        if inspect.isasyncgen(value):
            return await self._yielded(value)
        return await value if inspect.isawaitable(value) else value

    async def _yielded(self, items: Any) -> Any:
        if self._item_stream is None:
            async with aclosing(items):
                return [item async for item in items]
        await self._item_stream.send_all(items, repr(self._node.task_id))
        return None

    def _begin(self) -> Body:
        body = begin(self._run, self._node, self._start, self._pages, self._results)
        self.operator = body.operator
        if body.label is not None and body.label != self._label:
            self._label = body.label
            self._tell(Labelled(self._start.task_no, self._start.start_no, body.label))
        return body

    async def _sense(self, sensor: SensorSpec) -> Any:
        """Poke until the condition is met, with a new body each time, as in a slot worker."""
        pokes = 0
        while True:
            recheck_in_us = None
            self.last_poke_at, self.next_poke_at = now(), None
            try:
                done, value = sensor_saw(await self._once())
                if done:
                    return value
            except NotReady as exc:
                recheck_in_us = exc.recheck_in_us
            except Exception as exc:
                if not is_ignored(self._node, exc):
                    raise
                print_traceback(exc)
            pokes += 1
            wait_us = interval_after(sensor, pokes) if recheck_in_us is None else recheck_in_us
            self.next_poke_at = now() + wait_us
            await asyncio.sleep(wait_us / 1_000_000)

    # ── timeout ─────────────────────────────────────────────────────────────────────────

    def _limit_us(self) -> int | None:
        limit_us = spec_of(self._node).execution_timeout_us
        if limit_us is not None and self._node.sensor is None:
            limit_us = self._start.timeout_us or limit_us  # the remaining time
        return limit_us


def interval_after(sensor: SensorSpec, pokes: int) -> int:
    """Return the microseconds between poke number ``pokes`` (from 1) and the next."""
    # Use floats: an integer power grows without bound, while a float stops at infinity.
    longest = float(sensor.timeout_us if sensor.max_interval_us is None else sensor.max_interval_us)
    try:
        grown = sensor.interval_us * sensor.backoff ** (pokes - 1)
    except OverflowError:
        grown = longest
    return round(min(grown, max(longest, float(sensor.interval_us))))
