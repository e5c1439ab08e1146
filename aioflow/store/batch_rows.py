"""Rows that a batch writes for versions, DAGs, pools, runs, tasks, streams, triggers and events.

Each function returns the parameters of one kind of change, one tuple for each row; see ``changes``.
"""

from __future__ import annotations

import zlib
from typing import Any

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.rows import (
    DagFileRow,
    DagRow,
    EventRow,
    ExpansionChange,
    ExpansionRow,
    ItemRow,
    NamedEventRow,
    PoolRow,
    RecordChange,
    RecordRow,
    ResultRow,
    RunChange,
    TriggerChange,
    TriggerRow,
    TryRow,
    VersionRow,
)
from aioflow.model.states import RecordState
from aioflow.store.rows import encrypted_kwargs, last_of_each, pack, packed_failure

__all__ = (
    "consumed_stream_events",
    "dag_files",
    "dags",
    "deleted_dag_files",
    "deleted_dags",
    "deleted_expansions",
    "deleted_items",
    "deleted_pools",
    "deleted_records",
    "deleted_results",
    "deleted_stream_events",
    "deleted_triggers",
    "drained_nodes",
    "expansion_changes",
    "history",
    "map_labels",
    "moved_triggers",
    "new_clears",
    "new_expansions",
    "new_items",
    "new_named_events",
    "new_records",
    "new_runs",
    "new_stream_events",
    "new_tasks",
    "new_tries",
    "new_triggers",
    "pools",
    "record_changes",
    "reencrypted_triggers",
    "results",
    "run_changes",
    "run_versions",
    "task_changes",
    "try_workers",
    "undrained_nodes",
    "versions",
)


def versions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new versions, each once."""
    return [_version(row) for row in last_of_each(batch.new_versions, lambda row: row.version)]


def _version(row: VersionRow) -> tuple[Any, ...]:
    sources = zlib.compress(pack(row.sources))
    return (row.version, row.file, pack(row.dags), sources, row.created_at)


def dag_files(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the last row of each DAG file in the batch."""

    def values(row: DagFileRow) -> tuple[Any, ...]:
        return (row.file, row.version, row.reason, row.message, row.parsed_at)

    return [values(row) for row in last_of_each(batch.dag_files, lambda row: row.file)]


def deleted_dag_files(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the deleted DAG files."""
    return [(file,) for file in dict.fromkeys(batch.gone_files)]


def deleted_dags(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the deleted DAGs."""
    return [(dag_id,) for dag_id in dict.fromkeys(batch.gone_dags)]


def dags(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the DAGs that are new or changed."""

    def values(row: DagRow) -> tuple[Any, ...]:
        paused, gone = int(row.paused), int(row.gone)
        told = (row.last_fire_time, row.late_alert_for)
        return (row.dag_id, row.file, row.version, paused, row.next_run_at, gone, *told)

    return [values(row) for row in last_of_each(batch.dags, lambda row: row.dag_id)]


def pools(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the pools that were created or changed."""

    def values(row: PoolRow) -> tuple[Any, ...]:
        return (row.name, row.slots, int(row.include_deferred))

    return [values(row) for row in last_of_each(batch.pools, lambda row: row.name)]


def drained_nodes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the nodes that accept no more work."""
    last = dict(batch.drained)
    return [(node_no, at) for node_no, at in last.items() if at is not None]


def undrained_nodes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the nodes that accept work again."""
    return [(node_no,) for node_no, at in dict(batch.drained).items() if at is None]


def deleted_pools(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the deleted pools."""
    return [(name,) for name in dict.fromkeys(batch.gone_pools)]


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
            row.started_by,
        )
        for row in batch.new_runs
    ]


def new_clears(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the clear requests, stored so that a repeated request gets the same answer."""
    return list(batch.new_clears)


def run_changes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the runs whose rows change."""

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
            row.task_index,
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
    """Return the tasks whose rows change."""
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


def try_workers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the starts that ran in a remote worker."""
    return [
        (row.task_no, row.start_no, row.run_no, row.executor, row.host, row.worker)
        for row in batch.try_workers
    ]


def map_labels(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the last label of each mapped child in the batch."""
    return list(last_of_each(batch.labels, lambda row: row[0]))


def results(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the last result of each task in the batch."""

    def values(row: ResultRow) -> tuple[Any, ...]:
        return (row.task_no, row.run_no, row.start_no, row.body, row.size, row.width)

    return [values(row) for row in last_of_each(batch.results, lambda row: row.task_no)]


def new_expansions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new expansions."""

    def values(row: ExpansionRow) -> tuple[Any, ...]:
        return (row.run_no, row.task_index, row.width, row.first_task_no, int(row.is_open))

    return [values(row) for row in batch.new_expansions]


def expansion_changes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the expansions that are closed, or that grow with a stream."""

    def values(change: ExpansionChange) -> tuple[Any, ...]:
        return (change.width, int(change.is_open), change.run_no, change.task_index, change.was, 1)

    return [values(change) for change in batch.expansion_changes]


def history(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the counts to add to the history."""
    return [tuple(row) for row in batch.history]


def new_items(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the items that tasks have yielded."""

    def values(row: ItemRow) -> tuple[Any, ...]:
        return (row.task_no, row.item_index, row.run_no, row.payload)

    return [values(row) for row in batch.new_items]


def deleted_items(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the tasks whose items are deleted."""
    return [(task_no,) for task_no in batch.gone_items]


def new_stream_events(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new stream events."""

    def values(row: EventRow) -> tuple[Any, ...]:
        return (row.trigger_no, row.sequence, row.run_no, row.key, row.payload)

    return [values(row) for row in batch.new_events]


def consumed_stream_events(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the consumed stream events, whose payloads are deleted."""
    return [(None, *key) for key in batch.consumed_events]


def deleted_stream_events(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the triggers whose stream events are deleted."""
    return [(number,) for number in batch.gone_events]


def deleted_expansions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the expansions that are deleted, to be created again later."""
    return list(batch.gone_expansions)


def deleted_results(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the tasks whose results are deleted."""
    return [(task_no,) for task_no in dict.fromkeys(batch.gone_results)]


def new_triggers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new triggers with their kwargs encrypted."""

    def values(row: TriggerRow) -> tuple[Any, ...]:
        encrypted, next_encrypted = encrypted_kwargs(
            vault, row.trigger_no, row.kwargs, row.next_kwargs
        )
        return (
            row.trigger_no,
            row.task_no,
            row.run_no,
            int(row.state),
            row.class_path,
            encrypted,
            row.since,
            row.deadline_at,
            row.next_method,
            next_encrypted,
            row.event,
            row.event_key,
            row.ordinal,
            row.branch,
            row.window,
            packed_failure(row.failure),
            row.timeout_method,
        )

    return [values(row) for row in batch.new_triggers]


def reencrypted_triggers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the triggers whose kwargs are encrypted again with the current key."""
    return [
        (*encrypted_kwargs(vault, number, kwargs, next_kwargs), number)
        for number, kwargs, next_kwargs in batch.reencrypted
    ]


def moved_triggers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the triggers whose state or event changes."""
    return [
        (
            int(change.state),
            change.event,
            change.event_key,
            packed_failure(change.failure),
            change.trigger_no,
            int(change.was),
        )
        for change in batch.trigger_changes
        if change.state is not None
    ]


def deleted_triggers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the triggers that are deleted."""

    def values(change: TriggerChange) -> tuple[Any, ...]:
        return (change.trigger_no, int(change.was))

    return [values(change) for change in batch.trigger_changes if change.state is None]


def new_named_events(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new named events."""

    def values(row: NamedEventRow) -> tuple[Any, ...]:
        called = (row.event_no, row.name, row.key)
        return (*called, row.data, row.at, row.run_no, row.request)

    return [values(row) for row in batch.named_events]


def deleted_records(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the keys of the durable calls that are deleted."""
    return list(batch.dropped_records)


def new_records(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new durable calls."""

    def values(row: RecordRow) -> tuple[Any, ...]:
        key = (row.task_no, row.ordinal, row.run_no)
        called = (row.kind, row.name, row.source_location)
        answer = (row.answer, packed_failure(row.failure))
        return (*key, int(row.state), *called, *answer, row.label or None)

    return [values(row) for row in batch.new_records]


def record_changes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the durable calls that have completed."""

    def values(change: RecordChange) -> tuple[Any, ...]:
        new = (int(change.state), change.answer, packed_failure(change.failure))
        return (*new, change.task_no, change.ordinal, int(RecordState.OPEN))

    return [values(change) for change in batch.record_changes]
