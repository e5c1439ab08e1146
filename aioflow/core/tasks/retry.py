"""Delays before the next try of a task, poke of a sensor, or delivery of an outbox entry."""

from __future__ import annotations

import math

from aioflow.model.dag import RetryPolicy, SensorSpec
from aioflow.model.timestamps import Timestamp

__all__ = (
    "INTERRUPTION_LIMIT_OWN",
    "INTERRUPTION_LIMIT_SHARED",
    "LATEST",
    "next_try_at",
    "redelivery_delay",
    "sensor_next_poke",
)

INTERRUPTION_LIMIT_OWN = 5
"""Number of interruptions that a task survives if each was the death of its own worker.

Such a worker runs only this task, so the task may be the cause.
"""

INTERRUPTION_LIMIT_SHARED = 25
"""Number of interruptions that a task survives if each was a stop of the daemon.

No task is responsible for these.
"""

_OUTBOX_ATTEMPTS = 12
_OUTBOX_FIRST_SECONDS, _OUTBOX_LONGEST_SECONDS = 5.0, 600.0

TRIGGER_FAIL = "trigger_fail"
"""Failure reason of a trigger that raised ``Fail``. Its task is not retried."""

LATEST: Timestamp = 253_402_214_400_000_000
"""The latest supported timestamp, 9999-12-31T00:00Z. It can be displayed in every time zone."""


def next_try_at(
    policy: RetryPolicy,
    *,
    try_number: int,
    now: Timestamp,
    random: float,
    retry_after_us: int | None = None,
) -> Timestamp | None:
    """Return when to try again, at most ``LATEST``; ``None`` if no tries are left.

    With a delay of 10 s, factor 2 and no jitter the delays are 10, 20, 40, ... seconds, at most
    ``max_delay_us``.

    Args:
        policy: The task's retry policy.
        try_number: The try that just failed, counting from 1.
        now: When it failed.
        random: With jitter, the share in [0, 1) by which half of the delay is reduced. The other
            half is never reduced, so the delay is never close to 0.
        retry_after_us: Delay that the failure requested. The cap and jitter are not applied to it.
            A negative value means immediately.

    Raises:
        ValueError: If ``try_number`` is below 1 or ``random`` is outside [0, 1).
    """
    if try_number < 1:
        raise ValueError(f"try_number counts from 1, got {try_number}")
    if not 0.0 <= random < 1.0:
        raise ValueError(f"random must be in [0, 1), got {random}")
    if try_number >= policy.tries:
        return None
    if retry_after_us is not None:
        return _later(now, retry_after_us)
    delay_us = _grown(policy.delay_us, policy.factor, try_number - 1, policy.max_delay_us)
    return _later(now, delay_us * (1.0 - random / 2) if policy.jitter else delay_us)


def sensor_next_poke(
    spec: SensorSpec,
    *,
    pokes: int,
    now: Timestamp,
    recheck_in_us: int | None,
    deadline: Timestamp | None,
) -> Timestamp:
    """Return when a sensor that was not ready is poked again, at most its deadline.

    Args:
        spec: The sensor. Its poke interval is ``interval_us``, multiplied by ``backoff`` after each
            poke, at most ``max_interval_us``.
        pokes: Number of pokes so far, at least 1.
        now: When it was last poked.
        recheck_in_us: Interval that the sensor requested for this one poke; used without backoff
            and cap.
        deadline: Upper bound of the result, even if it is in the past.

    Raises:
        ValueError: If ``pokes`` is below 1.
    """
    if pokes < 1:
        raise ValueError(f"pokes counts from 1, got {pokes}")
    pause_us: float = (
        _grown(spec.interval_us, spec.backoff, pokes - 1, spec.max_interval_us)
        if recheck_in_us is None
        else recheck_in_us
    )
    poke_at = _later(now, pause_us)
    return poke_at if deadline is None else min(poke_at, deadline)


def redelivery_delay(attempts: int) -> float | None:
    """Return the seconds until an outbox entry is tried again: 5, 10, 20, ..., at most 600.

    After twelve attempts, which take less than an hour, return ``None``: the entry has failed.

    Args:
        attempts: Number of failed attempts before the one that has just failed.
    """
    if attempts + 1 >= _OUTBOX_ATTEMPTS:
        return None
    return min(_OUTBOX_FIRST_SECONDS * 2.0**attempts, _OUTBOX_LONGEST_SECONDS)


def _grown(base_us: int, factor: float, times: int, limit_us: int | None) -> float:
    """Return ``base_us * factor ** times``, at most ``limit_us``."""
    if base_us <= 0:
        return 0.0
    try:
        grown_us = base_us * math.pow(factor, times)
    except OverflowError:
        grown_us = math.inf
    return grown_us if limit_us is None else min(grown_us, limit_us)


def _later(now: Timestamp, delay_us: float) -> Timestamp:
    # Compare before the addition, because an infinite delay cannot be converted to an integer.
    max_us = max(0, LATEST - now)
    return now + (max_us if delay_us >= max_us else max(0, int(delay_us)))
