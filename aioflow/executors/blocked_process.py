"""Detection from outside of a host whose current step lets no thread of it run.

C code may hold the GIL, and with it block the watchdog in the host. The crash recorder, read from
outside, still names the owner of that code, though not the line.
"""

from __future__ import annotations

from aioflow.processes import Child

__all__ = ("UNKNOWN_LOCATION", "BlockedProcessMonitor")

UNKNOWN_LOCATION = "code that lets no other thread run"

_COMPUTING = 0.1
"""Share of a beat that the event loop's thread has to compute, however busy the machine is. A
process that was stopped computes nothing."""


class BlockedProcessMonitor:
    """Examines a silent host from outside, once per beat of its pulse.

    Args:
        child: The process.
        beat_seconds: Length of a beat.
    """

    def __init__(self, child: Child, beat_seconds: float) -> None:
        self._child = child
        self._enough_seconds = _COMPUTING * beat_seconds
        self._number = -1
        self._used_seconds = 0.0

    def culprit(self, silent_beats: int) -> int:
        """Return the owner of a step that has computed for at least one beat of silence, or -1."""
        if not silent_beats:
            return -1
        was, used = self._number, self._used_seconds
        self._number, self._used_seconds = self._child.culprit(), self._child.loop_seconds()
        # The first sample of a silence has nothing to compare with.
        is_it = silent_beats > 1 and was == self._number
        return was if is_it and self._used_seconds - used >= self._enough_seconds else -1
