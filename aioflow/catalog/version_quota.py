"""The limit of versions a DAG file gets because of unnamed files beside it."""

from __future__ import annotations

import logging
from collections import deque

from aioflow.clock import Clock

__all__ = ("VERSIONS_AN_HOUR", "Allowance")

VERSIONS_AN_HOUR = 20
_HOUR_US = 3_600_000_000

_logger = logging.getLogger(__name__)


class Allowance:
    """Limits the versions per hour that a DAG file gets because of unnamed files beside it.

    A program may write to such a file all the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._taken: dict[str, deque[int]] = {}
        self._reported: set[str] = set()

    def take(self, file: str) -> bool:
        """Return whether a DAG file may have one more version now, and count it."""
        now, taken = self._clock.monotonic_us(), self._taken.setdefault(file, deque())
        while taken and taken[0] <= now - _HOUR_US:
            taken.popleft()
        if len(taken) < VERSIONS_AN_HOUR:
            taken.append(now)
            self._reported.discard(file)
            return True
        if file not in self._reported:
            self._reported.add(file)
            _logger.warning(
                "%s had %d versions within an hour because of files beside it that it does not "
                "name: the next comes later; leave out what is written there in .aioflowignore",
                file,
                VERSIONS_AN_HOUR,
            )
        return False
