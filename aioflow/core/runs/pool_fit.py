"""Detection of tasks that can never start because they need more slots than their pool has.

It is reported for the DAG file when it is parsed and whenever a pool changes. The DAG stays
active, because its other tasks may run, and the pool can be resized.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from aioflow.core.scheduling.ready import is_hosted_sensor
from aioflow.core.transaction import Transaction
from aioflow.errors import PoolTooNarrow
from aioflow.model.dag import DagSpec
from aioflow.model.rows import PoolRow

__all__ = ("pools_changed", "too_wide")


def too_wide(specs: Iterable[DagSpec], pools: Mapping[str, PoolRow]) -> PoolTooNarrow | None:
    """Return the error for the first task that never fits into its pool, or ``None``."""
    for spec in specs:
        for task in spec.tasks:
            pool = pools.get(task.pool)
            if pool is not None and task.slots > pool.slots and not is_hosted_sensor(task):
                name = f"{spec.dag_id}.{task.task_id}"
                return PoolTooNarrow(name, task.slots, task.pool, pool.slots)
    return None


def pools_changed(tx: Transaction, pools: Mapping[str, PoolRow]) -> None:
    """Update this finding of each file. Any other error of a file takes precedence."""
    memory = tx.memory
    specs: dict[str, list[DagSpec]] = {}
    for row in memory.dags.values():
        if not row.gone:
            spec = memory.dag_versions[row.version, row.dag_id].graph.spec
            specs.setdefault(row.file, []).append(spec)
    for file in list(memory.files.values()):
        if file.reason not in {None, PoolTooNarrow.code}:
            continue
        found = too_wide(specs.get(file.file, ()), pools)
        reason, message = (None, None) if found is None else (found.code, str(found))
        if (reason, message) != (file.reason, file.message):
            changed = msgspec.structs.replace(file, reason=reason, message=message)
            memory.files[file.file] = changed
            rows = tx.batch.dag_files
            tx.batch.dag_files = [*(row for row in rows if row.file != file.file), changed]
