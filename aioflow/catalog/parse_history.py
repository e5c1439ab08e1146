"""What came of parsing a DAG file, and when one that gives nothing is tried again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aioflow.catalog.data_files import Asked, Choice
from aioflow.catalog.folder_scan import FILE_LIMIT_BYTES, Seen
from aioflow.clock import Clock
from aioflow.protocol.inputs import FileBroken, FileParsed
from aioflow.protocol.parse_results import DagFailure, Parsed

__all__ = (
    "AGAIN_SECONDS",
    "WRITABLE",
    "Begun",
    "Known",
    "Looked",
    "ParsePace",
    "file_broken",
    "file_parsed",
    "is_final",
    "pause",
    "too_large",
)

AGAIN_SECONDS = 30.0
"""A file that gives nothing is tried again after so long, then after twice as long, ..."""
AGAIN_AT_MOST_SECONDS = 3600.0
_KILLED_AGAIN_SECONDS = 2.0

_REST = 10
"""A file that gives nothing is left alone for so many times as long as it took to parse."""

_FINAL = frozenset({"encoding", "files", "patched", "recursion", "syntax_error", "too_large"})
"""What a file has of itself, and will have again."""

WRITABLE = "writable"
"""The reason of a file that every user may write; its mode changes without its content."""


class ParsePace(msgspec.Struct, frozen=True, kw_only=True):
    """How often DAG files are looked at and parsed.

    Attributes:
        look_seconds: Between two looks at the DAG folders, where nothing says that one has changed.
        pause_seconds: Between the beginnings of two parses of one file, at least.
        processes: How many files are parsed at once, at most.
    """

    look_seconds: float = 5.0
    pause_seconds: float = 1.0
    processes: int = 6


class Begun:
    """When parsing each file began last.

    Args:
        pause_seconds: As of ``ParsePace``.
    """

    def __init__(self, clock: Clock, pause_seconds: float) -> None:
        self._clock = clock
        self._pause_us = round(pause_seconds * 1e6)
        self._begun: dict[str, int] = {}

    def note(self, file: str) -> None:
        """Parsing a file begins now."""
        self._begun[file] = self._clock.monotonic_us()

    def forget(self, file: str) -> None:
        """Let go of a file that has gone."""
        self._begun.pop(file, None)

    def seconds(self, file: str) -> float:
        """Return how long ago that was."""
        return (self._clock.monotonic_us() - self._begun[file]) / 1e6

    def left_us(self, file: str) -> int:
        """Return how long it is until parsing a file may begin again; at most 0 if it may now."""
        begun = self._begun.get(file)
        return 0 if begun is None else begun + self._pause_us - self._clock.monotonic_us()


class Known(msgspec.Struct, frozen=True):
    """What came of parsing a file.

    Attributes:
        digests: Of the file and the modules it imported, as they were parsed.
        wanted: Where imports looked in vain.
        reason: Why it gives nothing; empty if it does.
        times: How often it gave nothing, as it is now.
        is_slow: Whether it took long.
        seconds: How long it took.
        asked: What it uses of the files beside it; ``None`` if it gave nothing to keep.
        choice: Which of those it had.
    """

    digests: dict[str, bytes]
    wanted: tuple[str, ...] = ()
    reason: str = ""
    times: int = 0
    is_slow: bool = False
    seconds: float = 0.0
    asked: Asked | None = None
    choice: Choice = Choice()

    @property
    def is_good(self) -> bool:
        """Whether it has given a version, which only a change makes another."""
        return self.asked is not None and not self.reason

    def is_same(self, other: Known) -> bool:
        """Return whether the same came of the same files."""
        is_same = (self.reason, self.digests) == (other.reason, other.digests)
        return is_same and not self.choice.differs(other.choice)


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


def pause(known: Known, pace: ParsePace) -> float:
    """Return how long to leave a file alone that gave nothing, in seconds.

    That depends on how often it has, and on what a try costs: one that never ends is not to take
    much of the processor for as long as it lies there.
    """
    if known.reason == WRITABLE:
        return pace.look_seconds
    first = _KILLED_AGAIN_SECONDS if known.reason == "killed" else AGAIN_SECONDS
    least = _REST * known.seconds
    at_most = max(AGAIN_AT_MOST_SECONDS, least)
    return min(max(first, least) * 2.0 ** min(known.times - 1, 20), at_most)


def file_parsed(file: str, version: str, parsed: Parsed, sources: dict[str, bytes]) -> FileParsed:
    """Return what is reported of a file that has a version."""
    return FileParsed(
        file=file,
        version=version,
        dags=parsed.dags,
        sources=sources,
        failures=parsed.failures,
        triggers=parsed.triggers,
    )


def file_broken(file: str, failures: Sequence[DagFailure]) -> FileBroken:
    """Return what is reported of a file that gives nothing."""
    first = failures[0]
    where = f"line {first.line}: " if first.line else ""
    return FileBroken(file=file, reason=first.reason, message=where + first.message)


def too_large(name: str) -> DagFailure:
    """Return what is said of a file that is not read."""
    limit = FILE_LIMIT_BYTES // 1024 // 1024
    return DagFailure("too_large", f"{name} is larger than {limit} MiB, and so it is not read")
