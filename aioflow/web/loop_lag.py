"""Delay of the event loop: code that blocks it delays every response and every timer."""

from __future__ import annotations

from collections import deque

from aioflow.clock import Clock

__all__ = ("LoopLag",)

_EVERY_SECONDS = 0.5
_SAMPLES = 30


class LoopLag:
    """Measures repeatedly how much longer a short sleep takes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late_us: deque[float] = deque([0.0], maxlen=_SAMPLES)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            began = self._clock.monotonic_us()
            await self._clock.sleep(_EVERY_SECONDS)
            took = self._clock.monotonic_us() - began
            self._late_us.append(max(took - _EVERY_SECONDS * 1e6, 0.0))

    def worst_seconds(self) -> float:
        """Return the maximum of the last 15 seconds."""
        return max(self._late_us) / 1e6
