"""The clocks, which are the only code that reads the time, and the delays between attempts."""

from __future__ import annotations

import time
from typing import Protocol

import anyio

from aioflow.model.timestamps import Moment, Timestamp

__all__ = ("STEP_US", "Clock", "SteadyClock", "SystemClock", "backoff_seconds")

STEP_US = 100_000
"""Minimum move of the wall clock, relative to the monotonic clock, that counts as a step."""


class Clock(Protocol):
    """Wall time for schedules, monotonic time for durations."""

    def now(self) -> Timestamp:
        """Return the wall time. It may step, even backwards."""

    def monotonic_us(self) -> int:
        """Return the microseconds since a fixed moment. The value never decreases."""

    async def sleep(self, seconds: float) -> None:
        """Sleep this long by the monotonic clock."""


def backoff_seconds(failures: int, *, first: float, longest: float) -> float:
    """Return the delay before another attempt: it doubles with each failure, up to ``longest``.

    Args:
        failures: Number of failures before the last one.
        first: The delay after the first failure.
    """
    return min(first * 2.0 ** min(failures, 10), longest)


class SystemClock:
    """The clock of the machine."""

    def now(self) -> Timestamp:
        """See ``Clock``."""
        return time.time_ns() // 1_000

    def monotonic_us(self) -> int:
        """See ``Clock``."""
        return time.monotonic_ns() // 1_000

    async def sleep(self, seconds: float) -> None:
        """See ``Clock``."""
        await anyio.sleep(seconds)


class SteadyClock:
    """Steady time: the wall clock without its steps, see ``Moment``.

    It does not advance while the machine is suspended, and never goes back. During a restart it
    advances by as much as the wall clock has advanced since the last stored moment.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        now, monotonic, _ = self._read()
        self._ahead = now - monotonic
        self._shift = 0

    def resume(self, *, wall: Timestamp | None, steady: Timestamp | None) -> None:
        """Continue from the last stored moment, if there is one."""
        if wall is None or steady is None:
            return
        now, monotonic, _ = self._read()
        shift = _step(wall - steady)
        here = max(now - shift, steady)  # the wall clock may have been set back since
        self._ahead = here - monotonic
        self._shift = _step(now - here)

    def read(self) -> Moment:
        """Return the current moment."""
        now, monotonic, uncertain = self._read()
        steady = monotonic + self._ahead
        moved = now - steady - self._shift
        if abs(moved) > uncertain:
            self._shift += _step(moved)
        return Moment(now, steady, monotonic, self._shift)

    def monotonic_at(self, steady: Timestamp) -> int:
        """Return the time of the monotonic clock at a timestamp of steady time."""
        return steady - self._ahead

    def _read(self) -> tuple[int, int, int]:
        """Return the wall time, the monotonic time, and the maximum delay between both reads."""
        before = self._clock.monotonic_us()
        now = self._clock.now()
        return now, before, self._clock.monotonic_us() - before


def _step(moved_us: int) -> int:
    """Return a move of the wall clock if it is large enough to be a step, else 0."""
    return moved_us if abs(moved_us) >= STEP_US else 0
