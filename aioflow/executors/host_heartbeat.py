"""Liveness of the event loop of a shared host."""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio

from aioflow.clock import Clock

__all__ = ("HEALTH_SECONDS", "HostHeartbeat")

HEALTH_SECONDS = 30.0
"""How long an event loop may be blocked, unless a setting says otherwise."""

_BEAT_SECONDS = 1.0
_BEATS_AT_LEAST = 4
"""A loop gets this many beats to say something, however short the limit is."""


class HostHeartbeat:
    """Detects that a process has not answered its pings for too long.

    Silence is counted in beats and not measured by the clock, so that a daemon that was itself
    stopped for a while does not blame its hosts.

    Attributes:
        limit_seconds: How long the process may be silent; infinite disables the check.
        beat_seconds: Interval between pings.
        silent_beats: Beats since the process last said something.
    """

    def __init__(self, clock: Clock, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self._clock = clock
        self.beat_seconds = min(_BEAT_SECONDS, limit_seconds / _BEATS_AT_LEAST)
        self.silent_beats = 0

    def reset(self) -> None:
        """Reset the count. A shared host sends everything from its loop, so the loop works."""
        self.silent_beats = 0

    async def stopped(self, ping: Callable[[], None]) -> None:
        """Return once the process was silent for too long, counted from now; at most 2 beats late.

        Args:
            ping: Called with each beat; must make the process answer.
        """
        if math.isinf(self.limit_seconds):
            await anyio.sleep_forever()
        self.reset()
        allowed = math.ceil(self.limit_seconds / self.beat_seconds)
        # One beat more than allowed: the first may have begun just before the last sign of life.
        while self.silent_beats <= allowed:
            ping()
            await self._clock.sleep(self.beat_seconds)
            self.silent_beats += 1
