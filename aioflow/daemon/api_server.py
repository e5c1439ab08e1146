"""The API server of a node: API and web page, the deletion of expired data, and pool samples.

The node imports this module in a thread after its event loop has started, while the child
processes start. ``aioflow.web`` is imported later, when the triggers of deferred tasks have been
assigned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow._threads import in_thread
from aioflow.api import Api
from aioflow.api.dags import HostedTimetables
from aioflow.api.node_queries import NodeQueries
from aioflow.api.page.pool_usage import MOST_HOURS
from aioflow.api.page.schemas import PoolView
from aioflow.api.schemas import CleanedView
from aioflow.api.task_instances import CopyResult
from aioflow.catalog.parse import Parser
from aioflow.catalog.plugins import warn_of_broken
from aioflow.catalog.snapshot import Snapshots
from aioflow.clock import Clock
from aioflow.core.transaction import Transaction
from aioflow.crypto import Vault
from aioflow.engine.loop import Engine
from aioflow.errors import AioflowError, StoreUnavailable
from aioflow.executors.host_pool import HostPool
from aioflow.maintenance.retention import Cleaning, RetentionDays
from aioflow.model.batch import Batch
from aioflow.model.history import HOUR_US
from aioflow.model.ids import RunNo
from aioflow.model.nodes import ReadNodeStatus, is_alone
from aioflow.model.pool_usage import MINUTE_US
from aioflow.model.timestamps import Timestamp
from aioflow.model.workers import WorkerPages
from aioflow.processes.connection_tests import ConnectionTests
from aioflow.processes.orphans import home_mark
from aioflow.protocol.requests import PoolSample, RecordPoolUsage
from aioflow.settings import Settings
from aioflow.store import Store
from aioflow.telemetry.log import Logger
from aioflow.telemetry.task_log import TaskLog

__all__ = ("ApiServer", "PoolSampling")

_RETENTION_US = (MOST_HOURS + 1) * HOUR_US
_EXPIRED_AT_ONCE = 2_000

_log = Logger(__name__)

_QUESTION_SECONDS = 2.0
"""Time limit of one SQL statement of an API request."""


class ApiServer:
    """The API of a node, and the services behind it.

    Args:
        started_at: Start time of the node.
        cycle: Describes a cycle of runs that wait for each other.
        hosts: The hosts of coroutines and triggers.
        spans: Returns the number of spans created and the number of spans dropped.
        node_status: Returns the role of the node.

    Attributes:
        api: Answers requests from memory and the store. Each commit updates it.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        store: Store,
        vault: Vault,
        *,
        tasklog: TaskLog,
        clock: Clock,
        started_at: Timestamp,
        cycle: Callable[[RunNo, int, int], str],
        snapshots: Snapshots,
        hosts: HostPool,
        worker_pages: WorkerPages,
        spans: Callable[[], tuple[int, int]],
        dags_read: Callable[[], bool],
        dags_known: bool,
        copy_result: CopyResult | None = None,
        node_queries: NodeQueries | None = None,
        node_status: ReadNodeStatus = is_alone,
    ) -> None:
        self._settings = settings
        self._stop = anyio.Event()
        self._over = anyio.Event()
        self._cleaning = Cleaning(
            engine, store, tasklog, clock, _retention_days(settings), snapshots
        )
        self.api = Api(
            engine,
            store.limited(_QUESTION_SECONDS),
            tasklog,
            clock=clock,
            started_at=started_at,
            home=settings.home,
            cycle=cycle,
            vault=vault,
            clean=self._clean,
            hosts=hosts.loads,
            watched=hosts.describe,
            watched_sensors=hosts.describe_sensors,
            worker_pages=worker_pages,
            spans=spans,
            dags_read=dags_read,
            dags_known=dags_known,
            copy_result=copy_result,
            node_queries=node_queries,
            node_status=node_status,
            connection_tests=ConnectionTests(
                allowed=settings.children_env, mark=f"{home_mark(settings.home)}:c0"
            ),
            timetables=HostedTimetables(hosts.triggerers, lambda: engine.memory, hosts.start),
        )
        self._pool_sampling = PoolSampling(self.api.list_pools, engine, store, clock)

    async def _clean(self, dry_run: bool) -> CleanedView:
        found = await (self._cleaning.preview() if dry_run else self._cleaning.clean())
        return CleanedView(**msgspec.structs.asdict(found))

    def committed(self, batch: Batch, tx: Transaction) -> None:
        """Apply a durable batch to the API's data in memory."""
        self.api.committed(batch, tx)

    async def clean_up(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Delete expired data, and sample the pools, until cancelled."""
        async with anyio.create_task_group() as services:
            services.start_soon(self._pool_sampling.run)
            await self._cleaning.run(task_status=task_status)

    async def inspect_plug_ins(self, parser: Parser) -> None:
        """Register the public fields of plug-in triggers. Warn of broken plug-ins."""
        await warn_of_broken(parser, self.api.public_fields.learn)

    async def serve(
        self, at: object | None, *, task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve the API and the page until stopped; see ``web.serve`` for ``at``.

        ``aioflow.web`` is imported in a thread, because its import is the longest part of a start.
        The thread competes with the event loop for the interpreter lock.
        """
        try:
            serve_web = await in_thread(_import_web)
            await serve_web(self.api, self._settings, self._stop, at=at, task_status=task_status)
        finally:
            self._over.set()

    async def stop(self, seconds: float) -> None:
        """Stop serving, within ``seconds``. The engine must still run, to store denied requests."""
        self._stop.set()
        with anyio.move_on_after(seconds):
            await self._over.wait()


def _import_web() -> Callable[..., Coroutine[Any, Any, None]]:
    from aioflow.web import serve

    return serve


def _retention_days(settings: Settings) -> RetentionDays:
    return RetentionDays(
        runs_days=settings.keep_runs_days,
        events_days=settings.keep_events_days,
        journal_days=settings.keep_journal_days,
        logs_days=settings.keep_logs_days,
        versions_days=settings.keep_versions_days,
        audit_days=settings.keep_audit_days,
        hourly_history_days=settings.keep_hourly_history_days,
        history_days=settings.keep_history_days,
    )


class PoolSampling:
    """The service that samples how full the pools are, once a minute.

    A sample is a request to the engine like any other change. While no pool is used, the engine
    commits nothing. The same request deletes expired samples.

    Args:
        pools: Returns the current pools.
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
        )
        before = self._clock.now() - _RETENTION_US
        expired = await self._store.list_old_pool_usage(before=before, limit=_EXPIRED_AT_ONCE)
        await self._engine.ask(RecordPoolUsage(pools=pools, expired=tuple(expired)))
