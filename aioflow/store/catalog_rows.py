"""Rows that a batch writes for versions, DAG files, DAGs, pools and drained nodes."""

from __future__ import annotations

import zlib
from typing import Any

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.rows import DagFileRow, DagRow, PoolRow, VersionRow
from aioflow.store.packing import encode, last_of_each

__all__ = (
    "dag_files",
    "dags",
    "deleted_dags",
    "deleted_files",
    "deleted_pools",
    "drained",
    "pools",
    "undrained",
    "versions",
)


def versions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new versions, each once."""
    return [_version(row) for row in last_of_each(batch.new_versions, lambda row: row.version)]


def _version(row: VersionRow) -> tuple[Any, ...]:
    sources = zlib.compress(encode(row.sources))
    return (row.version, row.file, encode(row.dags), sources, row.created_at)


def dag_files(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the state of DAG files, the last row of each."""

    def values(row: DagFileRow) -> tuple[Any, ...]:
        return (row.file, row.version, row.reason, row.message, row.parsed_at)

    return [values(row) for row in last_of_each(batch.dag_files, lambda row: row.file)]


def deleted_files(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
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


def drained(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the nodes that accept no more work."""
    last = dict(batch.drained)
    return [(node_no, at) for node_no, at in last.items() if at is not None]


def undrained(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the nodes that accept work again."""
    return [(node_no,) for node_no, at in dict(batch.drained).items() if at is None]


def deleted_pools(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the deleted pools."""
    return [(name,) for name in dict.fromkeys(batch.gone_pools)]
