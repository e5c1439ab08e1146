"""Rows that a batch writes for runs, tasks, tries and results."""

from __future__ import annotations

from typing import Any

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.rows import ResultRow, RunChange, TryRow
from aioflow.store.packing import last_of_each, packed_failure

__all__ = (
    "labels",
    "new_clears",
    "new_runs",
    "new_tasks",
    "new_tries",
    "results",
    "run_changes",
    "run_versions",
    "task_changes",
)


def new_runs(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new runs."""
    return [
        (
            row.run_no,
            row.run_id,
            row.dag_id,
            row.version,
            int(row.state),
            row.cause,
            row.first_task_no,
            row.logical_date,
            row.conf,
            row.key,
            row.created_at,
            row.started_at,
            row.ended_at,
            row.quarantine,
            row.caller,
            row.backfill,
        )
        for row in batch.new_runs
    ]


def new_clears(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the clear requests, stored so that a repeated request gets the same answer."""
    return list(batch.new_clears)


def run_changes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the runs that continue or end."""

    def values(change: RunChange) -> tuple[Any, ...]:
        new = (int(change.state), change.started_at, change.ended_at, change.quarantine)
        return (*new, change.run_no, int(change.was))

    return [values(change) for change in batch.run_changes]


def run_versions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the runs that are moved to another version of their DAG."""
    return [(new, run_no, old) for run_no, old, new in batch.run_versions]


def new_tasks(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the tasks that get a row."""
    return [
        (
            row.task_no,
            row.run_no,
            row.position,
            row.map_index,
            int(row.state),
            row.try_number,
            row.start_no,
            row.interruptions,
            row.due_at,
            row.deadline_at,
            row.queued_at,
            row.started_at,
            row.ended_at,
            packed_failure(row.failure),
        )
        for row in batch.new_tasks
    ]


def task_changes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the tasks that continue or end."""
    return [
        (
            int(change.state),
            change.try_number,
            change.start_no,
            change.interruptions,
            change.due_at,
            change.deadline_at,
            change.queued_at,
            change.started_at,
            change.ended_at,
            packed_failure(change.failure),
            change.task_no,
            int(change.was),
            change.was_start_no,
        )
        for change in batch.task_changes
    ]


def new_tries(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the tries that ended."""

    def values(row: TryRow) -> tuple[Any, ...]:
        key = (row.task_no, row.start_no, row.run_no, row.try_number)
        return (*key, int(row.state), row.started_at, row.ended_at, packed_failure(row.failure))

    return [values(row) for row in batch.new_tries]


def labels(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the labels of mapped tasks, the last one of each task."""
    return list(last_of_each(batch.labels, lambda row: row[0]))


def results(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the results of tasks, the last one of each task."""

    def values(row: ResultRow) -> tuple[Any, ...]:
        return (row.task_no, row.run_no, row.start_no, row.body, row.size, row.width)

    return [values(row) for row in last_of_each(batch.results, lambda row: row.task_no)]
