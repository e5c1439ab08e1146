"""What came of parsing a DAG file, and when one that gives nothing is tried again."""

from __future__ import annotations

import msgspec

from aioflow.catalog.beside import Asked, Choice
from aioflow.catalog.scanning import Seen
from aioflow.findings import Parsed

__all__ = ("AGAIN_SECONDS", "SWEEP_SECONDS", "WRITABLE", "Known", "Looked", "is_final", "pause")

SWEEP_SECONDS = 5.0

AGAIN_SECONDS = 30.0
"""A file that gives nothing is tried again after so long, then after twice as long, ..."""
AGAIN_AT_MOST_SECONDS = 3600.0
_KILLED_AGAIN_SECONDS = 2.0

_FINAL = frozenset({"encoding", "files", "patched", "recursion", "syntax_error", "too_large"})
"""What a file has of itself, and will have again."""

WRITABLE = "writable"
"""The reason of a file that every user may write; its mode changes without its content."""


class Known(msgspec.Struct, frozen=True):
    """What came of parsing a file.

    Attributes:
        digests: Of the file and the modules it imported, as they were parsed.
        wanted: Where imports looked in vain.
        reason: Why it gives nothing; empty if it does.
        times: How often it gave nothing, as it is now.
        is_slow: Whether it took long.
        asked: What it uses of the files beside it; ``None`` if it gave nothing to keep.
        choice: Which of those it had.
    """

    digests: dict[str, bytes]
    wanted: tuple[str, ...] = ()
    reason: str = ""
    times: int = 0
    is_slow: bool = False
    asked: Asked | None = None
    choice: Choice = Choice()

    def is_same(self, other: Known) -> bool:
        """Return whether the same came of the same files."""
        return (self.reason, self.digests, self.choice.digests) == (
            other.reason,
            other.digests,
            other.choice.digests,
        )


class Looked(msgspec.Struct, frozen=True):
    """What came of parsing a file, and what was seen when that began.

    Attributes:
        parsed: ``None`` if that cannot be found out now.
    """

    before: dict[str, Seen]
    places: set[str]
    parsed: Parsed | None


def is_final(reason: str) -> bool:
    """Return whether a file that gives nothing for this reason does so until it changes."""
    return reason in _FINAL or reason.partition(".")[0] == "dag"


def pause(known: Known) -> float:
    """Return how long to leave a file alone that gave nothing, in seconds, by how often it has."""
    if known.reason == WRITABLE:
        return SWEEP_SECONDS
    first = _KILLED_AGAIN_SECONDS if known.reason == "killed" else AGAIN_SECONDS
    return min(first * 2.0 ** min(known.times - 1, 20), AGAIN_AT_MOST_SECONDS)
