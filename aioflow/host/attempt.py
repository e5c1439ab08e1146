"""One hosted try: its pages fetched ahead, its body awaited, its time limit watched."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from aioflow.author.node import Node
from aioflow.author.signals import Fail, NotReady, RetryAfter, Skip
from aioflow.host.arguments import KnownRun, spec_of, wanted_parents
from aioflow.host.body import Body, begin
from aioflow.host.failures import print_traceback
from aioflow.host.outcome import sensor_saw
from aioflow.host.questions import ResultsPage
from aioflow.messages import Start
from aioflow.model import SensorSpec

__all__ = ("Attempt", "FetchPage", "interval_after")

FetchPage: TypeAlias = Callable[[int, int, int], Awaitable[ResultsPage]]
"""``(run_no, position, after)`` to a page of results."""


class Attempt:
    """Computes what one try returns.

    Args:
        expire: Called when a body, or one check of a sensor, has used up its time.

    Attributes:
        operator: The instance whose method runs, or ran last; ``None`` for a function.
    """

    def __init__(
        self,
        run: KnownRun,
        node: Node,
        start: Start,
        fetch: FetchPage,
        results: Path,
        expire: Callable[[], None],
    ) -> None:
        self._run = run
        self._node = node
        self._start = start
        self._fetch = fetch
        self._results = results
        self._expire = expire
        self._pages: dict[tuple[int, int], ResultsPage] = {}
        self.operator: Any = None

    async def value(self) -> Any:
        """Return the result: of the body, or of the sensor's last check."""
        await self._fetch_ahead()
        if self._node.sensor is None or self._start.method:
            return await self._once()
        return await self._sense(self._node.sensor)

    async def _once(self) -> Any:
        body = self._begin()
        with self._time_limit():
            value = body.call()
            return await value if inspect.isawaitable(value) else value

    def _begin(self) -> Body:
        body = begin(self._run, self._node, self._start, self._page, self._results)
        self.operator = body.operator
        return body

    async def _sense(self, sensor: SensorSpec) -> Any:
        """Look until something is there. A new body each time, as when a slot looks."""
        looks = 0
        while True:
            recheck_in_us = None
            try:
                done, value = sensor_saw(await self._once())
                if done:
                    return value
            except NotReady as exc:
                recheck_in_us = exc.recheck_in_us
            except (Skip, Fail, RetryAfter):
                raise
            except Exception as exc:
                if sensor.on_error != "ignore":
                    raise
                print_traceback(exc)
            looks += 1
            wait_us = interval_after(sensor, looks) if recheck_in_us is None else recheck_in_us
            await asyncio.sleep(wait_us / 1_000_000)

    # ── what it stands on ───────────────────────────────────────────────────────────────

    async def _fetch_ahead(self) -> None:
        """Fetch all pages of parents now: a sequence on a loop cannot wait when it is read."""
        for position in wanted_parents(self._run, self._node, self._start):
            after, more = -2, True
            while more:
                page = await self._fetch(self._start.run_no, position, after)
                self._pages[position, after] = page
                after, more = page.last, page.more

    def _page(self, _: int, position: int, after: int) -> ResultsPage:
        return self._pages[position, after]

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        limit_us = spec_of(self._node).execution_timeout_us
        if limit_us is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(limit_us / 1_000_000, self._expire)
        try:
            yield
        finally:
            timer.cancel()


def interval_after(sensor: SensorSpec, looks: int) -> int:
    """Return the microseconds between look ``looks`` (from 1) and the next."""
    # In floats, because an integer power grows without bound where a float ends at infinity.
    longest = float(sensor.timeout_us if sensor.max_interval_us is None else sensor.max_interval_us)
    try:
        grown = sensor.interval_us * sensor.backoff ** (looks - 1)
    except OverflowError:
        grown = longest
    return round(min(grown, max(longest, float(sensor.interval_us))))
