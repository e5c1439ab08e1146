"""Stores how full the pools are, and deletes what is too old to be shown."""

from __future__ import annotations

from aioflow.core.transaction import Transaction
from aioflow.model.pool_usage import PoolUsageRow, minute_of
from aioflow.protocol.requests import POOL_USAGE, RecordPoolUsage

__all__ = ("MOST_POOLS", "record_pool_usage")

MOST_POOLS = 200
"""Maximum number of pools with a sample in one minute, so that the table is bounded."""


def record_pool_usage(request: RecordPoolUsage, tx: Transaction) -> None:
    """Store a sample of each pool that is used or waited for, and delete expired samples.

    Of too many pools those stay without a sample that fewest tasks wait for.
    """
    busy = [one for one in request.pools if one.used or one.queued]
    if len(busy) > MOST_POOLS:
        busy = sorted(busy, key=lambda one: (-one.queued, -one.used, one.pool))[:MOST_POOLS]
    start = minute_of(tx.now)
    tx.batch.pool_usage.extend(
        PoolUsageRow(one.pool, start, one.slots, one.used, one.queued) for one in busy
    )
    if request.expired:
        tx.batch.erased.setdefault(POOL_USAGE, []).extend(request.expired)
