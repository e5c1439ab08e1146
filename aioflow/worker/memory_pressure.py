"""Memory pressure: whether a child uses too much memory, and how many coroutines to evict."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ("POLL_SECONDS", "Pressure", "own_memory")

POLL_SECONDS = 1.0
"""Minimum seconds between two checks: the memory of evicted coroutines is not freed at once."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def own_memory() -> int:
    """Return the bytes of resident memory of this process that are not shared with files."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


class Pressure:
    """Compares a meter with a limit.

    Args:
        limit_bytes: 0 for no limit.
        meter: Returns the bytes in use.
    """

    def __init__(self, limit_bytes: int, meter: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._meter = meter
        self._next_look = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether a check is due; it is once per ``POLL_SECONDS``."""
        if not self._limit_bytes or now < self._next_look:
            return False
        self._next_look = now + POLL_SECONDS
        return True

    def excess(self, count: int) -> int:
        """Return how many of ``count`` equal items to evict, in proportion to the excess."""
        used = self._meter()
        if used <= self._limit_bytes:
            return 0
        return math.ceil(count * (used - self._limit_bytes) / used)
