"""Deleting an ended run, named as deleted at once, its rows in slices; and a DAG without runs."""

from __future__ import annotations

from msgspec.structs import replace

from aioflow.core.runs import previous
from aioflow.core.state.run_sequence import run_key
from aioflow.core.transaction import Transaction
from aioflow.errors import DagPresent, DagRunning, RequestError, UnknownDag, UnknownRun
from aioflow.model.dag_triggers import Fate, FateChange
from aioflow.model.rows import DeletionRow
from aioflow.protocol.requests import DeleteDag, DeleteRun, EraseRows

__all__ = ("delete", "delete_dag", "erase")

_NO_FIELDS = b"\x80"


def delete(request: DeleteRun, draft: Transaction) -> None:
    """Have nobody see a run any more.

    Raises:
        RequestError: If there is none of that id, or it goes on.
    """
    row = draft.memory.recalled_runs.get(request.run_id)
    is_live = draft.memory.find_run(request.run_id) is not None
    if is_live or (row is not None and row.ended_at is None):
        raise RequestError(f"run {request.run_id!r} goes on; cancel it first, then delete it")
    if row is None:
        raise UnknownRun(request.run_id)
    draft.memory.touch(request.run_id)
    order = run_key(row)
    if order is not None:
        previous.forget(row.dag_id, order, draft)
    draft.batch.new_deletions.append(DeletionRow(run_no=row.run_no, at=draft.now))


def delete_dag(request: DeleteDag, draft: Transaction) -> None:
    """Forget a DAG. Its ended runs are deleted before, by whoever asks.

    Raises:
        UnknownDag: If there is none of that name.
        DagPresent: If a file defines it.
        DagRunning: If a run of it goes on.
    """
    memory, dag_id = draft.memory, request.dag_id
    row = memory.dags.get(dag_id)
    if row is None:
        raise UnknownDag(dag_id)
    if not row.gone:
        raise DagPresent(dag_id, row.file)
    filling = [one for one in memory.backfills.values() if one.dag_id == dag_id]
    live = sum(run.row.dag_id == dag_id for run in memory.runs.objects.values())
    live += sum(n for plan, n in memory.runs.plans.counts() if plan.graph.spec.dag_id == dag_id)
    if live:
        raise DagRunning(dag_id, live)
    if not request.only_asks:
        for backfill in filling:
            draft.put_backfill(replace(backfill, state="cancelled", ended_at=draft.now))
        _forget_trigger(dag_id, draft)
        del memory.dags[dag_id]
        draft.batch.dags = [kept for kept in draft.batch.dags if kept.dag_id != dag_id]
        draft.batch.gone_dags.append(dag_id)


def _forget_trigger(dag_id: str, draft: Transaction) -> None:
    """Whatever DAG has that name next, its trigger begins anew; keys are known as long as ever."""
    one = draft.memory.standing.of(dag_id)
    if one is not None:
        draft.standing.note(one)
        held = [event.event_no for events in one.pending.values() for event in events]
        held += [] if one.row.held is None else [one.row.held.event_no]
        draft.batch.of_dags.fates += [FateChange(number, Fate.REPLACED) for number in held]
        one.pending = {}
        nothing = {"event": None, "event_key": None, "held": None}
        one.row = replace(one.row, class_path="", kwargs=_NO_FIELDS, **nothing)
        draft.memory.standing.index(one)


def erase(request: EraseRows, draft: Transaction) -> None:
    """Delete some of the rows that are left of a run.

    Raises:
        RequestError: If it goes on.
    """
    if request.run_no in draft.memory.runs:
        raise RequestError(f"run {request.run_no} goes on")
    draft.batch.erased.setdefault(request.table, []).extend(request.keys)
