"""Queries of the web page, composed from parts that share one reader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from aioflow.api.dags import import_errors
from aioflow.api.damage import run_state
from aioflow.api.gantt import gantt
from aioflow.api.graphs import Graphs
from aioflow.api.live_stream import Commits
from aioflow.api.memory_stats import MemoryStats, MemoryStatsCollector
from aioflow.api.nodes import node_view
from aioflow.api.overview import Overview
from aioflow.api.page_schemas import (
    HolderView,
    ImportErrorView,
    NodeView,
    OverviewView,
    PoolView,
    RecentRunView,
    SpannedView,
    StartView,
)
from aioflow.api.progress import Progress
from aioflow.api.queries import RunReader
from aioflow.api.schemas import iso
from aioflow.api.task_detail import TaskReader
from aioflow.api.trigger_stats import Fires
from aioflow.api.triggers import TriggerReader
from aioflow.api.triggers_page import Waiting
from aioflow.api.upcoming import upcoming
from aioflow.clock import Clock
from aioflow.core.state.memory import Memory
from aioflow.core.transaction import Transaction
from aioflow.engine.loop import Engine
from aioflow.errors import DaemonAway
from aioflow.executors.host_load import HostLoad
from aioflow.model.batch import Batch
from aioflow.model.rows import PoolRow
from aioflow.model.timestamps import Timestamp
from aioflow.model.trigger_description import Describe
from aioflow.protocol.requests import OF_RUN, Holder, Request, ShowHolders, ShowPools

__all__ = ("Reads",)

_HOLDERS = 100
_RECENT = 20


class Reads:
    """The queries of the web page.

    Args:
        engine: ``None`` without a daemon.
        send: Sends a request to the engine.
        hosts: Returns the load of the shared hosts.
        watched: Gets descriptions from the hosts of triggers.

    Attributes:
        fires: Events since the daemon started.
        lag_seconds: Returns the recent delay of the event loop; set by the web server.
    """

    def __init__(
        self,
        reader: RunReader,
        clock: Clock,
        engine: Engine | None,
        send: Callable[[Request], Awaitable[object]],
        *,
        hosts: Callable[[], Sequence[HostLoad]],
        watched: Describe,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._engine = engine
        self._send = send
        self._hosts = hosts
        self.lag_seconds: Callable[[], float] = lambda: 0.0
        self.fires = Fires(clock)
        self.commits = Commits(clock)
        self.graphs = Graphs(reader)
        self.progress = Progress(reader, clock)
        self.trigger_reader = TriggerReader(reader, self._memory, watched)
        self.one_task = TaskReader(reader, self.trigger_reader)
        self.waiting = Waiting(
            reader,
            clock,
            self.fires,
            self.trigger_reader,
            memory=self._memory,
            hosts=self._list_hosts,
        )
        self._overview: Overview | None = None
        self._memory_stats: MemoryStatsCollector | None = None
        if engine is not None:
            self._memory_stats = MemoryStatsCollector(clock, engine)
            self._overview = Overview(
                reader,
                clock,
                self.fires,
                engine,
                began_us=clock.monotonic_us(),
                looking=self._memory_stats,
                lag_seconds=self._late_seconds,
            )

    @property
    def commit_no(self) -> int:
        """The number of the last commit.

        Raises:
            DaemonAway: If there is no daemon.
        """
        if self._engine is None:
            raise DaemonAway("")
        return self._engine.memory.commit_no

    def committed(self, batch: Batch, draft: Transaction) -> None:
        """Apply a durable batch."""
        self.commits.committed(batch, draft)
        self._reader.catalogue.committed(batch)
        if self._engine is not None:
            self.fires.committed(draft.fires)

    def _list_hosts(self) -> Sequence[HostLoad]:
        return [host for host in self._hosts() if host.capacity]

    def _late_seconds(self) -> float:
        return self.lag_seconds()

    def _memory(self) -> Memory | None:
        return None if self._engine is None else self._engine.memory

    # ── the node ────────────────────────────────────────────────────────────────────────

    async def overview(self, status: str) -> OverviewView:
        """Return the state of the node.

        Raises:
            DaemonAway: If there is no daemon.
        """
        if self._overview is None:
            raise DaemonAway("")
        return await self._overview.show(status)

    async def collect(self) -> MemoryStats:
        """Return statistics of the node's memory.

        Raises:
            DaemonAway: If there is no daemon.
        """
        if self._memory_stats is None:
            raise DaemonAway("")
        return await self._memory_stats.collect()

    async def nodes(self) -> list[NodeView]:
        """Return the nodes of this database."""
        now, rows = self._clock.now(), await self._reader.store.list_nodes()
        return [node_view(row, self._engine, now) for row in rows]

    async def import_errors(self) -> list[ImportErrorView]:
        """Return the files that cannot be imported now."""
        return import_errors(await self._reader.catalogue.known())

    # ── runs ────────────────────────────────────────────────────────────────────────────

    async def recent(self, dag_ids: Sequence[str]) -> dict[str, list[RecentRunView]]:
        """Return the newest runs of DAGs for bar charts, the newest first."""
        found = await self._reader.store.list_recent_runs(dag_ids, limit=_RECENT)
        return {
            dag_id: [
                RecentRunView(
                    run_id=row.run_id,
                    state=run_state(row),
                    started_at=iso(row.started_at),
                    ended_at=iso(row.ended_at),
                )
                for row in rows
            ]
            for dag_id, rows in found.items()
        }

    async def gantt(self, run_id: str, *, offset: int, limit: int) -> list[SpannedView]:
        """Return how the tasks of a run spent their time."""
        return await gantt(self._reader, run_id, offset=offset, limit=limit)

    async def upcoming(self, *, after: Timestamp, until: Timestamp) -> list[StartView]:
        """Return the next fire times of schedules."""
        return await upcoming(self._reader, after=after, until=until)

    # ── logs ────────────────────────────────────────────────────────────────────────────

    async def prints_on(self, run_id: str, task_id: str, *, map_index: int) -> bool:
        """Return whether a task has not ended and may print more."""
        run = await self._reader.run(run_id)
        if task_id == OF_RUN:
            return run.state.is_live
        place = await self._reader.place(run, task_id, map_index)
        rows = await self._reader.store.find_tasks([place.task_no])
        return rows[0].state.is_live if rows else run.state.is_live

    # ── pools ───────────────────────────────────────────────────────────────────────────

    async def pools(self) -> list[PoolView]:
        """Return the limited pools by name."""
        if self._engine is None:
            return [_pool(row, None, None) for row in await self._reader.store.list_pools()]
        stats = await self.collect()
        found = cast("list[tuple[PoolRow, int]]", await self._send(ShowPools()))
        return [_pool(row, used, stats.queued[row.name]) for row, used in found]

    async def holders(self, name: str) -> list[HolderView]:
        """Return the tasks that occupy a pool, running ones first."""
        answer = await self._send(ShowHolders(name=name, limit=_HOLDERS))
        runs = await self._reader.store.find_runs(
            [holder.run_id for holder in cast("list[Holder]", answer)]
        )
        versions = {run.run_id: run.version for run in runs}
        found = []
        for holder in cast("list[Holder]", answer):
            version = versions.get(holder.run_id)
            if version is not None:
                spec = await self._reader.known_spec(version, holder.dag_id)
                found.append(_holder(holder, spec.tasks[holder.position].task_id))
        return found


def _pool(row: PoolRow, used: int | None, queued: int | None) -> PoolView:
    return PoolView(
        name=row.name,
        slots=row.slots,
        include_deferred=row.include_deferred,
        used=used,
        queued=queued,
    )


def _holder(holder: Holder, task_id: str) -> HolderView:
    return HolderView(
        run_id=holder.run_id,
        task_id=task_id,
        map_index=holder.map_index,
        weight=holder.weight,
        since=iso(holder.since),
        is_waiting=holder.is_waiting,
    )
