"""Reads what a turn needs and memory does not have: runs, what of them is over, what is owed."""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.core import clear, lanes
from aioflow.core.memory import Memory
from aioflow.inputs import Input
from aioflow.rows import RunRow
from aioflow.store import Store

__all__ = ("recall",)


async def recall(store: Store, memory: Memory, inputs: Sequence[Input]) -> None:
    """Have in ``memory.recalled`` the rows of the runs that these inputs ask for.

    And in ``memory.found_owed`` what may be handed out.

    Raises:
        StoreUnavailable: If the database does not answer; it may be called again.
    """
    memory.recalled = {}
    memory.found_owed = {
        kind: await store.list_owed(kind, after=after, limit=limit)
        for kind, (after, limit) in lanes.wanted(inputs, memory.lanes).items()
    }
    for run_id in clear.wanted(inputs):
        run = await store.find_run(run_id)
        rows = None if run is None else await store.load_run(run.run_no)
        if rows is not None and await _has_plan(rows.run, store, memory):
            memory.recalled[run_id] = rows


async def _has_plan(run: RunRow, store: Store, memory: Memory) -> bool:
    if (run.version, run.dag_id) not in memory.plans:
        version = await store.find_version(run.version)
        for spec in () if version is None else version.dags:
            if spec.dag_id == run.dag_id:
                memory.add_plan(run.version, spec)
    return (run.version, run.dag_id) in memory.plans
