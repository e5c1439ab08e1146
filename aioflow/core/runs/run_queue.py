"""Queues of runs that wait for ``max_active_runs`` of their DAG. Runs start in queue order."""

from __future__ import annotations

from collections import deque

from aioflow.core.runs import deadlines, previous
from aioflow.core.runs.progress import begin
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import Run
from aioflow.core.transaction import Transaction
from aioflow.model.states import RunState
from aioflow.model.triggers import BY_EVENT

__all__ = (
    "begin_queued",
    "count_runs",
    "is_running",
    "leave_queue",
    "remember",
    "run_reopened",
    "suspended",
    "waits_while_paused",
    "withdraw",
)


def count_runs(memory: Memory) -> None:
    """Rebuild the run queues and the counts of active runs."""
    memory.queued_runs.clear()
    memory.active_runs.clear()
    for dag_version, count in memory.runs.count_dag_versions():
        dag_id = dag_version.graph.spec.dag_id
        memory.active_runs[dag_id] = memory.active_runs.get(dag_id, 0) + count
    for _, run in sorted(memory.runs.objects.items()):
        remember(run, memory)


def remember(run: Run, memory: Memory) -> None:
    """Add a run to its queue or to the count of active runs. Quarantined runs are not counted."""
    queue = run.queue
    if run.row.quarantine is not None:
        return
    if run.clearing is not None and run.state is RunState.QUEUED:
        return  # the run is queued when the clear is complete
    if run.state is RunState.QUEUED:
        memory.queued_runs.setdefault(queue, deque()).append(run)
    elif run.state is RunState.RUNNING:
        memory.active_runs[queue] = memory.active_runs.get(queue, 0) + 1


def leave_queue(run: Run, tx: Transaction) -> None:
    """Remove a run from the queue of its DAG, if it is there."""
    waiting = tx.memory.queued_runs.get(run.queue, deque())
    if run in waiting:
        waiting.remove(run)
        tx.eased_dags.add(run.row.dag_id)


def withdraw(run: Run, was: RunState, tx: Transaction) -> None:
    """Remove a run that ends or is quarantined from the active runs or from its queue.

    Args:
        was: The state in which the run was counted.
    """
    if run.row.quarantine is not None:
        return  # a run in quarantine is not counted
    if was is RunState.RUNNING:
        tx.memory.active_runs[run.queue] -= 1
    else:
        leave_queue(run, tx)


def run_reopened(run: Run, tx: Transaction) -> None:
    """Queue a run again after its tasks were cleared, behind the runs that already wait."""
    remember(run, tx.memory)
    begin_queued(run.queue, tx)


def begin_queued(queue: str, tx: Transaction) -> None:
    """Start the oldest queued runs, up to the limit of the DAG.

    One more run is started if active runs depend on it and could never end otherwise. All queued
    runs of a backfill are started, because a backfill creates no more runs than its limit allows.
    """
    memory = tx.memory
    waiting = memory.queued_runs.get(queue, deque())
    while waiting and _has_turn(waiting[0], memory):
        run = next((run for run in waiting if not waits_while_paused(run, memory)), None)
        if run is None:
            break
        waiting.remove(run)
        _begin(run, tx)
    needed = previous.needed_run(queue, memory) if waiting else None
    if needed is not None:
        waiting.remove(needed)
        _begin(needed, tx)


def waits_while_paused(run: Run, memory: Memory) -> bool:
    """Return whether a queued run that was created by an event waits because its DAG is paused."""
    row = memory.dags.get(run.row.dag_id)
    is_waiting = run.state is RunState.QUEUED and run.row.cause == BY_EVENT
    return is_waiting and row is not None and row.paused


def _has_turn(run: Run, memory: Memory) -> bool:
    active = memory.active_runs.get(run.queue, 0)
    return run.row.backfill is not None or active < run.spec.max_active_runs


def _begin(run: Run, tx: Transaction) -> None:
    active, queue = tx.memory.active_runs, run.queue
    active[queue] = active.get(queue, 0) + 1
    tx.eased_dags.add(run.row.dag_id)
    begin(run, tx)
    if run.state.is_live:
        deadlines.start_timers(run, tx)


def is_running(dag_id: str, memory: Memory) -> bool:
    """Return whether a run of a DAG is active or queued, not counting backfills."""
    return bool(
        memory.active_runs.get(dag_id)
        or memory.queued_runs.get(dag_id)
        or suspended(dag_id, memory)
    )


def suspended(queue: str, memory: Memory) -> list[Run]:
    """Return the runs that join a queue only when their clear or mark is complete.

    A clear or mark in slices takes a run out of its queue.
    """
    runs = [memory.runs.get(run_no) for run_no in memory.clearings]
    return [
        run
        for run in runs
        if run is not None
        and run.queue == queue
        and run.state is RunState.QUEUED
        and run.row.quarantine is None
    ]
