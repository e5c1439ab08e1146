"""Whether a host has taken more memory than it may, and how many it should let go of."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ("LOOK_SECONDS", "Pressure", "own_memory")

LOOK_SECONDS = 1.0
"""Between two looks at the least: what was let go of needs a while to be gone."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def own_memory() -> int:
    """Return the bytes this process has in memory and shares with no file."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


class Pressure:
    """Watches a meter against a limit.

    Args:
        limit_bytes: 0 for no limit.
        meter: Returns the bytes in use.
    """

    def __init__(self, limit_bytes: int, meter: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._meter = meter
        self._next_look = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether it is time for a look, which there is once in ``LOOK_SECONDS``."""
        if not self._limit_bytes or now < self._next_look:
            return False
        self._next_look = now + LOOK_SECONDS
        return True

    def excess(self, count: int) -> int:
        """Return how many of ``count`` alike to let go of: the share of what is too much."""
        used = self._meter()
        if used <= self._limit_bytes:
            return 0
        return math.ceil(count * (used - self._limit_bytes) / used)
