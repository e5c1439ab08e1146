"""Hourly aggregates: how many runs and tasks ended, and how long they took.

A measure of one DAG or task in one hour is one row for each of its *buckets*. A bucket of ``STATE``
is a final state. A bucket of another measure is a range of durations: bucket 0 is below one
millisecond, and each further bucket is ``2 ** (1/4)`` times as wide as the one before. To merge
several hours, tasks or DAGs, their buckets are added up. A percentile is computed as the geometric
middle of a bucket, so its error is at most 9.1 % (``PERCENTILE_ERROR``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from aioflow.model.timestamps import Timestamp

__all__ = (
    "DAY_US",
    "HOUR_US",
    "LAST_BUCKET",
    "OF_RUN",
    "PERCENTILE_ERROR",
    "HistoryRow",
    "Measure",
    "bucket_of",
    "day_of",
    "hour_of",
    "milliseconds_of",
    "percentile_ms",
)

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US

OF_RUN = ""
"""The task id in rows about whole runs."""

_PER_OCTAVE = 4
_LONGEST_MS = 10 * 366 * 86_400_000
"""Limit for durations, so that no sum overflows. Longer ones only result from a wrong clock."""

LAST_BUCKET = 1 + int(_PER_OCTAVE * math.log2(_LONGEST_MS))

PERCENTILE_ERROR = 2 ** (1 / (2 * _PER_OCTAVE)) - 1
"""Largest relative error of a percentile that is at least one millisecond."""


class Measure(IntEnum):
    """The quantity that a row measures."""

    STATE = 0
    """Number of ends by final state: a ``RunState`` for runs, a ``TaskState`` for tasks."""

    DURATION = 1
    """Time from start to end, for runs and tasks that succeeded. For a task, that of its last try.
    """

    QUEUE = 2
    """Time until the start: since its creation for a run, since it was ready for a task."""

    WAIT = 3
    """Time from the deferral of a task to the event of its trigger."""


class HistoryRow(NamedTuple):
    """The count of one bucket, or a number to add to it.

    Attributes:
        task_id: ``OF_RUN`` for the run as a whole.
        start: Start of the hour; start of the day in UTC if the hours of that day were merged.
        total_ms: Sum of the durations; 0 for ``Measure.STATE``.
    """

    dag_id: str
    task_id: str
    measure: int
    start: Timestamp
    bucket: int
    occurrences: int
    total_ms: int


def hour_of(at: Timestamp) -> Timestamp:
    """Return the start of the hour that contains a time."""
    return at - at % HOUR_US


def day_of(at: Timestamp) -> Timestamp:
    """Return the start of the day in UTC that contains a time."""
    return at - at % DAY_US


def milliseconds_of(duration_us: int) -> int:
    """Return a duration in the form in which it is added up. A negative duration counts as 0."""
    return min(max(duration_us, 0) // 1000, _LONGEST_MS)


def bucket_of(duration_ms: int) -> int:
    """Return the bucket of a duration."""
    return 1 + int(_PER_OCTAVE * math.log2(duration_ms)) if duration_ms else 0


def percentile_ms(counts: Mapping[int, int], share: float) -> float | None:
    """Return a percentile of the durations in buckets; ``None`` if there are none.

    Args:
        counts: Number of durations by bucket.
        share: 0.5 for the median.
    """
    total = sum(counts.values())
    if not total:
        return None
    rank, passed = share * total, 0
    last = max(counts)
    for bucket in sorted(counts):
        passed += counts[bucket]
        if passed >= rank:
            last = bucket
            break
    return 0.5 if not last else 2 ** ((last - 0.5) / _PER_OCTAVE)
