"""What memory has, counted for people: gone through in slices, and never for much of the time."""

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

__all__ = ("OLDEST", "WAITING", "Looked", "Looking")

OLDEST = 10
"""So many of those that wait for a slot, or look as sensors, are known by name: those that have
for longest."""

_SLICE = 1_000
"""What is looked at before others have the loop."""

_CHEAP_US = 2_000
_RESTS = 50
"""A look that takes longer than that is good for as many times what it took: all of them together
take 2 % of the loop."""

_SINCE: dict[TaskState, Callable[[TaskInstance], Timestamp | None]] = {
    TaskState.QUEUED: lambda task: task.queued_at,
    TaskState.SENSING: lambda task: task.started_at,
}
"""Since when a task waits that no trigger wakes, by its state."""

WAITING = frozenset(_SINCE)
"""The states of those that are among the oldest."""

Of = TypeVar("Of")


class Looked:
    """What one pass over memory has found.

    Attributes:
        states: How many live tasks stand how.
        queued: How many wait for a slot, by pool.
        parked: How many triggers wait, by kind.
        oldest: Queued tasks, and sensors that look, since when and their numbers; those that have
            waited for longest.
    """

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()
        self.queued: Counter[str] = Counter()
        self.parked: Counter[str] = Counter()
        self.oldest: list[tuple[Timestamp, int, TaskInstance]] = []


class Looking:
    """Looks through the memory of a node for whoever asks, once for all who do meanwhile."""

    def __init__(self, clock: Clock, engine: Engine) -> None:
        self._clock = clock
        self._engine = engine
        self._lock = anyio.Lock()
        self._known = Looked()
        self._good_until_us = -1

    async def look(self) -> Looked:
        """Return what there is: as of now, or where that takes long of a little while ago."""
        async with self._lock:
            if self._clock.monotonic_us() > self._good_until_us:
                took_us = await self._look()
                rests_us = _RESTS * took_us if took_us > _CHEAP_US else -1
                self._good_until_us = self._clock.monotonic_us() + rests_us
            return self._known

    async def _look(self) -> int:
        """Look, and return how long that took without what others did meanwhile."""
        found, took_us = Looked(), 0
        began = self._clock.monotonic_us()
        for _ in self._pass(found):
            took_us += self._clock.monotonic_us() - began
            await anyio.lowlevel.checkpoint()
            began = self._clock.monotonic_us()
        self._known = found
        return took_us

    def _pass(self, found: Looked) -> Iterator[None]:
        """Go through all but what lies folded, which is counted already."""
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


def _count_tasks(lives: Sequence[TaskInstance], found: Looked) -> None:
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
