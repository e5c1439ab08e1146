"""The first seconds of a daemon, in which DAG files are read that a request may already name."""

from __future__ import annotations

from collections.abc import Callable

from aioflow.clock import Clock

__all__ = ("FirstRead",)

LIMIT_SECONDS = 10.0
"""After the start of the daemon. A file whose import never ends must not keep requests waiting."""

_LOOK_SECONDS = 0.05


class FirstRead:
    """Tells whether the DAG folders have been read once since the daemon began.

    Args:
        is_read: Whether they have.
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
        """Whether nothing waits for that any more: they have been read, or it takes too long."""
        return self._is_read() or self._clock.monotonic_us() >= self._until_us

    async def wait_for(self, is_known: Callable[[], bool]) -> None:
        """Wait until what a request names is known, or nothing waits for the folders any more."""
        while not self.is_over and not is_known():
            await self._clock.sleep(_LOOK_SECONDS)
