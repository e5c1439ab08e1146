"""Counters since the daemon started: events per kind, and tasks woken by named events."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence

from aioflow.api.triggers import kind_of
from aioflow.clock import Clock
from aioflow.core.state.task_instance import Fire
from aioflow.model.ids import RunNo, TaskNo

__all__ = ("EVENT_CLASS", "Fires")

EVENT_CLASS = "aioflow_triggers.events:EventTrigger"
"""The trigger that waits for named events. The key of each of its fires is an event's number."""

_CACHED_EVENTS = 10_000
_CACHED_WOKEN = 100
_RECENT_SECONDS = 60


class Fires:
    """Counts events of triggers by kind.

    Attributes:
        counts: Since the daemon started.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.counts: Counter[str] = Counter()
        self._recent: deque[tuple[int, Counter[str]]] = deque()
        self._woken: OrderedDict[int, list[tuple[RunNo, TaskNo]]] = OrderedDict()

    def committed(self, fires: Sequence[Fire]) -> None:
        """Count the events that a durable turn accepted from triggers."""
        if not fires:
            return
        for fire in fires:
            if fire.class_path == EVENT_CLASS and fire.run_no is not None:
                assert fire.task_no is not None  # noqa: S101 - they come together
                self._note(fire.key, fire.run_no, fire.task_no)
        self._count(Counter(fire.class_path for fire in fires))

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
        if len(woken) < _CACHED_WOKEN:
            woken.append((run_no, task_no))
        if len(self._woken) > _CACHED_EVENTS:
            self._woken.popitem(last=False)

    def per_second(self) -> dict[str, float]:
        """Return the average number of events per second over the last minute, by kind."""
        self._drop_old(self._clock.monotonic_us() // 1_000_000)
        total: Counter[str] = Counter()
        for _, counts in self._recent:
            total.update(counts)
        return {kind: count / _RECENT_SECONDS for kind, count in total.items()}

    def woken_by(self, event_no: int) -> list[tuple[RunNo, TaskNo]]:
        """Return the tasks that a named event resumed, as far as known."""
        return list(self._woken.get(event_no, ()))
