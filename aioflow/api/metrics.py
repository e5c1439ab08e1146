"""Metrics of a node."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import anyio
import msgspec

from aioflow.api.memory_stats import MemoryStats
from aioflow.clock import Clock
from aioflow.core.state.memory import Memory
from aioflow.core.state.outbox_quota import backlog
from aioflow.engine.loop import Engine
from aioflow.errors import StoreUnavailable
from aioflow.executors.host_load import HostLoad
from aioflow.model.states import RunState, TaskState
from aioflow.protocol.outbox import is_callback
from aioflow.store import Store

__all__ = ("Metrics", "Sizes", "Sizing", "measured", "outbox_counts")


_POLL_US = 15_000_000
_POLL_SECONDS = 2.0


class Sizes(msgspec.Struct, frozen=True):
    """Size of the stored data, slightly delayed."""

    database_bytes: int
    journal_rows: int


class Sizing:
    """Measures the size of the database, at most four times a minute."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known = Sizes(0, 0)
        self._next_us = 0

    async def sizes(self, commit_no: int) -> Sizes:
        """Return the current sizes, or the last known ones if the database is away.

        Args:
            commit_no: Number of the journal's last row; rows are numbered without gaps.
        """
        now = self._clock.monotonic_us()
        if now >= self._next_us:
            self._next_us = now + _POLL_US
            with anyio.move_on_after(_POLL_SECONDS), contextlib.suppress(StoreUnavailable):
                oldest = await self._store.read_journal(limit=1)
                rows = commit_no - oldest[0].commit_no + 1 if oldest else 0
                self._known = Sizes(await self._store.size_bytes(), max(rows, 0))
        return self._known


class Metrics(msgspec.Struct, kw_only=True):
    """Current metrics of a node.

    Attributes:
        parked: Waiting triggers by kind. With very many tasks it is slightly delayed, like the
            numbers of tasks that wait for slots.
        owed: Callbacks and alerts in the outbox.
        stalls: How often user code blocked an event loop, by ``trigger`` and ``task``.
        schedules_late: Alerts sent because a schedule's run was not created in time.
        changes: Row changes committed in all; divided by ``commits``, the size of a batch.
        steps: Number of transitions to each task state.
        runs_ended: Runs that ended, by state.
        fenced, refused: Rejected batches; see ``engine.metrics.Measures``.
        fires: Events accepted from triggers, by kind.
        evicted: Suspended coroutines evicted for lack of memory.
        hosts: Load of each shared host.
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
    hosts: list[HostLoad]
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
    parked: dict[str, int]
    stalls: dict[str, int]
    quarantined_classes: int
    owed: dict[str, int]
    callbacks_failed: int
    schedules_late: int
    is_store_away: bool
    uptime_seconds: float


def measured(
    engine: Engine,
    hosts: Sequence[HostLoad],
    stats: MemoryStats,
    fires: Mapping[str, int],
    *,
    logs_bytes: int,
    spans: tuple[int, int],
    uptime_us: int,
) -> Metrics:
    """Return the current metrics.

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
        hosts=list(hosts),
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
        parked=dict(stats.parked),
        stalls=memory.loop_blockers.counts(),
        quarantined_classes=sum(known.is_quarantined for known in memory.loop_blockers.all()),
        owed=outbox_counts(memory),
        callbacks_failed=memory.callbacks_failed,
        schedules_late=memory.schedules_late,
        is_store_away=engine.store_away_since is not None,
        uptime_seconds=uptime_us / 1e6,
    )


def outbox_counts(memory: Memory) -> dict[str, int]:
    """Return the number of callbacks and alerts in the outbox."""
    found = {"alerts": 0, "callbacks": 0}
    for kind, count in backlog(memory.outbox_quotas).items():
        found["callbacks" if is_callback(kind) else "alerts"] += count
    return found
