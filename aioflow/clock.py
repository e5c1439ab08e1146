"""The only module that reads the time."""

from __future__ import annotations

import time
from typing import Protocol

import anyio

from aioflow.model import Instant

__all__ = ("Clock", "SystemClock")


class Clock(Protocol):
    """Wall time for what people schedule, monotonic time for lengths."""

    def now(self) -> Instant:
        """Return the wall time. It may step, also backwards."""

    def monotonic_us(self) -> int:
        """Return microseconds since some fixed moment; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Sleep this long by the monotonic clock."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> Instant:
        """See ``Clock``."""
        return time.time_ns() // 1_000

    def monotonic_us(self) -> int:
        """See ``Clock``."""
        return time.monotonic_ns() // 1_000

    async def sleep(self, seconds: float) -> None:
        """See ``Clock``."""
        await anyio.sleep(seconds)
