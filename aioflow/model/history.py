"""Aggregates of what ended: how many runs and tasks, and how long they took, by hour.

A measure of one DAG or task in one hour is one row for each of its *buckets*. A bucket of ``STATE``
is a final state. A bucket of another measure is a range of durations: bucket 0 is below one
millisecond, and each further bucket is ``2 ** (1/4)`` times as wide as the one before. Buckets of
several hours, tasks or DAGs are added up to merge them. A percentile from buckets is the geometric
middle of a bucket, so it is wrong by at most 9.1 % (``PERCENTILE_ERROR``).
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
"""Longer durations count as this long, so that no sum overflows. Only a wrong clock has them."""

LAST_BUCKET = 1 + int(_PER_OCTAVE * math.log2(_LONGEST_MS))

PERCENTILE_ERROR = 2 ** (1 / (2 * _PER_OCTAVE)) - 1
"""Largest relative error of a percentile that is at least one millisecond."""


class Measure(IntEnum):
    """The measure that a row counts."""

    STATE = 0
    """Ends, by final state: of runs a ``RunState``, of tasks a ``TaskState``."""

    DURATION = 1
    """From start to end, of runs and tasks that succeeded. A task's last try counts."""

    QUEUE = 2
    """Until the start: of a run since its creation, of a task since it could run."""

    WAIT = 3
    """From the deferral of a task to the event of its trigger."""


class HistoryRow(NamedTuple):
    """Occurrences to add to one bucket, or the occurrences in it.

    Attributes:
        task_id: ``OF_RUN`` for the run as a whole.
        start: Start of the hour; of the day in UTC if the hours of that day have been merged.
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
    """Return the start of the hour of a time."""
    return at - at % HOUR_US


def day_of(at: Timestamp) -> Timestamp:
    """Return the start of the day of a time, in UTC."""
    return at - at % DAY_US


def milliseconds_of(duration_us: int) -> int:
    """Return a duration as it is added up. One that is negative counts as 0."""
    return min(max(duration_us, 0) // 1000, _LONGEST_MS)


def bucket_of(duration_ms: int) -> int:
    """Return the bucket of a duration."""
    return 1 + int(_PER_OCTAVE * math.log2(duration_ms)) if duration_ms else 0


def percentile_ms(counts: Mapping[int, int], share: float) -> float | None:
    """Return a percentile of the durations in buckets; ``None`` without any.

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
