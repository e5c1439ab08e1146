"""Metrics of a node, statistics of its memory, and the readiness that ``/health/ready`` returns.

The memory is read in slices, so that the event loop is not blocked for long.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel
import msgspec

from aioflow._threads import in_thread
from aioflow.api.schemas import HealthView
from aioflow.api.triggers import kind_of
from aioflow.clock import Clock
from aioflow.core.runs.task_counts import fresh_queued
from aioflow.core.scheduling.ready import still_waits
from aioflow.core.state.child_roles import ASYNC, TRIGGERS
from aioflow.core.state.memory import Memory
from aioflow.core.state.outbox_quota import backlog
from aioflow.core.state.task_instance import TaskInstance
from aioflow.engine.loop import Engine
from aioflow.errors import StoreError, StoreUnavailable
from aioflow.executors.host_inspection import HostLoad
from aioflow.filesystem import full_disk
from aioflow.model.nodes import NodeStatus
from aioflow.model.states import RunState, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.outbox import is_callback
from aioflow.store import Store

__all__ = (
    "OLDEST_TASKS",
    "WAITING_STATES",
    "MemoryStats",
    "MemoryStatsCollector",
    "Metrics",
    "NodeMetrics",
    "Sizes",
    "Sizing",
    "health",
    "measured",
    "outbox_counts",
    "standby_health",
)

OLDEST_TASKS = 10
"""Number of entries in ``MemoryStats.oldest``, each for a task of a run."""

_SLICE = 1_000
"""Number of objects processed before yielding to the event loop."""

_CHEAP_US = 2_000
_RESTS = 50
"""The result of a pass longer than ``_CHEAP_US`` is cached for this multiple of its duration, so
that all passes together take 2 % of the event loop's time.
"""

_SINCE: dict[TaskState, Callable[[TaskInstance], Timestamp | None]] = {
    TaskState.QUEUED: lambda task: task.queued_at,
    TaskState.SENSING: lambda task: task.started_at,
}
"""Functions that return when a task's wait began, by state of the task. In these states, a task
waits without a trigger."""

WAITING_STATES = frozenset(_SINCE)
"""States of the tasks listed in ``MemoryStats.oldest``."""

Of = TypeVar("Of")


class MemoryStats:
    """The result of one pass over memory.

    Attributes:
        states: Number of live tasks by state.
        queued: Number of tasks that wait for a slot, by pool.
        deferred: Number of waiting triggers, by kind.
        oldest: The longest waits of queued tasks and polling sensors, at most one for each task of
            a run. An entry consists of the start of the wait, the row number and the task.
    """

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()
        self.queued: Counter[str] = Counter()
        self.deferred: Counter[str] = Counter()
        self.oldest: list[tuple[Timestamp, int, TaskInstance]] = []


class MemoryStatsCollector:
    """Collects statistics of a node's memory. Concurrent callers share one pass."""

    def __init__(self, clock: Clock, engine: Engine) -> None:
        self._clock = clock
        self._engine = engine
        self._lock = anyio.Lock()
        self._known = MemoryStats()
        self._good_until_us = -1

    async def collect(self) -> MemoryStats:
        """Return current statistics, or slightly older ones if collecting takes long."""
        async with self._lock:
            if self._clock.monotonic_us() > self._good_until_us:
                took_us = await self._collect()
                rests_us = _RESTS * took_us if took_us > _CHEAP_US else -1
                self._good_until_us = self._clock.monotonic_us() + rests_us
            return self._known

    async def _collect(self) -> int:
        """Collect the statistics. Return the time spent on this, in µs.

        Pauses in which other code ran do not count.
        """
        found, took_us = MemoryStats(), 0
        began = self._clock.monotonic_us()
        for _ in self._pass(found):
            took_us += self._clock.monotonic_us() - began
            await anyio.lowlevel.checkpoint()
            began = self._clock.monotonic_us()
        self._known = found
        return took_us

    def _pass(self, found: MemoryStats) -> Iterator[None]:
        """Count the objects in memory. Packed ones are not visited: their counts are known."""
        memory = self._engine.memory
        lives = list(memory.active_tasks.objects.values())
        folded = len(memory.active_tasks) - len(lives)
        if folded > 0:
            found.states[TaskState.DEFERRED.label] += folded
        for shape, count in memory.packing.count_shapes():
            found.deferred[kind_of(shape.class_path)] += count
        for some in _slices(lives):
            _count_tasks(some, found)
            yield
        for waits in _slices(list(memory.waits.objects.values())):
            found.deferred.update(
                kind_of(wait.row.class_path) for wait in waits if wait.state is TriggerState.WAITING
            )
            yield
        for runs in _slices(list(memory.runs.objects.values())):
            for group in (group for run in runs for group in run.groups.values()):
                if fresh := fresh_queued(group):
                    found.queued[group.spec.pool] += fresh
                    found.states[TaskState.QUEUED.label] += fresh
            yield


def _count_tasks(lives: Sequence[TaskInstance], found: MemoryStats) -> None:
    waiting: list[tuple[Timestamp, int, TaskInstance]] = []
    for state, count in Counter(task.state for task in lives).items():
        found.states[state.label] += count
    for task in lives:
        if still_waits(task):
            found.queued[task.spec.pool] += 1
        since = _SINCE[task.state](task) if task.state in _SINCE else None
        if since is not None:
            waiting.append((since, task.task_no, task))
    first: dict[tuple[int, int, TaskState], tuple[Timestamp, int, TaskInstance]] = {}
    for one in sorted([*found.oldest, *waiting], key=lambda one: one[:2]):
        task = one[2]
        first.setdefault((task.run.run_no, task.task_index, task.state), one)
    found.oldest = list(islice(first.values(), OLDEST_TASKS))


def _slices(all_of: list[Of]) -> Iterator[list[Of]]:
    for first in range(0, len(all_of), _SLICE):
        yield all_of[first : first + _SLICE]


_SIZE_POLL_US = 15_000_000
_SIZE_POLL_SECONDS = 2.0


class Sizes(msgspec.Struct, frozen=True):
    """Sizes of the stored data, slightly delayed."""

    database_bytes: int
    journal_rows: int


class Sizing:
    """Measures the size of the database, at most four times a minute."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known = Sizes(0, 0)
        self._next_us = 0

    async def sizes(self) -> Sizes:
        """Return the current sizes, or the last known ones if the database is unavailable."""
        now = self._clock.monotonic_us()
        if now >= self._next_us:
            self._next_us = now + _SIZE_POLL_US
            with anyio.move_on_after(_SIZE_POLL_SECONDS), contextlib.suppress(StoreUnavailable):
                first, last = await self._store.oldest_commit(), await self._store.newest_commit()
                rows = 0 if first is None or last is None else last - first + 1
                self._known = Sizes(await self._store.size_bytes(), max(rows, 0))
        return self._known


class NodeMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics that a node has in every role.

    Attributes:
        status: Its role, and the state of the active node.
        follower_lag_seconds: The time since the node last knew of all commits; 0 for the active
            node.
        hosts: Load of each shared host.
    """

    status: NodeStatus
    follower_lag_seconds: float
    hosts: list[HostLoad]
    uptime_seconds: float


class Metrics(msgspec.Struct, kw_only=True):
    """Current metrics of the active node.

    Attributes:
        deferred: Waiting triggers by kind. If there are very many tasks, this number is slightly
            delayed, and so is the number of tasks that wait for slots.
        owed: Callbacks and alerts in the outbox.
        stalls: How often user code blocked an event loop, by ``trigger`` and ``task``.
        schedules_late: Alerts sent because a schedule's run was not created in time.
        changes: Total number of committed row changes; divided by ``commits``, the mean batch size.
        steps: Number of transitions to each task state.
        runs_ended: Runs that ended, by state.
        fenced, refused: Rejected batches; see ``engine.metrics.Measures``.
        fires: Events accepted from triggers, by kind.
        evicted: Suspended coroutines evicted for lack of memory.
        logs_bytes: Bytes printed by tries.
        spans: Trace spans, by ``made`` and ``dropped``.
    """

    turns: int
    commits: int
    changes: int
    commit_seconds: float
    steps: dict[str, int]
    runs_ended: dict[str, int]
    runs_made: int
    fenced: int
    refused: int
    fires: dict[str, int]
    evicted: int
    logs_bytes: int
    spans: dict[str, int]
    waiting_inputs: int
    slots: int
    slots_used: int
    coroutine_slots: int
    coroutine_slots_used: int
    tasks_waiting_for_slots: int
    tasks_sensing: int
    live_runs: int
    live_tasks: int
    deferred: dict[str, int]
    stalls: dict[str, int]
    quarantined_classes: int
    owed: dict[str, int]
    callbacks_failed: int
    schedules_late: int
    lease_age_seconds: float
    is_store_away: bool


def measured(
    engine: Engine,
    hosts: Sequence[HostLoad],
    stats: MemoryStats,
    fires: Mapping[str, int],
    *,
    logs_bytes: int,
    spans: tuple[int, int],
) -> Metrics:
    """Return the current metrics of the active node.

    Args:
        stats: Statistics of the memory.
        fires: Events accepted from triggers, by kind.
    """
    memory, slots, done = engine.memory, engine.slots, engine.measures
    return Metrics(
        turns=engine.turns,
        commits=done.commits.count,
        changes=round(done.rows.total),
        commit_seconds=memory.commit_us / 1e6,
        steps={state.label: done.steps[state] for state in TaskState},
        runs_ended={state.label: done.run_steps[state] for state in RunState if not state.is_live},
        runs_made=done.runs_made,
        fenced=done.fenced,
        refused=done.refused,
        fires=dict(fires),
        evicted=sum(host.evicted for host in hosts),
        logs_bytes=logs_bytes,
        spans={"made": spans[0], "dropped": spans[1]},
        waiting_inputs=engine.waiting_inputs,
        slots=len(slots.workers),
        slots_used=sum(not worker.is_idle for worker in slots.workers),
        coroutine_slots=slots.coroutines,
        coroutine_slots_used=slots.running_coroutines,
        tasks_waiting_for_slots=stats.queued.total(),
        tasks_sensing=stats.states[TaskState.SENSING.label],
        live_runs=len(memory.runs),
        live_tasks=len(memory.active_tasks),
        deferred=dict(stats.deferred),
        stalls=memory.loop_blockers.counts(),
        quarantined_classes=sum(known.is_quarantined for known in memory.loop_blockers.all()),
        owed=outbox_counts(memory),
        callbacks_failed=memory.callbacks_failed,
        schedules_late=memory.schedules_late,
        lease_age_seconds=engine.lease_age_us / 1e6,
        is_store_away=engine.store_away_since is not None,
    )


def outbox_counts(memory: Memory) -> dict[str, int]:
    """Return the number of callbacks and alerts in the outbox."""
    found = {"alerts": 0, "callbacks": 0}
    for kind, count in backlog(memory.outbox_quotas).items():
        found["callbacks" if is_callback(kind) else "alerts"] += count
    return found


_REQUIRED_HOSTS = frozenset({ASYNC, TRIGGERS})

_STUCK_LOOP_US = 10_000_000
"""If inputs wait longer than this, the engine loop is considered stuck."""


async def health(
    engine: Engine, store: Store, home: Path | None, clock: Clock, *, is_read: bool
) -> HealthView:
    """Return whether the database, the disk, the engine and the hosts work.

    A stopping daemon is not ready, although it answers requests until it ends.

    Args:
        is_read: Whether the DAG files that existed when the daemon was started have been read.
        home: The folder to which results are written; ``None`` if no results are written.
    """
    age_us = clock.monotonic_us() - engine.turned_at
    is_away = engine.store_away_since is not None
    full = "" if home is None else await in_thread(full_disk, home)
    checks = {
        "database": not is_away and await _is_database_whole(store),
        "disk": not full and not engine.slots.count_unwritten(engine.memory),
        "engine": engine.turns > 0 and not (engine.waiting_inputs and age_us > _STUCK_LOOP_US),
        "hosts": engine.memory.hosts_up >= _REQUIRED_HOSTS,
        "open": engine.slots.is_open,
        "dags": is_read,
        "lease": not engine.is_cut_off,
    }
    status = "ready" if all(checks.values()) else "not_ready"
    reason = engine.store_error if is_away else full
    return HealthView(
        status=status, checks=checks, reason=reason, owed=outbox_counts(engine.memory)
    )


def standby_health(*, has_joined: bool, is_active_alive: bool, is_current: bool) -> HealthView:
    """Return whether a standby follows the active node and can forward requests to it."""
    checks = {"joined": has_joined, "active": is_active_alive, "current": is_current}
    status = "ready" if all(checks.values()) else "not_ready"
    return HealthView(status=status, checks=checks, reason="", owed={})


async def _is_database_whole(store: Store) -> bool:
    try:
        await store.list_runs(limit=1)
    except StoreError:
        return False
    return not store.is_damaged
