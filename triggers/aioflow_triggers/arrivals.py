"""Detects which files of a folder are new and complete."""

from __future__ import annotations

import math

from aioflow_triggers.looks import FoundFile

__all__ = ("Arrivals", "is_over")


class Arrivals:
    """Tracks which files are new and complete.

    Attributes:
        due_in: Seconds from the last poll until the next file may be complete.
    """

    def __init__(self, rest_seconds: float, horizon_ns: int) -> None:
        self.due_in = math.inf
        self._rest_seconds = rest_seconds
        self._horizon_ns = horizon_ns
        self._resting: dict[str, tuple[FoundFile, float]] = {}
        self._received: dict[str, tuple[int, int]] = {}

    def see(self, at: float, files: dict[str, FoundFile]) -> list[tuple[str, FoundFile]]:
        """Return the files that became complete, ordered by their last change."""
        self._received = {name: told for name, told in self._received.items() if name in files}
        resting: dict[str, tuple[FoundFile, float]] = {}
        complete = []
        for name, found in files.items():
            if found.changed_ns < self._horizon_ns or self._received.get(name) == _version(found):
                continue
            before, since = self._resting.get(name, (found, at))
            if _version(before) != _version(found):
                since = at
            if is_over(at - since, self._rest_seconds):
                complete.append((name, found))
                self._received[name] = _version(found)
            else:
                resting[name] = (found, since)
        self._resting = resting
        first = min((since for _, since in resting.values()), default=math.inf)
        self.due_in = first + self._rest_seconds - at
        return sorted(complete, key=lambda arrival: (arrival[1].changed_ns, arrival[0]))


def _version(found: FoundFile) -> tuple[int, int]:
    return found.size_bytes, found.modified_ns


def is_over(rested: float, wanted: float) -> bool:
    """Return whether a file has been unchanged for the required time."""
    # Tolerates float errors: times one period apart may differ by slightly less.
    return rested >= wanted * 0.999
