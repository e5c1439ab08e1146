"""When does a failed try run again, a sensor look again, and a callback be made again?"""

from __future__ import annotations

import math

from aioflow.model.dag import RetryPolicy, SensorSpec
from aioflow.model.timestamps import Timestamp

__all__ = (
    "INTERRUPTION_LIMIT_OWN",
    "INTERRUPTION_LIMIT_SHARED",
    "LATEST",
    "next_try_at",
    "owed_again_after",
    "sensor_next_look",
)

INTERRUPTION_LIMIT_OWN = 5
"""Interruptions a task survives when they were the death of a worker that ran it alone."""

INTERRUPTION_LIMIT_SHARED = 25
"""The same for stops of the daemon, which are no task's doing."""

_OWED_ATTEMPTS = 12
_OWED_FIRST_SECONDS, _OWED_LONGEST_SECONDS = 5.0, 600.0

TRIGGER_FAIL = "trigger_fail"
"""The reason where ``run`` of a trigger raised ``Fail``: its task is not tried again."""

LATEST: Timestamp = 253_402_214_400_000_000
"""9999-12-31T00:00Z: as late as an instant may be, so that every zone can still show it."""


def next_try_at(
    policy: RetryPolicy,
    *,
    try_number: int,
    now: Timestamp,
    random: float,
    retry_after_us: int | None = None,
) -> Timestamp | None:
    """Return when to try again, or ``None`` if no tries are left.

    With a delay of 10 s, factor 2 and no jitter the delays are 10, 20, 40, ... seconds, never
    more than ``max_delay_us``. Never later than ``LATEST``.

    Args:
        policy: The task's retry policy.
        try_number: The try that just failed, counting from 1.
        now: When it failed.
        random: Where the policy says jitter, the share to give up of half the delay, in [0, 1).
            The other half is always waited for: a delay of nearly nothing would be none.
        retry_after_us: The delay the failure asked for. Taken as it is, without cap and jitter;
            one in the past means at once.

    Raises:
        ValueError: If ``try_number`` is below 1 or ``chance`` is outside [0, 1).
    """
    if try_number < 1:
        raise ValueError(f"try_number counts from 1, got {try_number}")
    if not 0.0 <= random < 1.0:
        raise ValueError(f"chance must be in [0, 1), got {random}")
    if try_number >= policy.tries:
        return None
    if retry_after_us is not None:
        return _later(now, retry_after_us)
    delay_us = _grown(policy.delay_us, policy.factor, try_number - 1, policy.max_delay_us)
    return _later(now, delay_us * (1.0 - random / 2) if policy.jitter else delay_us)


def sensor_next_look(
    spec: SensorSpec,
    *,
    looks: int,
    now: Timestamp,
    recheck_in_us: int | None,
    deadline: Timestamp | None,
) -> Timestamp:
    """Return when a sensor that found nothing looks again, or has its deadline.

    Args:
        spec: The sensor's rhythm: ``interval_us``, times ``backoff`` after each look, at most
            ``max_interval_us``.
        looks: How often it has looked, counting from 1.
        now: When it last looked.
        recheck_in_us: What it asked for itself, for this once; neither grown nor capped.
        deadline: Never later than this, even if that is past.

    Raises:
        ValueError: If ``looks`` is below 1.
    """
    if looks < 1:
        raise ValueError(f"looks counts from 1, got {looks}")
    pause_us: float = (
        _grown(spec.interval_us, spec.backoff, looks - 1, spec.max_interval_us)
        if recheck_in_us is None
        else recheck_in_us
    )
    look_at = _later(now, pause_us)
    return look_at if deadline is None else min(look_at, deadline)


def owed_again_after(attempts: int) -> float | None:
    """Return in how many seconds what is owed is tried again: 5, 10, 20 ..., 600 at most.

    After twelve attempts, which is within an hour, it is ``None``: it has come to nothing.

    Args:
        attempts: Those that have failed before the one that just did.
    """
    if attempts + 1 >= _OWED_ATTEMPTS:
        return None
    return min(_OWED_FIRST_SECONDS * 2.0**attempts, _OWED_LONGEST_SECONDS)


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
    # Compared before it is added: an infinite delay has no integer.
    room_us = max(0, LATEST - now)
    return now + (room_us if delay_us >= room_us else max(0, int(delay_us)))
