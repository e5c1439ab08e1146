"""Deletion of ended runs, hidden at once and erased in slices, and of DAGs without runs."""

from __future__ import annotations

from msgspec.structs import replace

from aioflow.core.runs import previous
from aioflow.core.state.run_sequence import run_key
from aioflow.core.transaction import Transaction
from aioflow.errors import DagPresent, DagRunning, RequestError, UnknownDag, UnknownRun
from aioflow.model.dag_triggers import EventOutcome, OutcomeChange
from aioflow.model.rows import DeletionRow
from aioflow.protocol.requests import DeleteDag, DeleteRun, EraseRows

__all__ = ("delete", "delete_dag", "erase")

_NO_FIELDS = b"\x80"


def delete(request: DeleteRun, tx: Transaction) -> None:
    """Hide a run and record its deletion.

    Raises:
        RequestError: If there is no run of that id, or it has not ended.
    """
    row = tx.memory.prefetched_runs.get(request.run_id)
    is_live = tx.memory.find_run(request.run_id) is not None
    if is_live or (row is not None and row.ended_at is None):
        raise RequestError(f"run {request.run_id!r} goes on; cancel it first, then delete it")
    if row is None:
        raise UnknownRun(request.run_id)
    tx.memory.touch(request.run_id)
    order = run_key(row)
    if order is not None:
        previous.forget(row.dag_id, order, tx)
    tx.batch.new_deletions.append(DeletionRow(run_no=row.run_no, at=tx.now))


def delete_dag(request: DeleteDag, tx: Transaction) -> None:
    """Delete a DAG. The caller deletes its ended runs first.

    Raises:
        UnknownDag: If there is no DAG of that name.
        DagPresent: If a file defines it.
        DagRunning: If a run of it has not ended.
    """
    memory, dag_id = tx.memory, request.dag_id
    row = memory.dags.get(dag_id)
    if row is None:
        raise UnknownDag(dag_id)
    if not row.gone:
        raise DagPresent(dag_id, row.file)
    filling = [one for one in memory.backfills.values() if one.dag_id == dag_id]
    live_runs = sum(run.row.dag_id == dag_id for run in memory.runs.objects.values())
    live_runs += sum(
        n
        for dag_version, n in memory.runs.dag_versions.counts()
        if dag_version.graph.spec.dag_id == dag_id
    )
    if live_runs:
        raise DagRunning(dag_id, live_runs)
    if not request.only_asks:
        for backfill in filling:
            tx.put_backfill(replace(backfill, state="cancelled", ended_at=tx.now))
        _forget_trigger(dag_id, tx)
        del memory.dags[dag_id]
        tx.batch.dags = [kept for kept in tx.batch.dags if kept.dag_id != dag_id]
        tx.batch.gone_dags.append(dag_id)


def _forget_trigger(dag_id: str, tx: Transaction) -> None:
    """Reset the trigger of a DAG for the next DAG of that name. Its known keys remain."""
    one = tx.memory.dag_triggers.of(dag_id)
    if one is not None:
        tx.dag_triggers.note(one)
        held = [event.event_no for events in one.pending.values() for event in events]
        held += [] if one.row.held is None else [one.row.held.event_no]
        tx.batch.of_dags.outcomes += [
            OutcomeChange(number, EventOutcome.REPLACED) for number in held
        ]
        one.pending = {}
        nothing = {"event": None, "event_key": None, "held": None}
        one.row = replace(one.row, class_path="", kwargs=_NO_FIELDS, **nothing)
        tx.memory.dag_triggers.index(one)


def erase(request: EraseRows, tx: Transaction) -> None:
    """Delete some of the rows that are left of a deleted run.

    Raises:
        RequestError: If the run has not ended.
    """
    if request.run_no in tx.memory.runs:
        raise RequestError(f"run {request.run_no} goes on")
    tx.batch.erased.setdefault(request.table, []).extend(request.keys)
