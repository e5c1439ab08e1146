"""Statistics of the memory, collected in slices and with little of the event loop's time."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import anyio
import anyio.lowlevel

from aioflow.api.triggers import kind_of
from aioflow.clock import Clock
from aioflow.core.runs.task_counts import fresh_queued
from aioflow.core.scheduling.ready import still_waits
from aioflow.core.state.task_instance import TaskInstance
from aioflow.engine.loop import Engine
from aioflow.model.states import TaskState, TriggerState
from aioflow.model.timestamps import Timestamp

__all__ = ("OLDEST", "WAITING", "MemoryStats", "MemoryStatsCollector")

OLDEST = 10
"""Number of queued tasks and polling sensors that are listed individually, longest wait first."""

_SLICE = 1_000
"""Objects processed before other tasks get the event loop."""

_CHEAP_US = 2_000
_RESTS = 50
"""A pass longer than ``_CHEAP_US`` is cached for this multiple of its duration, so that all passes
together take 2 % of the event loop's time.
"""

_SINCE: dict[TaskState, Callable[[TaskInstance], Timestamp | None]] = {
    TaskState.QUEUED: lambda task: task.queued_at,
    TaskState.SENSING: lambda task: task.started_at,
}
"""Start of a wait that no trigger ends, by the task's state."""

WAITING = frozenset(_SINCE)
"""States of the tasks listed in ``MemoryStats.oldest``."""

Of = TypeVar("Of")


class MemoryStats:
    """The result of one pass over memory.

    Attributes:
        states: Number of live tasks by state.
        queued: Number of tasks that wait for a slot, by pool.
        parked: Number of waiting triggers, by kind.
        oldest: Queued tasks and polling sensors with the longest waits: start of the wait, row
            number and task.
    """

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()
        self.queued: Counter[str] = Counter()
        self.parked: Counter[str] = Counter()
        self.oldest: list[tuple[Timestamp, int, TaskInstance]] = []


class MemoryStatsCollector:
    """Collects statistics of a node's memory. Concurrent callers share one pass."""

    def __init__(self, clock: Clock, engine: Engine) -> None:
        self._clock = clock
        self._engine = engine
        self._lock = anyio.Lock()
        self._known = MemoryStats()
        self._good_until_us = -1

    async def collect(self) -> MemoryStats:
        """Return current statistics, or slightly older ones if collecting them takes long."""
        async with self._lock:
            if self._clock.monotonic_us() > self._good_until_us:
                took_us = await self._collect()
                rests_us = _RESTS * took_us if took_us > _CHEAP_US else -1
                self._good_until_us = self._clock.monotonic_us() + rests_us
            return self._known

    async def _collect(self) -> int:
        """Collect the statistics and return the time spent on this task alone, in µs."""
        found, took_us = MemoryStats(), 0
        began = self._clock.monotonic_us()
        for _ in self._pass(found):
            took_us += self._clock.monotonic_us() - began
            await anyio.lowlevel.checkpoint()
            began = self._clock.monotonic_us()
        self._known = found
        return took_us

    def _pass(self, found: MemoryStats) -> Iterator[None]:
        """Count objects in memory. Packed ones are not visited, since they are counted already."""
        memory = self._engine.memory
        lives = list(memory.active_tasks.objects.values())
        folded = len(memory.active_tasks) - len(lives)
        if folded > 0:
            found.states[TaskState.DEFERRED.label] += folded
        for form, count in memory.packing.forms.counts():
            found.parked[kind_of(form.class_path)] += count
        for some in _slices(lives):
            _count_tasks(some, found)
            yield
        for waits in _slices(list(memory.waits.objects.values())):
            found.parked.update(
                kind_of(wait.row.class_path) for wait in waits if wait.state is TriggerState.WAITING
            )
            yield
        for runs in _slices(list(memory.runs.objects.values())):
            for group in (group for run in runs for group in run.groups.values()):
                if fresh := fresh_queued(group):
                    found.queued[group.spec.pool] += fresh
                    found.states[TaskState.QUEUED.label] += fresh
            yield


def _count_tasks(lives: Sequence[TaskInstance], found: MemoryStats) -> None:
    waiting: list[tuple[Timestamp, int, TaskInstance]] = []
    for state, count in Counter(task.state for task in lives).items():
        found.states[state.label] += count
    for task in lives:
        if still_waits(task):
            found.queued[task.spec.pool] += 1
        since = _SINCE[task.state](task) if task.state in _SINCE else None
        if since is not None:
            waiting.append((since, task.task_no, task))
    found.oldest = heapq.nsmallest(OLDEST, [*found.oldest, *waiting], key=lambda one: one[:2])


def _slices(all_of: list[Of]) -> Iterator[list[Of]]:
    for first in range(0, len(all_of), _SLICE):
        yield all_of[first : first + _SLICE]
