"""Numbers to watch a node by."""

from __future__ import annotations

from collections import Counter

import msgspec

from aioflow.api.parked import kind_of
from aioflow.core.lanes import backlog
from aioflow.core.memory import Memory
from aioflow.engine import Engine
from aioflow.model import TriggerState
from aioflow.owed import is_callback

__all__ = ("Metrics", "measured", "owed", "parked_by_kind")


class Metrics(msgspec.Struct, kw_only=True):
    """Numbers to watch a node by, as of now.

    Attributes:
        parked: Trigger rows by kind.
        owed: How many callbacks and alerts are to be delivered.
        stalls: How often user code held up a loop, by ``trigger`` and ``task``.
        schedules_late: How often people were told that runs of a schedule were not made in time.
        changes: Row changes committed in all; with ``commits`` the size of a batch.
    """

    turns: int
    commits: int
    changes: int
    commit_seconds: float
    waiting_inputs: int
    slots: int
    slots_used: int
    coroutine_slots: int
    coroutine_slots_used: int
    tasks_waiting_for_slots: int
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


def measured(engine: Engine, *, commits: int, changes: int, uptime_us: int) -> Metrics:
    """Return what there is to count, as of now."""
    memory, slots = engine.memory, engine.slots
    return Metrics(
        turns=engine.turns,
        commits=commits,
        changes=changes,
        commit_seconds=memory.commit_us / 1e6,
        waiting_inputs=engine.waiting_inputs,
        slots=len(slots.workers),
        slots_used=sum(not worker.is_idle for worker in slots.workers),
        coroutine_slots=slots.coroutines,
        coroutine_slots_used=slots.running_coroutines,
        tasks_waiting_for_slots=slots.ready.count(),
        live_runs=len(memory.runs),
        live_tasks=len(memory.live),
        parked=parked_by_kind(memory),
        stalls=memory.stalls.counts(),
        quarantined_classes=sum(known.is_quarantined for known in memory.stalls.all()),
        owed=owed(memory),
        callbacks_failed=memory.callbacks_failed,
        schedules_late=memory.schedules_late,
        is_store_away=engine.store_away_since is not None,
        uptime_seconds=uptime_us / 1e6,
    )


def owed(memory: Memory) -> dict[str, int]:
    """Return how many callbacks and alerts are to be delivered."""
    found = {"alerts": 0, "callbacks": 0}
    for kind, count in backlog(memory.lanes).items():
        found["callbacks" if is_callback(kind) else "alerts"] += count
    return found


def parked_by_kind(memory: Memory) -> dict[str, int]:
    """Return how many triggers wait, by kind."""
    waits = memory.waits.objects.values()
    paths = Counter(wait.row.class_path for wait in waits if wait.state is TriggerState.WAITING)
    for form, count in memory.parking.forms.counts():
        paths[form.class_path] += count
    kinds: Counter[str] = Counter()
    for class_path, count in paths.items():
        kinds[kind_of(class_path)] += count
    return dict(kinds)
