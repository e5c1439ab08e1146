"""What a daemon has seen since it began: how often waits fired, and whom named events woke."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque

from aioflow.api.parked import kind_of
from aioflow.clock import Clock
from aioflow.core.memory import Memory
from aioflow.model import RunNo, TaskNo, TriggerState
from aioflow.rows import Batch

__all__ = ("EVENT_CLASS", "Fires")

EVENT_CLASS = "aioflow_triggers.events:EventTrigger"
"""The trigger that named events wake, by whose keys their numbers are known."""

_EVENTS_KEPT = 10_000
_WOKEN_KEPT = 100
_RECENT_SECONDS = 60


class Fires:
    """Counts what fires, by kind.

    Attributes:
        counts: Since the daemon began.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.counts: Counter[str] = Counter()
        self._recent: deque[tuple[int, Counter[str]]] = deque()
        self._woken: OrderedDict[int, list[tuple[RunNo, TaskNo]]] = OrderedDict()

    def committed(self, batch: Batch, memory: Memory) -> None:
        """Count what a batch says has fired; nothing is looked for where nothing has."""
        fired = [change for change in batch.trigger_changes if change.state is TriggerState.FIRED]
        if not fired:
            return
        counts: Counter[str] = Counter()
        for change in fired:
            wait = memory.waits.objects.get(change.trigger_no)
            if wait is None:
                continue
            path = wait.row.class_path
            counts[path] += 1
            if path == EVENT_CLASS:
                self._note(change.event_key, wait.row.run_no, wait.row.task_no)
        self._count(counts)

    def _count(self, paths: Counter[str]) -> None:
        second = self._clock.monotonic_us() // 1_000_000
        if not self._recent or self._recent[-1][0] != second:
            self._recent.append((second, Counter()))
            self._drop_old(second)
        for path, count in paths.items():
            kind = kind_of(path)
            self.counts[kind] += count
            self._recent[-1][1][kind] += count

    def _drop_old(self, second: int) -> None:
        while self._recent and self._recent[0][0] <= second - _RECENT_SECONDS:
            self._recent.popleft()

    def _note(self, key: str | None, run_no: RunNo, task_no: TaskNo) -> None:
        if key is None or not key.isdecimal():
            return
        woken = self._woken.setdefault(int(key), [])
        if len(woken) < _WOKEN_KEPT:
            woken.append((run_no, task_no))
        if len(self._woken) > _EVENTS_KEPT:
            self._woken.popitem(last=False)

    def per_second(self) -> dict[str, float]:
        """Return how many fire in a second, over the last minute, by kind."""
        self._drop_old(self._clock.monotonic_us() // 1_000_000)
        total: Counter[str] = Counter()
        for _, counts in self._recent:
            total.update(counts)
        return {kind: count / _RECENT_SECONDS for kind, count in total.items()}

    def woken_by(self, event_no: int) -> list[tuple[RunNo, TaskNo]]:
        """Return the tasks that a named event woke, as far as that is remembered."""
        return list(self._woken.get(event_no, ()))
