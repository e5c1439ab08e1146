"""The daemon's first seconds, before all DAG files that a request may name have been parsed."""

from __future__ import annotations

from collections.abc import Callable

from aioflow.clock import Clock

__all__ = ("FirstRead",)

LIMIT_SECONDS = 10.0
"""Time limit after the daemon's start: a file whose import hangs must not block requests."""

_POLL_SECONDS = 0.05


class FirstRead:
    """Tracks whether the DAG folders have been read once since the daemon started.

    Args:
        is_read: Returns whether they have been.
    """

    def __init__(self, clock: Clock, is_read: Callable[[], bool]) -> None:
        self._clock = clock
        self._is_read = is_read
        self._until_us = clock.monotonic_us() + round(LIMIT_SECONDS * 1e6)

    @property
    def is_read(self) -> bool:
        """Whether the folders have been read."""
        return self._is_read()

    @property
    def is_over(self) -> bool:
        """Whether requests no longer wait: the folders have been read, or the time is up."""
        return self._is_read() or self._clock.monotonic_us() >= self._until_us

    async def wait_for(self, is_known: Callable[[], bool]) -> None:
        """Wait until the requested object is known or ``is_over``."""
        while not self.is_over and not is_known():
            await self._clock.sleep(_POLL_SECONDS)
