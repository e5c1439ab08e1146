"""What the daemon sees of a host that says nothing: whose step lets no thread of it run.

Code in C may keep the interpreter to itself, and with it the watchdog in the host. From outside
the black box still tells whose code that is, though not at which line.
"""

from __future__ import annotations

from aioflow.processes import Child

__all__ = ("NO_PLACE", "Outside")

NO_PLACE = "code that lets no other thread run"

_COMPUTING = 0.1
"""Share of a beat that the loop's thread has to compute, on however busy a machine. A process
that was stopped does not."""


class Outside:
    """Looks at a silent host from outside, once a beat of its pulse.

    Args:
        child: The process.
        beat_seconds: How long a beat is.
    """

    def __init__(self, child: Child, beat_seconds: float) -> None:
        self._child = child
        self._enough_seconds = _COMPUTING * beat_seconds
        self._number = -1
        self._used_seconds = 0.0

    def culprit(self, silent_beats: int) -> int:
        """Return whose step has been computing for a beat of silence at least; -1 for nobody."""
        if not silent_beats:
            return -1
        was, used = self._number, self._used_seconds
        self._number, self._used_seconds = self._child.culprit(), self._child.loop_seconds()
        # The first look of a silence has nothing to compare with.
        is_it = silent_beats > 1 and was == self._number
        return was if is_it and self._used_seconds - used >= self._enough_seconds else -1
