"""How often a fenced node may stand by again, so that no two nodes fence each other for ever."""

from __future__ import annotations

from collections import deque

from aioflow.clock import Clock

__all__ = ("REJOINS", "REJOIN_SECONDS", "Rejoins")

REJOINS = 3
"""How often a node may be fenced and stand by again within ``REJOIN_SECONDS``."""

REJOIN_SECONDS = 600


class Rejoins:
    """Counts how often this daemon was fenced."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: deque[int] = deque()

    def may_rejoin(self) -> bool:
        """Count a rejoin; return ``False`` if there were too many."""
        now = self._clock.monotonic_us()
        while self._times and self._times[0] < now - REJOIN_SECONDS * 1_000_000:
            self._times.popleft()
        self._times.append(now)
        return len(self._times) <= REJOINS
