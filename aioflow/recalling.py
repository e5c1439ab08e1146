"""Reads what a turn needs and memory does not have: runs, what of them is over, what is owed."""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.core import clear, lanes, mark, past
from aioflow.core.line import Ended, last_rounds, stored_as
from aioflow.core.memory import Memory
from aioflow.core.resealing import PAGE
from aioflow.inputs import Asked, Input
from aioflow.model import DagSpec, ValueKind
from aioflow.requests import ClearTasks, DeleteRun, Mark, Reseal
from aioflow.rows import RunRow, TriggerRow, ValueRow
from aioflow.store import Store
from aioflow.unfinished import LiveRun

__all__ = ("recall",)


async def recall(store: Store, memory: Memory, inputs: Sequence[Input]) -> None:
    """Have in memory what these inputs ask for.

    That is the rows of runs, in ``memory.recalled``; and which run came before another, in
    ``memory.lines``.

    And in ``memory.found_owed`` what may be handed out.

    Raises:
        StoreUnavailable: If the database does not answer; it may be called again.
    """
    memory.recalled = {}
    memory.found_owed = {
        kind: await store.list_owed(kind, after=after, limit=limit)
        for kind, (after, limit) in lanes.wanted(inputs, memory.lanes).items()
    }
    for request in clear.wanted(inputs):
        rows = await _run(request, store) if mark.needs_rows(request, memory) else None
        if rows is not None and await _has_plan(rows.run, store, memory):
            memory.recalled[request.run_id] = rows
    memory.sealed = await _sealed(store, inputs)
    for dag_id, orders in past.wanted(inputs, memory):
        for order, row in zip(orders, await store.find_runs_before(dag_id, orders), strict=True):
            memory.lines[dag_id].learn(order, await _ended(row, store, memory))


async def _run(request: ClearTasks | Mark | DeleteRun, store: Store) -> LiveRun | None:
    run = await store.find_run(request.run_id)
    if run is None:
        return None
    if mark.needs_tasks(request):
        return await store.load_run(run.run_no)
    return LiveRun(run=run, tasks=[], expansions=[], widths=[], triggers=[])


async def _sealed(store: Store, inputs: Sequence[Input]) -> tuple[list[ValueRow], list[TriggerRow]]:
    """Return a page of what is to be sealed anew; of several requests in one turn the first's."""
    for entry in inputs:
        if isinstance(entry, Asked) and isinstance(entry.request, Reseal):
            if entry.request.after is not None:
                return [], await store.list_triggers(limit=PAGE, after=entry.request.after)
            return [row for kind in ValueKind for row in await store.list_values(kind)], []
    return [], []


async def _has_plan(run: RunRow, store: Store, memory: Memory) -> bool:
    if (run.version, run.dag_id) not in memory.plans:
        spec = await _stored_spec(run, store)
        if spec is not None:
            memory.add_plan(run.version, spec)
    return (run.version, run.dag_id) in memory.plans


async def _stored_spec(run: RunRow, store: Store) -> DagSpec | None:
    version = await store.find_version(run.version)
    found = () if version is None else version.dags
    return next((spec for spec in found if spec.dag_id == run.dag_id), None)


async def _ended(row: RunRow | None, store: Store, memory: Memory) -> Ended | None:
    """Return how a run stands that memory does not have; ``None`` of one that it has."""
    if row is None or row.run_no in memory.runs:
        return None
    plan = memory.plans.get((row.version, row.dag_id))
    spec = await _stored_spec(row, store) if plan is None else plan.graph.spec
    if spec is None:
        return None
    counts = await store.count_states(row.run_no)
    expansions = await store.list_expansions(row.run_no)
    rounds = await store.find_tasks(last_rounds(spec, expansions))
    return stored_as(row, spec, counts, expansions, rounds)
