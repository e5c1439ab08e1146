"""Limits on how many instances of a task run at once in all runs of its DAG.

Entries beyond the limit are set aside and return one at a time. The next one returns only when the
last one has started, was set aside for another reason, or no longer waits; or when it goes before
the last one, which may wait for the very slots that it keeps. So a limit costs no more with ten
thousand tasks behind it than with ten.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TypeAlias

from aioflow.core.state.task_instance import MappedTask, TaskInstance

__all__ = ("Across", "Item", "Queue")

Item: TypeAlias = tuple[int, int, int, TaskInstance | MappedTask]
"""Rank (keeping its slots, resumed or new), priority, turn, and the entry."""

Queue: TypeAlias = list[Item]

_Key: TypeAlias = tuple[str, str]
_Line: TypeAlias = tuple[str, str]


class Across:
    """Counts by DAG and task, for all versions. Each entry applies the limit of its own version.

    Args:
        still_waits: Whether an entry has not been started, ended or forgotten since.
    """

    def __init__(self, still_waits: Callable[[TaskInstance | MappedTask], bool]) -> None:
        self._still_waits = still_waits
        self._running: dict[_Key, int] = {}
        self._aside: dict[_Key, dict[_Line, Queue]] = {}
        self._called: dict[_Key, dict[_Line, Item]] = {}

    def running(self, entry: TaskInstance | MappedTask) -> int:
        """Return how many instances of its task hold a slot, in runs whose version limits it."""
        return self._running.get(_key(entry), 0)

    def is_full(self, entry: TaskInstance | MappedTask) -> bool:
        """Return whether its limit is exhausted."""
        at_once = _limit(entry)
        return at_once is not None and self.running(entry) >= at_once

    def enter(self, task: TaskInstance) -> None:
        """Count a task that gets its slot."""
        if _limit(task) is not None:
            key = _key(task)
            self._running[key] = self._running.get(key, 0) + 1

    def leave(self, task: TaskInstance) -> None:
        """Stop counting a task that frees its slot."""
        if _limit(task) is not None:
            key = _key(task)
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def recount(self) -> None:
        """Reset all counts, before each task with a slot is counted again."""
        self._running.clear()

    def put_aside(self, item: Item) -> None:
        """Set aside an entry until an instance of its task frees its slot."""
        entry = item[3]
        lines = self._aside.setdefault(_key(entry), {})
        heapq.heappush(lines.setdefault(_line(entry), []), item)
        self.passed(entry)

    def passed(self, entry: TaskInstance | MappedTask) -> None:
        """Record that a returned entry has started, or is set aside for another reason."""
        if not self._called or _limit(entry) is None:
            return
        called = self._called.get(_key(entry), {})
        item = called.get(_line(entry))
        if item is not None and item[3] is entry:
            del called[_line(entry)]

    def come_back(self) -> Iterator[Item]:
        """Yield each queue's next entry if its limit admits it, unless one is still returning."""
        for key in list(self._aside):
            lines, called = self._aside[key], self._called.setdefault(key, {})
            for queue_key in list(lines):
                if not self._may_call(lines[queue_key], called.get(queue_key)):
                    continue
                item = self._next(lines[queue_key])
                if item is not None:
                    called[queue_key] = item
                    yield item
                if not lines[queue_key]:
                    del lines[queue_key]
            if not lines:
                del self._aside[key]
                self._called.pop(key, None)

    def _may_call(self, aside: Queue, before: Item | None) -> bool:
        """Return whether the entry that returned before does not block the next one."""
        if before is None or not self._still_waits(before[3]):
            return True
        return bool(aside) and aside[0][:3] < before[:3]

    def rerank(self, pool: str, ranked: Callable[[Item], Item]) -> None:
        """Reorder the entries of a pool after the tasks that keep slots in it have changed."""
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
        """Yield the entries set aside. Some of them may no longer wait."""
        for lines in self._aside.values():
            for aside in lines.values():
                yield from (item[3] for item in aside)


def _limit(entry: TaskInstance | MappedTask) -> int | None:
    return entry.spec.max_active_tis_per_dag


def _key(entry: TaskInstance | MappedTask) -> _Key:
    return entry.run.row.dag_id, entry.spec.task_id


def _line(entry: TaskInstance | MappedTask) -> _Line:
    """Return the queue that it waits in: versions of a DAG may assign a task to different pools."""
    return entry.spec.body.value, entry.spec.pool
