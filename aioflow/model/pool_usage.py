"""Usage of pools: one sample per minute of each pool that is used or waited for."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from aioflow.model.timestamps import Timestamp

__all__ = ("MINUTE_US", "PoolUsageKey", "PoolUsageRow", "minute_of")

MINUTE_US = 60_000_000

PoolUsageKey: TypeAlias = tuple[str, Timestamp]
"""The pool and the minute of a sample."""


class PoolUsageRow(NamedTuple):
    """A pool in one minute. A pool without a sample had no task in that minute.

    Attributes:
        start: Start of the minute.
        slots: The limit of the pool.
        used: Slots in use; more than ``slots`` after the limit was lowered.
        queued: Tasks that waited for slots.
    """

    pool: str
    start: Timestamp
    slots: int
    used: int
    queued: int


def minute_of(at: Timestamp) -> Timestamp:
    """Return the start of the minute of a time."""
    return at - at % MINUTE_US
