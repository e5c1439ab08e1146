"""Parse queues of DAG files, results of parsing, and retry delays for failed files.

Files start in the quick queue, in the order of their ranks. If the parse of a file takes long, it
continues in a slot of the slow queue, so that its slot in the quick queue is free for the next
file. If the slow queue has no free slot, the parse is cancelled, and starts again later in the slow
queue. So a file in the quick queue never waits for long, however many imports never end.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import Generic, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from aioflow.catalog.data_files import Choice, DataFileUse
from aioflow.catalog.folder_scan import FILE_LIMIT_BYTES, ScannedFile
from aioflow.catalog.interpreter_choice import OURS, InterpreterChoice
from aioflow.clock import Clock
from aioflow.protocol.inputs import FileBroken, FileParsed
from aioflow.protocol.reports import DagFailure, Parsed

__all__ = (
    "QUICK_FILES",
    "QUICK_SECONDS",
    "RETRY_SECONDS",
    "SLOW_FILES",
    "WRITABLE",
    "ParseOutcome",
    "ParsePace",
    "ParseQueue",
    "ParseRank",
    "ParseResult",
    "ParseStarts",
    "file_broken",
    "file_parsed",
    "is_final_reason",
    "retry_delay_seconds",
    "too_large_failure",
)

QUICK_FILES = 2
"""Maximum number of files from the quick queue that are parsed in parallel."""

SLOW_FILES = 4
"""Maximum number of files from the slow queue that are parsed in parallel. Their parsers have the
lowest processor priority."""

QUICK_SECONDS = 2.0

_CONCLUDING_FILES = 8
"""Maximum number of results processed at a time, so that parsers need not wait for a slow disk."""


Outcome = TypeVar("Outcome")


class ParseRank(IntEnum):
    """Rank of a file in the quick queue. Lower ranks are parsed first."""

    CHANGED = 0
    NEW = 1
    AGAIN = 2


class _ParseJob(msgspec.Struct):
    """A file that is being parsed. ``is_slow`` becomes true when it moves to the slow queue."""

    file: str
    is_slow: bool


class ParseQueue(Generic[Outcome]):
    """Files that are waiting to be parsed, and files that are being parsed.

    Args:
        parse: Parses a file; may be cancelled.
        conclude: Called with the file, the result, and whether the parse took long.
        on_empty: Called when no file is left.
        processes: Maximum number of files parsed in parallel, over both queues; at least two.
    """

    def __init__(
        self,
        parse: Callable[[str], Awaitable[Outcome]],
        conclude: Callable[[str, Outcome, bool], Awaitable[None]],
        on_empty: Callable[[], None],
        clock: Clock,
        processes: int = QUICK_FILES + SLOW_FILES,
    ) -> None:
        quick = max(1, processes * QUICK_FILES // (QUICK_FILES + SLOW_FILES))
        self._most = {False: quick, True: max(1, processes - quick)}
        self.files: set[str] = set()
        self._parse = parse
        self._conclude = conclude
        self._on_empty = on_empty
        self._clock = clock
        self._quick: list[tuple[ParseRank, int, str]] = []
        self._slow: deque[str] = deque()
        self._running = {False: 0, True: 0}
        self._concluding = 0
        self._numbers = itertools.count()
        self._group: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Parse queued files until cancelled."""
        async with anyio.create_task_group() as self._group:
            task_status.started()
            await anyio.sleep_forever()

    def put(self, file: str, rank: ParseRank, *, is_slow: bool = False) -> None:
        """Queue a file, unless it is in ``files``, so already waiting or being parsed."""
        if file in self.files:
            return
        self.files.add(file)
        if is_slow:
            self._slow.append(file)
        else:
            heapq.heappush(self._quick, (rank, next(self._numbers), file))
        self._begin()

    def _begin(self) -> None:
        assert self._group is not None  # noqa: S101 - set by ``run``
        while self._quick and self._has_capacity(is_slow=False):
            self._start(_ParseJob(heapq.heappop(self._quick)[2], is_slow=False))
        while self._slow and self._has_capacity(is_slow=True):
            self._start(_ParseJob(self._slow.popleft(), is_slow=True))

    def _has_capacity(self, *, is_slow: bool) -> bool:
        return self._running[is_slow] < self._most[is_slow] and self._concluding < _CONCLUDING_FILES

    def _start(self, job: _ParseJob) -> None:
        assert self._group is not None  # noqa: S101 - set by ``run``
        self._running[job.is_slow] += 1
        self._group.start_soon(self._serve, job)

    async def _serve(self, job: _ParseJob) -> None:
        try:
            outcome = await self._look(job)
        finally:
            self._running[job.is_slow] -= 1
        if outcome is None:
            self._slow.append(job.file)
        else:
            self._concluding += 1
            self._begin()
            await self._conclude(job.file, outcome, job.is_slow)
            self._concluding -= 1
            self.files.discard(job.file)
        self._begin()
        if not self.files:
            self._on_empty()

    async def _look(self, job: _ParseJob) -> Outcome | None:
        """Parse a file. Return the result, or ``None`` if it must start again in the slow queue."""
        outcome: Outcome | None = None
        async with anyio.create_task_group() as parsing:
            if not job.is_slow:
                parsing.start_soon(self._move_to_slow, job, parsing.cancel_scope)
            outcome = await self._parse(job.file)
            parsing.cancel_scope.cancel()
        return outcome

    async def _move_to_slow(self, job: _ParseJob, parsing: anyio.CancelScope) -> None:
        await self._clock.sleep(QUICK_SECONDS)
        if self._running[True] >= self._most[True]:
            parsing.cancel()
            return
        self._running[False] -= 1
        self._running[True] += 1
        job.is_slow = True
        self._begin()


RETRY_SECONDS = 30.0
"""Delay after a failure until the file is parsed again. Each further failure doubles the delay."""
RETRY_AT_MOST_SECONDS = 3600.0
_KILLED_RETRY_SECONDS = 2.0

_REST_FACTOR = 10
"""Minimum delay until a failed file is parsed again, as a multiple of the duration of its parse."""

_FINAL_REASONS = frozenset(
    {"encoding", "files", "patched", "recursion", "syntax_error", "too_large"}
)
"""Reasons for failures that recur until the file or its interpreter changes. Changes of the
interpreter are detected as well.
"""

WRITABLE = "writable"
"""Reason for the failure of a world-writable file. Its mode can change without its content."""


class ParsePace(msgspec.Struct, frozen=True, kw_only=True):
    """How often DAG files are checked and parsed.

    Attributes:
        look_seconds: Interval between two sweeps of the DAG folders if no change is detected.
        pause_seconds: Minimum time between the starts of two parses of the same file.
        processes: Maximum number of files parsed in parallel.
    """

    look_seconds: float = 5.0
    pause_seconds: float = 1.0
    processes: int = 6


class ParseStarts:
    """Records when the last parse of each file began.

    Args:
        pause_seconds: See ``ParsePace``.
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
        """Return the time until a file may be parsed again, in µs; 0 or less if at once."""
        begun = self._begun.get(file)
        return 0 if begun is None else begun + self._pause_us - self._clock.monotonic_us()


class ParseResult(msgspec.Struct, frozen=True):
    """The result of parsing a file.

    Attributes:
        digests: Digests of the file and the modules it imported, as parsed.
        wanted: Paths at which imports were looked for without success.
        reason: Reason for the failure; empty if there is none.
        times: Number of equal results in a row.
        is_slow: Whether the parse took long.
        seconds: Duration of the parse.
        asked: The data files that the file uses; ``None`` if nothing was stored.
        choice: The data files in its version.
        interpreter: The interpreter in which the file was parsed, and the generation of the
            interpreter.
    """

    digests: dict[str, bytes]
    wanted: tuple[str, ...] = ()
    reason: str = ""
    times: int = 0
    is_slow: bool = False
    seconds: float = 0.0
    asked: DataFileUse | None = None
    choice: Choice = Choice()
    interpreter: tuple[InterpreterChoice, int] = (OURS, 0)

    @property
    def is_good(self) -> bool:
        """True if the file has a version, so that only a change causes another parse."""
        return self.asked is not None and not self.reason

    def is_same(self, other: ParseResult) -> bool:
        """Return whether both results are equal and come from the same file contents."""
        is_same = (self.reason, self.digests, self.interpreter) == (
            other.reason,
            other.digests,
            other.interpreter,
        )
        return is_same and not self.choice.differs(other.choice)


class ParseOutcome(msgspec.Struct, frozen=True):
    """The result of parsing a file, and the files known when the parse began.

    Attributes:
        parsed: The result; ``None`` if the file could not be parsed now.
        interpreter: See ``ParseResult``.
    """

    before: dict[str, ScannedFile]
    places: set[str]
    parsed: Parsed | None
    interpreter: tuple[InterpreterChoice, int]


def is_final_reason(reason: str) -> bool:
    """Return whether a failure with this reason recurs until the file changes."""
    is_of_dag = reason.partition(".")[0] == "dag"
    return reason in _FINAL_REASONS or is_of_dag or reason.startswith("file.python_")


def retry_delay_seconds(known: ParseResult, pace: ParsePace) -> float:
    """Return the delay until a failed file is parsed again, in seconds.

    The delay depends on the number of failures and on the duration of the parse, so that a file
    whose import never ends does not use much processor time in the long run.
    """
    if known.reason == WRITABLE:
        return pace.look_seconds
    first = _KILLED_RETRY_SECONDS if known.reason == "killed" else RETRY_SECONDS
    least = _REST_FACTOR * known.seconds
    at_most = max(RETRY_AT_MOST_SECONDS, least)
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


def too_large_failure(name: str) -> DagFailure:
    """Return the failure for a file that is too large to be read."""
    limit = FILE_LIMIT_BYTES // 1024 // 1024
    return DagFailure("too_large", f"{name} is larger than {limit} MiB, and so it is not read")
