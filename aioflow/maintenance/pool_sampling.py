"""Samples of how full the pools are, once a minute.

A sample is a request to the engine like any other change. While no pool is used, there is none, so
a daemon without work writes nothing. Samples older than a day are deleted by the same request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio
from anyio.abc import TaskStatus

from aioflow.api.page.schemas import PoolView
from aioflow.clock import Clock
from aioflow.engine.loop import Engine
from aioflow.errors import AioflowError, StoreUnavailable
from aioflow.model.history import DAY_US, HOUR_US
from aioflow.model.pool_usage import MINUTE_US
from aioflow.protocol.requests import PoolSample, RecordPoolUsage
from aioflow.store import Store
from aioflow.telemetry.log import Logger

__all__ = ("PoolSampling",)

_RETENTION_US = DAY_US + HOUR_US
_EXPIRED_AT_ONCE = 2_000

_log = Logger(__name__)


class PoolSampling:
    """The service that samples the pools.

    Args:
        pools: Returns the pools as they are now.
    """

    def __init__(
        self,
        pools: Callable[[], Awaitable[Sequence[PoolView]]],
        engine: Engine,
        store: Store,
        clock: Clock,
    ) -> None:
        self._pools = pools
        self._engine = engine
        self._store = store
        self._clock = clock

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Sample the pools at every full minute until cancelled."""
        task_status.started()
        while True:
            await self._clock.sleep((MINUTE_US - self._clock.now() % MINUTE_US) / 1e6)
            try:
                await self.sample()
            except StoreUnavailable as exc:
                _log.info("pools were not sampled", error=str(exc))
            except AioflowError as exc:
                _log.error("pools cannot be sampled", error=str(exc))

    async def sample(self) -> None:
        """Store one sample of each pool in use, and delete expired ones.

        Raises:
            StoreUnavailable: If the database does not respond.
        """
        pools = tuple(
            PoolSample(pool.name, pool.slots, pool.used or 0, pool.queued or 0)
            for pool in await self._pools()
            if pool.used or pool.queued
        )
        before = self._clock.now() - _RETENTION_US
        expired = await self._store.list_old_pool_usage(before=before, limit=_EXPIRED_AT_ONCE)
        if pools or expired:
            await self._engine.ask(RecordPoolUsage(pools=pools, expired=tuple(expired)))
