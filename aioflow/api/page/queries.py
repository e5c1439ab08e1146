"""Queries of the web page, composed from parts that share one reader.

This module itself has the overview, the nodes, the pools and the next fire times of all schedules.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from typing import Protocol, TypeVar, cast

from aioflow._threads import in_thread
from aioflow.api.assets import Assets
from aioflow.api.children import Children
from aioflow.api.dags import import_errors
from aioflow.api.live_stream import Commits, commits_by_node
from aioflow.api.metrics import MemoryStats, MemoryStatsCollector
from aioflow.api.page.gantt import gantt
from aioflow.api.page.graphs import Graphs, RunStateCounts
from aioflow.api.page.schemas import (
    HolderView,
    ImportErrorView,
    NodeView,
    OverviewView,
    PoolView,
    RecentRunView,
    SlotView,
    SpannedView,
    StartView,
    WaitersView,
    WaiterView,
)
from aioflow.api.page.task_detail import TaskReader
from aioflow.api.page.triggers import TriggerStats, WaitingTriggers
from aioflow.api.page.usual import UsualTimes
from aioflow.api.paging import Page
from aioflow.api.queries import RunReader
from aioflow.api.schedule_texts import schedule_text
from aioflow.api.schemas import iso, run_state_name
from aioflow.api.triggers import TriggerReader
from aioflow.api.waits.longest import LongestWaits, newest_failures
from aioflow.clock import Clock
from aioflow.core.scheduling import timetable
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.memory import Memory
from aioflow.core.transaction import Transaction
from aioflow.engine.loop import Engine
from aioflow.engine.role import active_role
from aioflow.errors import DaemonAway, UnknownNode
from aioflow.executors.host_inspection import HostLoad
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec
from aioflow.model.history import DAY_US
from aioflow.model.nodes import NodeRole, NodeStatus, ReadNodeStatus, is_alone
from aioflow.model.rows import NodeRow, PoolRow
from aioflow.model.states import NodeState
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import DescribeTriggers
from aioflow.protocol.requests import (
    OF_RUN,
    Holder,
    Request,
    ShowHolders,
    ShowPools,
    ShowWaiters,
    Waiter,
)

__all__ = (
    "UPCOMING_FIRE_TIMES",
    "Overview",
    "Reads",
    "merged_fire_times",
    "next_fire_time",
    "node_view",
    "upcoming_fire_times",
)

Part = TypeVar("Part")
InPool = TypeVar("InPool", Holder, Waiter)

_OVERVIEW_RUNS = 10
_FAILURES = 100
"""Number of the newest runs, per state, that are searched for the last failures."""


class Overview:
    """Summarizes the state of a node.

    Args:
        engine: The engine of this node.
        looking: Collects statistics of the node's memory.
        lag_seconds: Returns the recent delay of the node's event loop.
        usual: The median waiting times of tasks.
    """

    def __init__(
        self,
        reader: RunReader,
        clock: Clock,
        fires: TriggerStats,
        engine: Engine,
        *,
        began_us: int,
        looking: MemoryStatsCollector,
        lag_seconds: Callable[[], float],
        usual: UsualTimes,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._fires = fires
        self._engine = engine
        self._began_us = began_us
        self._memory_stats = looking
        self._lag_seconds = lag_seconds
        self._longest_waits = LongestWaits(reader, clock, usual)

    async def show(self, status: str) -> OverviewView:
        """Return the overview."""
        engine, slots, store = self._engine, self._engine.slots, self._reader.store
        stats = await self._memory_stats.collect()
        failed = await newest_failures(store, per_state=_FAILURES)
        shown = await self._reader.summaries(failed)
        known = await self._reader.catalogue.known()
        used = sum(not worker.is_idle for worker in slots.workers)
        return OverviewView(
            status=status,
            version=version("aioflow-engine"),
            uptime_seconds=(self._clock.monotonic_us() - self._began_us) / 1e6,
            is_store_away=engine.store_away_since is not None,
            live_runs=len(engine.memory.runs),
            states=dict(sorted(stats.states.items())),
            slots={
                "def": SlotView(all=len(slots.workers), used=used),
                "async": SlotView(all=slots.coroutines, used=slots.running_coroutines),
            },
            deferred=dict(sorted(stats.deferred.items())),
            failed_24h=await store.count_failed_since(self._clock.now() - DAY_US),
            import_errors=len(import_errors(known)),
            decisions=await store.count_open_decisions(),
            loop_lag_seconds=self._lag_seconds(),
            fires_per_second=round(sum(self._fires.per_second().values()), 3),
            waiting_longest=await self._longest_waits.find(stats, engine.memory.shift),
            damaged=(await self._reader.damaged())[:_OVERVIEW_RUNS],
            failed_runs=shown[:_OVERVIEW_RUNS],
        )


UPCOMING_FIRE_TIMES = 500
"""Maximum number of fire times in a response."""

_FIRE_TIMES_PER_DAG = 100
"""Limit per DAG, so that a DAG that fires every second does not crowd out the others."""


async def upcoming_fire_times(
    reader: RunReader, *, after: Timestamp, until: Timestamp
) -> list[StartView]:
    """Return the next fire times of DAGs that are not paused, the earliest first.

    For a custom timetable, only the fire time that it is waiting for is included.
    """
    known = await reader.catalogue.known()
    own = {} if reader.timetables is None else reader.timetables.expected()
    begins = {
        row.dag_id: at
        for row in known.dags.values()
        if not row.paused
        and not row.gone
        and (at := own.get(row.dag_id, row.next_run_at)) is not None
    }
    first = [(max(at, after), dag_id) for dag_id, at in begins.items()]
    soon = heapq.nsmallest(UPCOMING_FIRE_TIMES, (one for one in first if one[0] <= until))
    chosen = [known.dags[dag_id] for _, dag_id in soon]
    specs = {row.dag_id: await reader.known_spec(row.version, row.dag_id) for row in chosen}
    found = await in_thread(merged_fire_times, begins, specs, after, until)
    texts = {dag_id: schedule_text(spec) for dag_id, spec in specs.items()}
    return [
        StartView(
            dag_id=dag_id,
            at=iso(at) or "",
            schedule=texts[dag_id],
            timezone=specs[dag_id].timezone,
        )
        for at, dag_id in found
    ]


def merged_fire_times(
    begins: Mapping[str, Timestamp],
    specs: Mapping[str, DagSpec],
    after: Timestamp,
    until: Timestamp,
) -> list[tuple[Timestamp, str]]:
    """Return the fire times of several DAGs in a period, the earliest first; at most 500.

    Args:
        begins: The time from which the fire times of each DAG are computed.
    """
    queue: list[tuple[Timestamp, str]] = []
    for dag_id, spec in specs.items():
        at: Timestamp | None = begins[dag_id]
        if at is not None and at < after:
            at = next_fire_time(spec, after - 1)
        if at is not None and at <= until:
            queue.append((at, dag_id))
    heapq.heapify(queue)
    found: list[tuple[Timestamp, str]] = []
    counts: dict[str, int] = {}
    while queue and len(found) < UPCOMING_FIRE_TIMES:
        at, dag_id = heapq.heappop(queue)
        found.append((at, dag_id))
        counts[dag_id] = counts.get(dag_id, 0) + 1
        later = next_fire_time(specs[dag_id], at) if counts[dag_id] < _FIRE_TIMES_PER_DAG else None
        if later is not None and later <= until:
            heapq.heappush(queue, (later, dag_id))
    return found


def next_fire_time(spec: DagSpec, after: Timestamp) -> Timestamp | None:
    """Return the next fire time after a timestamp; ``None`` if it is unknown or there is none."""
    schedule = spec.schedule
    if schedule is None or schedule.once or schedule.gap_us is not None:
        return None
    at = timetable.next_fire_time(schedule, spec.timezone, after=after)
    return None if at is None or (spec.end_date is not None and at > spec.end_date) else at


def node_view(
    row: NodeRow, engine: Engine | None, now: Timestamp, status: NodeStatus | None = None
) -> NodeView:
    """Return the JSON form of a node.

    Args:
        engine: The engine of the responding node; ``None`` without a daemon.
        status: The status of the responding node; ``None`` without a daemon.
    """
    memory = None if engine is None else engine.memory
    is_here = memory is not None and (row.node_no, row.epoch) == (memory.node_no, memory.epoch)
    runs = slots = triggers = None
    if engine is not None and is_here:
        runs = len(engine.memory.runs)
        slots = len(engine.slots.workers) + engine.slots.coroutines
        triggers = len(engine.memory.waits)
    seen_at = now if is_here else row.seen_at
    silent = None if seen_at is None else max(now - seen_at, 0) / 1e6
    return NodeView(
        node=row.node_no,
        name=row.name or row.host,
        epoch=row.epoch,
        state=str(active_role(engine)) if engine and is_here else _node_state(row, silent, status),
        started_at=iso(row.started_at),
        seen_at=iso(seen_at),
        version=row.version,
        pid=row.pid,
        host=row.host,
        silent_seconds=silent,
        runs=runs,
        slots=slots,
        triggers=triggers,
        is_here=is_here,
    )


_AWAY_SECONDS = 10.0
"""A node that has been silent for longer is shown as away. This has no other effect."""


_JOINING_SECONDS = 60.0
"""The same limit for a node that has not sent its first heartbeat."""


def _node_state(row: NodeRow, silent: float | None, status: NodeStatus | None) -> str:
    if status is not None and status.term == row.epoch and status.role is NodeRole.JOINING:
        return str(NodeRole.JOINING)
    if row.state not in {NodeState.ACTIVE, NodeState.STANDBY}:
        return row.state.label
    is_joining = row.state is NodeState.STANDBY and _has_not_been_seen(row)
    if silent is None or silent > (_JOINING_SECONDS if is_joining else _AWAY_SECONDS):
        return "away"
    if row.is_drained:
        return "draining" if row.state is NodeState.ACTIVE else "drained"
    return "joining" if is_joining else row.state.label


def _has_not_been_seen(row: NodeRow) -> bool:
    """Return whether a standby has not sent a heartbeat since it joined."""
    return row.started_at is not None and (row.seen_at is None or row.seen_at <= row.started_at)


def _is_forgotten(row: NodeRow) -> bool:
    return row.state is NodeState.LEFT and row.name is None and row.host is None


_HOLDERS = 100
_RECENT_RUNS = 20


class FollowedJournal(Protocol):
    """The part of ``api.journal_follower.JournalFollower`` that this module uses."""

    commit_no: int
    seq: int
    position: dict[int, int]


class Reads:
    """The queries of the web page.

    Args:
        engine: ``None`` without a daemon.
        send: Sends a request to the engine.
        hosts: Returns the load of the shared hosts.
        watched: Fetches descriptions of triggers from their hosts.

    Attributes:
        fires: Events since the daemon was started.
        follower: Follows the commits of the active node; ``None`` unless this node is a standby.
        lag_seconds: Returns the recent delay of the event loop; set by the web server.
        node_status: Returns the role of this node.
    """

    def __init__(
        self,
        reader: RunReader,
        clock: Clock,
        engine: Engine | None,
        send: Callable[[Request], Awaitable[object]],
        *,
        hosts: Callable[[], Sequence[HostLoad]],
        watched: DescribeTriggers,
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._engine = engine
        self._send = send
        self._hosts = hosts
        self.node_status: ReadNodeStatus = is_alone
        self.lag_seconds: Callable[[], float] = lambda: 0.0
        self.follower: FollowedJournal | None = None
        self.fires = TriggerStats(clock)
        self.commits = Commits(clock)
        self.graphs = Graphs(reader)
        self.usual = UsualTimes(reader, clock)
        self.progress = RunStateCounts(reader, clock, self.usual)
        self.children = Children(reader, clock)
        self.trigger_reader = TriggerReader(reader, self._memory, watched)
        self.one_task = TaskReader(reader, self.trigger_reader)
        self.waiting = WaitingTriggers(
            reader,
            clock,
            self.fires,
            self.trigger_reader,
            memory=self._memory,
            hosts=self._list_hosts,
        )
        self.assets = Assets(reader, lambda: _of_daemon(engine).memory)
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
                usual=self.usual,
            )

    @property
    def commit_no(self) -> int:
        """The number of the last commit.

        Raises:
            DaemonAway: If there is no daemon.
        """
        if self.follower is not None:
            return self.follower.commit_no
        return _of_daemon(self._engine).memory.commit_no

    @property
    def stream_order(self) -> int:
        """The order of the last commit in the live stream; see ``News.order``.

        Raises:
            DaemonAway: If there is no daemon.
        """
        return self.commit_no if self.follower is None else self.follower.seq

    @property
    def position(self) -> dict[int, int]:
        """The last commit of each node, as in the message ids of the live stream.

        Raises:
            DaemonAway: If there is no daemon.
        """
        if self.follower is not None:
            return self.follower.position
        return commits_by_node(_of_daemon(self._engine).memory)

    @property
    def slots(self) -> Slots:
        """The slots of this node.

        Raises:
            DaemonAway: If there is no daemon.
        """
        return _of_daemon(self._engine).slots

    def committed(self, batch: Batch, draft: Transaction) -> None:
        """Update the live stream, the DAG cache and the counts of events with a durable batch."""
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
        return await _of_daemon(self._overview).show(status)

    async def collect(self) -> MemoryStats:
        """Return statistics of the node's memory.

        Raises:
            DaemonAway: If there is no daemon.
        """
        return await _of_daemon(self._memory_stats).collect()

    async def nodes(self) -> list[NodeView]:
        """Return the nodes of this database."""
        now, rows = self._clock.now(), await self._reader.store.list_nodes()
        status = self.node_status() if self._engine or self.follower else None
        return [node_view(row, self._engine, now, status) for row in rows if not _is_forgotten(row)]

    async def node(self, node_no: int) -> NodeView:
        """Return one node.

        Raises:
            UnknownNode: If there is none with this number.
        """
        for view in await self.nodes():
            if view.node == node_no:
                return view
        raise UnknownNode(node_no)

    async def import_errors(self) -> list[ImportErrorView]:
        """Return the files that currently cannot be imported."""
        return import_errors(await self._reader.catalogue.known())

    # ── runs ────────────────────────────────────────────────────────────────────────────

    async def recent(self, dag_ids: Sequence[str]) -> dict[str, list[RecentRunView]]:
        """Return the newest runs of each of some DAGs for bar charts, the newest first."""
        found = await self._reader.store.list_recent_runs(dag_ids, limit=_RECENT_RUNS)
        waiting = self._reader.waiting_runs(chain.from_iterable(found.values()))
        return {
            dag_id: [
                RecentRunView(
                    run_id=row.run_id,
                    state=run_state_name(row),
                    is_waiting=row.run_no in waiting,
                    started_at=iso(row.started_at),
                    ended_at=iso(row.ended_at),
                )
                for row in rows
            ]
            for dag_id, rows in found.items()
        }

    async def gantt(
        self, run_id: str, *, offset: int, limit: int, cursor: str | None = None
    ) -> Page[SpannedView]:
        """Return the time spans of a run's tasks; see ``gantt``."""
        return await gantt(self._reader, run_id, offset=offset, limit=limit, cursor=cursor)

    async def upcoming(self, *, after: Timestamp, until: Timestamp) -> list[StartView]:
        """Return the next fire times of schedules."""
        return await upcoming_fire_times(self._reader, after=after, until=until)

    # ── logs ────────────────────────────────────────────────────────────────────────────

    async def prints_on(self, run_id: str, task_id: str, *, map_index: int) -> bool:
        """Return whether a task has not ended and may print more."""
        run = await self._reader.run(run_id)
        if task_id == OF_RUN:
            return run.state.is_live
        location = await self._reader.locate(run, task_id, map_index)
        rows = await self._reader.store.find_tasks([location.task_no])
        return rows[0].state.is_live if rows else run.state.is_live

    # ── pools ───────────────────────────────────────────────────────────────────────────

    async def pools(self) -> list[PoolView]:
        """Return the limited pools by name."""
        if self._engine is None:
            return [_pool_view(row, None, None) for row in await self._reader.store.list_pools()]
        stats = await self.collect()
        found = cast("list[tuple[PoolRow, int]]", await self._send(ShowPools()))
        return [_pool_view(row, used, stats.queued[row.name]) for row, used in found]

    async def holders(self, name: str) -> list[HolderView]:
        """Return the tasks that occupy slots of a pool, running ones first."""
        answer = cast("list[Holder]", await self._send(ShowHolders(name=name, limit=_HOLDERS)))
        return [_holder_view(holder, task_id) for holder, task_id in await self._named(answer)]

    async def waiters(self, name: str) -> WaitersView:
        """Return the tasks that wait for slots of a pool, the next one first."""
        answer = cast("list[Waiter]", await self._send(ShowWaiters(name=name, limit=_HOLDERS)))
        named = await self._named(answer)
        return WaitersView(items=[_waiter_view(waiter, task_id) for waiter, task_id in named])

    async def _named(self, tasks: Sequence[InPool]) -> list[tuple[InPool, str]]:
        """Return tasks with their task ids. Tasks of runs deleted meanwhile are left out."""
        runs = await self._reader.store.find_runs([task.run_id for task in tasks])
        versions = {run.run_id: run.version for run in runs}
        found = []
        for task in tasks:
            version = versions.get(task.run_id)
            if version is not None:
                spec = await self._reader.known_spec(version, task.dag_id)
                found.append((task, spec.tasks[task.task_index].task_id))
        return found


def _of_daemon(part: Part | None) -> Part:
    """Return a part that exists only in a daemon.

    Raises:
        DaemonAway: If there is no daemon.
    """
    if part is None:
        raise DaemonAway("")
    return part


def _waiter_view(waiter: Waiter, task_id: str) -> WaiterView:
    return WaiterView(
        run_id=waiter.run_id,
        task_id=task_id,
        map_index=waiter.map_index,
        children=waiter.children,
        weight=waiter.weight,
        priority=waiter.priority,
        since=iso(waiter.since),
    )


def _pool_view(row: PoolRow, used: int | None, queued: int | None) -> PoolView:
    return PoolView(
        name=row.name,
        slots=row.slots,
        include_deferred=row.include_deferred,
        used=used,
        queued=queued,
    )


def _holder_view(holder: Holder, task_id: str) -> HolderView:
    return HolderView(
        run_id=holder.run_id,
        task_id=task_id,
        map_index=holder.map_index,
        weight=holder.weight,
        since=iso(holder.since),
        is_waiting=holder.is_waiting,
    )
