"""Usual durations, queue times and wait times of tasks: medians of the last 30 days."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Mapping
from typing import TypeAlias

from aioflow.api.page.history import USUAL_DAYS, USUAL_US
from aioflow.api.queries import RunReader
from aioflow.clock import Clock
from aioflow.model.history import DAY_US, Measure, percentile_ms
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp

__all__ = ("TaskKey", "UsualTimes", "usual_seconds")

TaskKey: TypeAlias = tuple[str, str]
"""A DAG id, and the id of a task of that DAG."""

Medians: TypeAlias = Mapping[Measure, float]

_LEAST = 3
"""Minimum number of durations from which a median is computed."""

_CACHED = 2_000
_MOST = 60
"""Maximum number of tasks that are looked up at a time. If there are more, none is looked up."""

_MEASURES = {
    TaskState.DEFERRED: Measure.WAIT,
    TaskState.SENSING: Measure.DURATION,
    TaskState.RUNNING: Measure.DURATION,
    TaskState.QUEUED: Measure.QUEUE,
}


class UsualTimes:
    """Reads the median durations of tasks.

    Args:
        clock: Source of the current time.
    """

    def __init__(self, reader: RunReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._cache: OrderedDict[TaskKey, tuple[Timestamp, Medians]] = OrderedDict()

    async def of_tasks(self, wanted: Collection[TaskKey]) -> Mapping[TaskKey, Medians]:
        """Return the medians of each task in seconds. Takes a single read of the database.

        A measure with fewer than three durations is left out.
        """
        keys = set(wanted)
        if len(keys) > _MOST:
            return {}
        now = self._clock.now()
        missing = [key for key in keys if not self._is_fresh(key, now)]
        if missing:
            await self._read(missing, now)
        return {key: self._cache[key][1] for key in keys if key in self._cache}

    def _is_fresh(self, key: TaskKey, now: Timestamp) -> bool:
        known = self._cache.get(key)
        return known is not None and 0 <= now - known[0] < USUAL_US

    async def _read(self, keys: Collection[TaskKey], now: Timestamp) -> None:
        counts: defaultdict[TaskKey, defaultdict[int, Counter[int]]] = defaultdict(
            lambda: defaultdict(Counter)
        )
        rows = await self._reader.store.count_durations_of_tasks(
            keys, now - USUAL_DAYS * DAY_US, now
        )
        for row in rows:
            counts[row.dag_id, row.task_id][row.measure][row.bucket] += row.occurrences
        for key in keys:
            self._cache[key] = now, _medians(counts[key])
            self._cache.move_to_end(key)
        while len(self._cache) > _CACHED:
            self._cache.popitem(last=False)


def _medians(counts: Mapping[int, Counter[int]]) -> Medians:
    found = {}
    for measure in set(_MEASURES.values()):
        buckets = counts.get(measure, Counter())
        median = percentile_ms(buckets, 0.5)
        if median is not None and buckets.total() >= _LEAST:
            found[measure] = round(median / 1000, 3)
    return found


def usual_seconds(medians: Medians | None, state: TaskState) -> float | None:
    """Return how long a task usually stays in a state; ``None`` if too little is known."""
    measure = _MEASURES.get(state)
    return None if medians is None or measure is None else medians.get(measure)
