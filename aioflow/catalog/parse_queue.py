"""Parse queues, so that files that take long do not delay those that do not.

Files start in the quick queue, by rank. One that has not finished soon continues in a slot of the
slow queue and frees its own for the next file. If the slow queue has no free slot, the file is
cancelled, and starts again there later. So a file in the quick queue waits only moments, however
many files never finish.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Generic, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from aioflow.clock import Clock

__all__ = ("QUICK", "QUICK_SECONDS", "SLOW", "ParseQueue", "Rank")

QUICK = 2
"""Files that are parsed in parallel from the quick queue."""

SLOW = 4
"""The same for the slow queue. Its parsers have the lowest processor priority."""

QUICK_SECONDS = 2.0

_CONCLUDED = 8
"""Maximum number of results processed at a time: a slow disk must not keep parsers idle."""


Outcome = TypeVar("Outcome")


class Rank(IntEnum):
    """Order in which files are parsed."""

    CHANGED = 0
    NEW = 1
    AGAIN = 2


class _Job(msgspec.Struct):
    """A file that is being parsed; ``is_slow`` becomes true when it changes queues."""

    file: str
    is_slow: bool


class ParseQueue(Generic[Outcome]):
    """Files that wait, and those that are being parsed.

    Args:
        parse: Parses a file; may be cancelled.
        conclude: Called with the result, and whether it took long.
        on_empty: Called when no file is left.
        processes: Maximum number of files parsed in parallel, over both queues; at least two.
    """

    def __init__(
        self,
        parse: Callable[[str], Awaitable[Outcome]],
        conclude: Callable[[str, Outcome, bool], Awaitable[None]],
        on_empty: Callable[[], None],
        clock: Clock,
        processes: int = QUICK + SLOW,
    ) -> None:
        quick = max(1, processes * QUICK // (QUICK + SLOW))
        self._most = {False: quick, True: max(1, processes - quick)}
        self.files: set[str] = set()
        self._parse = parse
        self._conclude = conclude
        self._on_empty = on_empty
        self._clock = clock
        self._quick: list[tuple[Rank, int, str]] = []
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

    def put(self, file: str, rank: Rank, *, is_slow: bool = False) -> None:
        """Queue a file. Does nothing while it is in ``files``, those that wait or are parsed."""
        if file in self.files:
            return
        self.files.add(file)
        if is_slow:
            self._slow.append(file)
        else:
            heapq.heappush(self._quick, (rank, next(self._numbers), file))
        self._begin()

    def _begin(self) -> None:
        assert self._group is not None  # noqa: S101 - it runs
        while self._quick and self._has_capacity(is_slow=False):
            self._start(_Job(heapq.heappop(self._quick)[2], is_slow=False))
        while self._slow and self._has_capacity(is_slow=True):
            self._start(_Job(self._slow.popleft(), is_slow=True))

    def _has_capacity(self, *, is_slow: bool) -> bool:
        return self._running[is_slow] < self._most[is_slow] and self._concluding < _CONCLUDED

    def _start(self, job: _Job) -> None:
        assert self._group is not None  # noqa: S101 - it runs
        self._running[job.is_slow] += 1
        self._group.start_soon(self._serve, job)

    async def _serve(self, job: _Job) -> None:
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

    async def _look(self, job: _Job) -> Outcome | None:
        """Return the result for a file; ``None`` if it must start again in the slow queue."""
        outcome: Outcome | None = None
        async with anyio.create_task_group() as parsing:
            if not job.is_slow:
                parsing.start_soon(self._move_to_slow, job, parsing.cancel_scope)
            outcome = await self._parse(job.file)
            parsing.cancel_scope.cancel()
        return outcome

    async def _move_to_slow(self, job: _Job, parsing: anyio.CancelScope) -> None:
        await self._clock.sleep(QUICK_SECONDS)
        if self._running[True] >= self._most[True]:
            parsing.cancel()
            return
        self._running[False] -= 1
        self._running[True] += 1
        job.is_slow = True
        self._begin()
