"""Idempotency of requests for runs: find the run that an equal request has already created.

A repeated request is detected by its idempotency key or run id. Runs that have ended or are being
deleted exist only as rows. Their rows are read before the turn, see ``requested_runs``.
"""

from __future__ import annotations

from collections.abc import Iterable

from aioflow.core.state.memory import Memory
from aioflow.core.transaction import Transaction
from aioflow.errors import RunBeingDeleted, RunExists
from aioflow.model.rows import RunRow
from aioflow.protocol.inputs import (
    Input,
    RequestReceived,
)
from aioflow.protocol.requests import CreateRun

__all__ = (
    "remember_existing_runs",
    "requested_runs",
    "same_run",
)


def requested_runs(inputs: Iterable[Input]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the run ids that these inputs request, and their idempotency keys by DAG."""
    run_ids: list[str] = []
    keys: dict[str, list[str]] = {}
    for entry in inputs:
        if isinstance(entry, RequestReceived) and isinstance(entry.request, CreateRun):
            if entry.request.run_id is not None:
                run_ids.append(entry.request.run_id)
            if entry.request.key is not None:
                keys.setdefault(entry.request.dag_id, []).append(entry.request.key)
    return run_ids, keys


def remember_existing_runs(found: Iterable[tuple[RunRow, bool]], memory: Memory) -> None:
    """Store the loaded runs for this turn, each with whether it is being deleted."""
    memory.existing_runs, memory.existing_runs_by_key = {}, {}
    for row, is_going in found:
        memory.existing_runs[row.run_id] = row, is_going
        if row.key is not None:
            memory.existing_runs_by_key[row.dag_id, row.key] = row, is_going


def same_run(request: CreateRun, tx: Transaction) -> str | None:
    """Return the id of the run, active or ended, that an equal request has already created.

    Raises:
        RunExists: If a different request created the run with that id.
        RunBeingDeleted: If the id or key belongs to a run whose rows are still being deleted.
    """
    if request.key is not None:
        keyed = _run_of_key(request.dag_id, request.key, tx)
        if keyed is not None:
            return keyed.run_id
    if request.run_id is None:
        return None
    named = _run_of_id(request.run_id, tx)
    if named is None:
        return None
    if (named.dag_id, named.conf) != (request.dag_id, request.conf):
        raise RunExists(request.run_id)
    return named.run_id


def _run_of_key(dag_id: str, key: str, tx: Transaction) -> RunRow | None:
    memory = tx.memory
    number = memory.run_keys.get((dag_id, key))
    if number is not None:
        return memory.runs.peek(number).row
    return _existing_run(memory.existing_runs_by_key.get((dag_id, key)), tx, key)


def _run_of_id(run_id: str, tx: Transaction) -> RunRow | None:
    run = tx.memory.find_run(run_id)
    return _existing_run(tx.memory.existing_runs.get(run_id), tx) if run is None else run.row


def _existing_run(
    found: tuple[RunRow, bool] | None, tx: Transaction, key: str = ""
) -> RunRow | None:
    if found is None:
        return None
    row, is_going = found
    if is_going or any(gone.run_no == row.run_no for gone in tx.batch.new_deletions):
        raise RunBeingDeleted(row.run_id, key)
    return row
