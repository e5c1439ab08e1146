"""A limit for the results that wait in the home until they are stored.

Tasks write without asking, because the engine starts no task while too much waits. Triggers all run
at the same time, and may all have their results in the same second. So each trigger reserves
capacity before it writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from aioflow.clock import Clock
from aioflow.storage.results import ResultKey

__all__ = ("BACKLOG_BYTES", "BACKLOG_RESULTS", "Grant", "SpoolLimit")

BACKLOG_RESULTS, BACKLOG_BYTES = 1_000, 1024**3
"""Limits for the number and total size of results that wait to be stored.

Above them, no task starts and no trigger writes.
"""

RESERVED_SECONDS = 60.0
"""How long a reservation counts if its result does not arrive, because its process may be dead."""

Grant: TypeAlias = Callable[[], bool]
"""Notifies a process that it may write. Returns whether the process still wants to."""


class _Request(msgspec.Struct):
    key: ResultKey
    size: int
    grant: Grant


class SpoolLimit:
    """The results that wait to be stored, and reservations for results about to be written.

    Attributes:
        waiting_results, waiting_bytes: Number and total size of the results that wait to be stored.
    """

    def __init__(self, clock: Clock) -> None:
        self.waiting_results = self.waiting_bytes = 0
        self._clock = clock
        self._requests: deque[_Request] = deque()
        self._reserved: dict[ResultKey, tuple[int, int]] = {}
        self._reserved_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether so much waits that no task may start."""
        return self.waiting_results > BACKLOG_RESULTS or self.waiting_bytes > BACKLOG_BYTES

    @property
    def reserved_results(self) -> int:
        """Number of results that may be written but have not been reported yet."""
        return len(self._reserved)

    def add(self, key: ResultKey, size: int) -> None:
        """Count a result that was reported. It replaces its reservation."""
        self._forget(key)
        self.waiting_results += 1
        self.waiting_bytes += size

    def remove(self, size: int) -> None:
        """Subtract a result that no longer waits, and let others be written."""
        self.waiting_results -= 1
        self.waiting_bytes -= size
        self.admit()

    def request(self, key: ResultKey, size: int, grant: Grant) -> None:
        """Call ``grant`` once a result may be written, which may be immediately."""
        self._requests.append(_Request(key, max(0, size), grant))
        self.admit()

    def admit(self) -> None:
        """Grant requests in order, as far as the limit allows."""
        now = self._clock.monotonic_us()
        while self._reserved:  # they are in the order of their times
            key, (_, until) = next(iter(self._reserved.items()))
            if until > now:
                break
            self._forget(key)
        while self._requests and self._has_room(self._requests[0].size):
            request = self._requests.popleft()
            if request.grant():
                self._forget(request.key)
                self._reserved[request.key] = request.size, now + round(RESERVED_SECONDS * 1e6)
                self._reserved_bytes += request.size

    def _has_room(self, size: int) -> bool:
        """Return whether a result may be written.

        A result larger than the limit must be the only one.
        """
        results = self.waiting_results + len(self._reserved)
        used = self.waiting_bytes + self._reserved_bytes
        return results < BACKLOG_RESULTS and (not used or used + size <= BACKLOG_BYTES)

    def _forget(self, key: ResultKey) -> None:
        size, _ = self._reserved.pop(key, (0, 0))
        self._reserved_bytes -= size
