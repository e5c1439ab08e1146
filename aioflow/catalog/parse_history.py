"""The results of parsing DAG files, and when a file that failed is parsed again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aioflow.catalog.data_files import Choice, DataFileUse
from aioflow.catalog.folder_scan import FILE_LIMIT_BYTES, ScannedFile
from aioflow.clock import Clock
from aioflow.protocol.inputs import FileBroken, FileParsed
from aioflow.protocol.parse_results import DagFailure, Parsed

__all__ = (
    "AGAIN_SECONDS",
    "WRITABLE",
    "ParseOutcome",
    "ParsePace",
    "ParseResult",
    "ParseStarts",
    "file_broken",
    "file_parsed",
    "is_final",
    "pause",
    "too_large",
)

AGAIN_SECONDS = 30.0
"""First delay before a failed file is parsed again. Each further failure doubles it."""
AGAIN_AT_MOST_SECONDS = 3600.0
_KILLED_AGAIN_SECONDS = 2.0

_REST = 10
"""A failed file is left alone for at least this many times as long as its parse took."""

_FINAL = frozenset({"encoding", "files", "patched", "recursion", "syntax_error", "too_large"})
"""Failures that depend only on the file, and so recur until it changes."""

WRITABLE = "writable"
"""Reason for a world-writable file; its mode can change without its content."""


class ParsePace(msgspec.Struct, frozen=True, kw_only=True):
    """How often DAG files are checked and parsed.

    Attributes:
        look_seconds: Interval between two sweeps of the DAG folders if no change is notified.
        pause_seconds: Minimum time between the starts of two parses of one file.
        processes: Maximum number of files parsed in parallel.
    """

    look_seconds: float = 5.0
    pause_seconds: float = 1.0
    processes: int = 6


class ParseStarts:
    """Records when the last parse of each file began.

    Args:
        pause_seconds: As of ``ParsePace``.
    """

    def __init__(self, clock: Clock, pause_seconds: float) -> None:
        self._clock = clock
        self._pause_us = round(pause_seconds * 1e6)
        self._begun: dict[str, int] = {}

    def note(self, file: str) -> None:
        """Record that a parse of a file begins now."""
        self._begun[file] = self._clock.monotonic_us()

    def forget(self, file: str) -> None:
        """Drop a file that was deleted."""
        self._begun.pop(file, None)

    def seconds(self, file: str) -> float:
        """Return the time since the last parse of a file began."""
        return (self._clock.monotonic_us() - self._begun[file]) / 1e6

    def left_us(self, file: str) -> int:
        """Return the time until a file may be parsed again; 0 or negative if it may be now."""
        begun = self._begun.get(file)
        return 0 if begun is None else begun + self._pause_us - self._clock.monotonic_us()


class ParseResult(msgspec.Struct, frozen=True):
    """The result of parsing a file.

    Attributes:
        digests: Digests of the file and the modules it imported, as parsed.
        wanted: Places where imports were not found.
        reason: Reason for the failure; empty if there is none.
        times: Number of equal results in a row.
        is_slow: Whether it took long.
        seconds: How long it took.
        asked: The files beside it that it uses; ``None`` if there was nothing to store.
        choice: Which of those it had.
    """

    digests: dict[str, bytes]
    wanted: tuple[str, ...] = ()
    reason: str = ""
    times: int = 0
    is_slow: bool = False
    seconds: float = 0.0
    asked: DataFileUse | None = None
    choice: Choice = Choice()

    @property
    def is_good(self) -> bool:
        """True if the file has a version, which only a change replaces."""
        return self.asked is not None and not self.reason

    def is_same(self, other: ParseResult) -> bool:
        """Return whether the same files had the same result."""
        is_same = (self.reason, self.digests) == (other.reason, other.digests)
        return is_same and not self.choice.differs(other.choice)


class ParseOutcome(msgspec.Struct, frozen=True):
    """The result of parsing a file, and the files that were seen when that began.

    Attributes:
        parsed: ``None`` if it could not be parsed now.
    """

    before: dict[str, ScannedFile]
    places: set[str]
    parsed: Parsed | None


def is_final(reason: str) -> bool:
    """Return whether a failure with this reason recurs until the file changes."""
    return reason in _FINAL or reason.partition(".")[0] == "dag"


def pause(known: ParseResult, pace: ParsePace) -> float:
    """Return how long to wait before a failed file is parsed again, in seconds.

    This depends on the number of failures and on the cost of a try: a file whose import never ends
    must not occupy much of the processor for as long as it exists.
    """
    if known.reason == WRITABLE:
        return pace.look_seconds
    first = _KILLED_AGAIN_SECONDS if known.reason == "killed" else AGAIN_SECONDS
    least = _REST * known.seconds
    at_most = max(AGAIN_AT_MOST_SECONDS, least)
    return min(max(first, least) * 2.0 ** min(known.times - 1, 20), at_most)


def file_parsed(file: str, version: str, parsed: Parsed, sources: dict[str, bytes]) -> FileParsed:
    """Return the report for a file that has a version."""
    return FileParsed(
        file=file,
        version=version,
        dags=parsed.dags,
        sources=sources,
        failures=parsed.failures,
        triggers=parsed.triggers,
    )


def file_broken(file: str, failures: Sequence[DagFailure]) -> FileBroken:
    """Return the report for a file that failed."""
    first = failures[0]
    where = f"line {first.line}: " if first.line else ""
    return FileBroken(file=file, reason=first.reason, message=where + first.message)


def too_large(name: str) -> DagFailure:
    """Return the failure for a file that is too large to be read."""
    limit = FILE_LIMIT_BYTES // 1024 // 1024
    return DagFailure("too_large", f"{name} is larger than {limit} MiB, and so it is not read")
