"""Whether a slot worker still lives: one that is frozen neither answers nor computes.

The process answers from a thread of its own, which no Python code can block. Code in C may keep
the interpreter to itself for as long as it likes; it uses processor time then, and a process that
was stopped, or that hangs in the kernel, uses none.
"""

from __future__ import annotations

from aioflow.processes import Child

__all__ = ("FROZEN_SECONDS", "Heartbeat")

FROZEN_SECONDS = 90.0
"""How long a worker with work may neither answer nor compute before it is killed."""

_BEAT_SECONDS = 5.0
_BEATS_AT_LEAST = 4
_NOTICED_BEATS = 2
_DEATH_BEATS = 4
_COMPUTING = 0.02
"""Share of a beat that a process has to compute, on however busy a machine. A thread that waits
for the interpreter wakes up now and then, and uses less."""


class Heartbeat:
    """Counts the beats for which one process has neither answered nor computed.

    Silence is counted in beats and not read off the clock, so that a daemon that was itself
    stopped for a while does not blame its workers for it.

    Attributes:
        beat_seconds: How often the process is asked.
        silent_beats: How many beats it has been silent for.
        is_reported: Whether the engine knows that it is silent.
    """

    def __init__(self, limit_seconds: float) -> None:
        self.beat_seconds = beat_seconds(limit_seconds)
        self.silent_beats = 0
        self.is_reported = False
        # One beat more than allowed: the first may have begun just before it was last heard.
        self._allowed = limit_seconds / self.beat_seconds + 1
        self._used_seconds = 0.0

    def heard(self) -> None:
        """It said something."""
        self.silent_beats = 0

    def beat(self, child: Child) -> None:
        """Count one more beat, unless it has computed during the last one."""
        if self.silent_beats:
            used, self._used_seconds = self._used_seconds, child.processor_seconds()
            if self._used_seconds - used >= _COMPUTING * self.beat_seconds:
                self.silent_beats = 0
        self.silent_beats += 1

    @property
    def is_silent(self) -> bool:
        """Whether it has been silent for long enough to be reported."""
        return self.silent_beats > _NOTICED_BEATS

    @property
    def is_frozen(self) -> bool:
        """Whether it has been silent for too long."""
        return self.silent_beats > self._allowed

    @property
    def survives_kill(self) -> bool:
        """Whether it should have been dead long since: it hangs in the kernel."""
        return self.silent_beats > self._allowed + _DEATH_BEATS

    @property
    def silent_us(self) -> int:
        """How long it has been silent."""
        return round(self.silent_beats * self.beat_seconds * 1e6)

    @property
    def left_us(self) -> int:
        """How long it may still be."""
        beats = max(0.0, self._allowed + 1 - self.silent_beats)
        return round(beats * self.beat_seconds * 1e6)


def beat_seconds(limit_seconds: float) -> float:
    """Return how often a process is asked that may be silent for so long."""
    return min(_BEAT_SECONDS, limit_seconds / _BEATS_AT_LEAST)
