"""Rows and queries of the usage of pools over time."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.pool_usage import PoolUsageKey, PoolUsageRow
from aioflow.model.timestamps import Timestamp
from aioflow.store import rows, tables
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.selects import number, text

__all__ = ("PoolUsageReader", "pool_usage")

_usage = tables.pool_usage


def pool_usage(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the samples of a batch.

    A second sample of a pool in the same minute replaces the first.
    """
    return [tuple(row) for row in batch.pool_usage]


_OF_POOL = (
    select(_usage)
    .where(
        _usage.c.pool == text("pool"),
        _usage.c.start >= number("since"),
        _usage.c.start < number("until"),
    )
    .order_by(_usage.c.start)
)
_OLD = (
    select(_usage.c.pool, _usage.c.start)
    .where(_usage.c.start < number("before"))
    .order_by(_usage.c.start)
    .limit(number("limit"))
)


class PoolUsageReader(QueryInterface):
    """The part of a store that reads the usage of pools."""

    async def list_pool_usage(
        self, pool: str, *, since: Timestamp, until: Timestamp
    ) -> list[PoolUsageRow]:
        """See ``Store``."""
        return await self._all(_row, _OF_POOL, pool=pool, since=since, until=until)

    async def list_old_pool_usage(self, *, before: Timestamp, limit: int) -> list[PoolUsageKey]:
        """See ``Store``."""
        return await self._all(_key, _OLD, before=before, limit=limit)


def _row(values: rows.Values) -> PoolUsageRow:
    return PoolUsageRow(*values)


def _key(values: rows.Values) -> PoolUsageKey:
    pool, start = values
    return pool, start
