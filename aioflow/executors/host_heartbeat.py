"""Whether the loop of a shared host still turns."""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio

from aioflow.clock import Clock

__all__ = ("HEALTH_SECONDS", "Pulse")

HEALTH_SECONDS = 30.0
"""How long a loop may stand still, unless a setting says otherwise."""

_BEAT_SECONDS = 1.0
_BEATS_AT_LEAST = 4
"""A loop is given this many beats to say something, however short the limit."""


class Pulse:
    """Notices that a process has said nothing for too long, though it was asked to.

    Silence is counted in beats and not read off the clock, so that a daemon which itself was
    stopped for a while does not blame its hosts for it.

    Attributes:
        limit_seconds: How long it may be silent; infinite for one that is not watched.
        beat_seconds: How often it is asked.
        silent_beats: How long it has been silent.
    """

    def __init__(self, clock: Clock, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self._clock = clock
        self.beat_seconds = min(_BEAT_SECONDS, limit_seconds / _BEATS_AT_LEAST)
        self.silent_beats = 0

    def heard(self) -> None:
        """It said something: whatever leaves a shared host is sent by its loop."""
        self.silent_beats = 0

    async def stopped(self, ask: Callable[[], None]) -> None:
        """Return when it has been silent for too long from now on, at most two beats late.

        Args:
            ask: Called with each beat; has the process say something.
        """
        if math.isinf(self.limit_seconds):
            await anyio.sleep_forever()
        self.heard()
        allowed = math.ceil(self.limit_seconds / self.beat_seconds)
        # One beat more than allowed: the first may have begun just before it was last heard.
        while self.silent_beats <= allowed:
            ask()
            await self._clock.sleep(self.beat_seconds)
            self.silent_beats += 1
