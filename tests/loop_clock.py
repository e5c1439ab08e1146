"""A clock for tests on the virtual loop."""

from __future__ import annotations

import anyio

from aioflow.clock import SystemClock

__all__ = ("LoopClock",)


class LoopClock(SystemClock):
    """The clock of the event loop."""

    def monotonic_us(self) -> int:
        return round(anyio.current_time() * 1e6)
