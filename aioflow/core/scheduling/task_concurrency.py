"""Limits on a task over all runs of its DAG: how many run at once, and who stands aside for that.

Whoever stands aside comes back one at a time: the next only when that one has started, has
been put aside for something else, or no longer waits; or when it goes before that one, which
may wait for the very room that it has. So a limit costs no more with ten thousand tasks behind
it than with ten.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TypeAlias

from aioflow.core.state.task_instance import MappedTask, TaskInstance

__all__ = ("Across", "Item", "Queue")

Item: TypeAlias = tuple[int, int, int, TaskInstance | MappedTask]
"""Kept, resumed or fresh; priority, whose turn it is, and what waits."""

Queue: TypeAlias = list[Item]

_Key: TypeAlias = tuple[str, str]
_Line: TypeAlias = tuple[str, str]


class Across:
    """Counts by DAG and task, whatever the version of the run; each asks for its own limit.

    Args:
        still_waits: Whether an entry has not been started, ended or forgotten since.
    """

    def __init__(self, still_waits: Callable[[TaskInstance | MappedTask], bool]) -> None:
        self._still_waits = still_waits
        self._running: dict[_Key, int] = {}
        self._aside: dict[_Key, dict[_Line, Queue]] = {}
        self._called: dict[_Key, dict[_Line, Item]] = {}

    def running(self, entry: TaskInstance | MappedTask) -> int:
        """Return how many of its task hold a place, in all runs whose version limits it."""
        return self._running.get(_key(entry), 0)

    def is_full(self, entry: TaskInstance | MappedTask) -> bool:
        """Whether its limit is used up."""
        at_once = _limit(entry)
        return at_once is not None and self.running(entry) >= at_once

    def enter(self, task: TaskInstance) -> None:
        """A task takes its place."""
        if _limit(task) is not None:
            key = _key(task)
            self._running[key] = self._running.get(key, 0) + 1

    def leave(self, task: TaskInstance) -> None:
        """A task gives its place back."""
        if _limit(task) is not None:
            key = _key(task)
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def recount(self) -> None:
        """Nobody has a place, until each is counted again."""
        self._running.clear()

    def put_aside(self, item: Item) -> None:
        """Keep what may not start until one of its task gives its place back."""
        entry = item[3]
        lines = self._aside.setdefault(_key(entry), {})
        heapq.heappush(lines.setdefault(_line(entry), []), item)
        self.passed(entry)

    def passed(self, entry: TaskInstance | MappedTask) -> None:
        """What had come back has started, or stands aside for something else."""
        if not self._called or _limit(entry) is None:
            return
        called = self._called.get(_key(entry), {})
        item = called.get(_line(entry))
        if item is not None and item[3] is entry:
            del called[_line(entry)]

    def come_back(self) -> Iterator[Item]:
        """Yield the next of each line whose limit admits it, unless one of it is on its way."""
        for key in list(self._aside):
            lines, called = self._aside[key], self._called.setdefault(key, {})
            for line in list(lines):
                if not self._may_call(lines[line], called.get(line)):
                    continue
                item = self._next(lines[line])
                if item is not None:
                    called[line] = item
                    yield item
                if not lines[line]:
                    del lines[line]
            if not lines:
                del self._aside[key]
                self._called.pop(key, None)

    def _may_call(self, aside: Queue, before: Item | None) -> bool:
        """Whether the one that came back is not in the way of the next."""
        if before is None or not self._still_waits(before[3]):
            return True
        return bool(aside) and aside[0][:3] < before[:3]

    def rerank(self, pool: str, ranked: Callable[[Item], Item]) -> None:
        """Other tasks keep their room in a pool than before: put those of it in order again."""
        for lines in self._aside.values():
            for (_, name), aside in lines.items():
                if name == pool:
                    aside[:] = map(ranked, aside)
                    heapq.heapify(aside)

    def _next(self, aside: Queue) -> Item | None:
        while aside and not self._still_waits(aside[0][3]):
            heapq.heappop(aside)
        return heapq.heappop(aside) if aside and not self.is_full(aside[0][3]) else None

    def waiting(self) -> Iterator[TaskInstance | MappedTask]:
        """Yield what stands aside; some of it may no longer wait."""
        for lines in self._aside.values():
            for aside in lines.values():
                yield from (item[3] for item in aside)


def _limit(entry: TaskInstance | MappedTask) -> int | None:
    return entry.spec.max_active_tis_per_dag


def _key(entry: TaskInstance | MappedTask) -> _Key:
    return entry.run.row.dag_id, entry.spec.task_id


def _line(entry: TaskInstance | MappedTask) -> _Line:
    """Where it waits: versions of a DAG may have a task in different pools."""
    return entry.spec.body.value, entry.spec.pool
