"""Liveness of slot workers: a frozen one neither answers pings nor uses processor time.

The process answers from a separate thread, which no Python code can block. C code may hold the GIL
for as long as it likes, but then it uses processor time. A process that was stopped, or that hangs
in the kernel, uses none.
"""

from __future__ import annotations

from aioflow.processes import Child

__all__ = ("FROZEN_SECONDS", "Heartbeat")

FROZEN_SECONDS = 90.0
"""How long a busy worker may neither answer nor compute before it is killed."""

_BEAT_SECONDS = 5.0
_BEATS_AT_LEAST = 4
_NOTICED_BEATS = 2
_DEATH_BEATS = 4
_COMPUTING = 0.02
"""Share of a beat that a process has to compute, however busy the machine is. A thread that waits
for the GIL wakes up now and then, and uses less."""


class Heartbeat:
    """Counts the beats for which one process has neither answered nor computed.

    Silence is counted in beats and not measured by the clock, so that a daemon that was itself
    stopped for a while does not blame its workers.

    Attributes:
        beat_seconds: Interval between pings.
        silent_beats: Beats since the process last answered or computed.
        is_reported: Whether the engine was notified of the silence.
    """

    def __init__(self, limit_seconds: float) -> None:
        self.beat_seconds = beat_seconds(limit_seconds)
        self.silent_beats = 0
        self.is_reported = False
        # One beat more than allowed: the first may have begun just before the last sign of life.
        self._allowed = limit_seconds / self.beat_seconds + 1
        self._used_seconds = 0.0

    def reset(self) -> None:
        """Reset the count: the process said something."""
        self.silent_beats = 0

    def beat(self, child: Child) -> None:
        """Count one more beat, unless the process has computed during the last one."""
        if self.silent_beats:
            used, self._used_seconds = self._used_seconds, child.processor_seconds()
            if self._used_seconds - used >= _COMPUTING * self.beat_seconds:
                self.silent_beats = 0
        self.silent_beats += 1

    @property
    def is_silent(self) -> bool:
        """True if the process has been silent for long enough to be reported."""
        return self.silent_beats > _NOTICED_BEATS

    @property
    def is_frozen(self) -> bool:
        """True if the process has been silent for too long."""
        return self.silent_beats > self._allowed

    @property
    def survives_kill(self) -> bool:
        """True if the process must hang in the kernel: it should have died of the kill by now."""
        return self.silent_beats > self._allowed + _DEATH_BEATS

    @property
    def silent_us(self) -> int:
        """How long the process has been silent, in µs."""
        return round(self.silent_beats * self.beat_seconds * 1e6)

    @property
    def left_us(self) -> int:
        """How long the process may stay silent before it is killed, in µs."""
        beats = max(0.0, self._allowed + 1 - self.silent_beats)
        return round(beats * self.beat_seconds * 1e6)


def beat_seconds(limit_seconds: float) -> float:
    """Return the ping interval for a process that may be silent for ``limit_seconds``."""
    return min(_BEAT_SECONDS, limit_seconds / _BEATS_AT_LEAST)
