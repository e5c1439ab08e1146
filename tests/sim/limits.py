"""Limits, recounted from the rows: slots, pools, windows, and how many runs of a DAG go on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from aioflow.inputs import StartTry
from aioflow.model import Body, TaskSpec
from aioflow.rows import Batch, TaskRow
from tests.sim.broken import Broken

__all__ = ("hold",)


def hold(node: Any, batch: Batch, starts: list[StartTry]) -> None:
    """I4: slots, pools when something starts in them, and the limits of a run."""
    if not starts and not batch.steps:
        return
    tables = node.tables
    in_pool: Counter[str] = Counter()
    bodies: Counter[Body] = Counter()
    by_run: defaultdict[int, list[TaskRow]] = defaultdict(list)
    for run_no in tables.unfinished():
        spec = tables.spec_of_run(run_no)
        for row in tables.running(run_no):
            if _has_lost_its_place(node, row):
                continue
            task = spec.tasks[row.position]
            in_pool[task.pool] += task.slots
            bodies[task.body] += 1
            by_run[run_no].append(row)
    if bodies[Body.FUNCTION] > len(node.slots.workers):
        raise Broken("I4 limits", f"{bodies[Body.FUNCTION]} functions run at once")
    if bodies[Body.COROUTINE] > node.slots.coroutines:
        raise Broken("I4 limits", f"{bodies[Body.COROUTINE]} coroutines run at once")
    for pool in {task.pool for task in _tasks(node, starts) if not _is_hosted_sensor(task)}:
        limit = tables.pools.get(pool)
        if limit is not None and in_pool[pool] > limit.slots:
            raise Broken("I4 limits", f"started in pool {pool}: {in_pool[pool]} of {limit.slots}")
    for run_no, rows in by_run.items():
        _run_limits(node.tables.spec_of_run(run_no), run_no, rows)
    for run_no in {row.run_no for row in batch.new_tasks if row.map_index >= 0}:
        _windows(node, run_no)
    _active_runs(node)


def _run_limits(spec: Any, run_no: int, rows: list[TaskRow]) -> None:
    if spec.max_active_tasks is not None and len(rows) > spec.max_active_tasks:
        raise Broken("I4 limits", f"run {run_no}: {len(rows)} of {spec.max_active_tasks} tasks run")
    for position, count in Counter(row.position for row in rows).items():
        at_once = spec.tasks[position].max_active_tis_per_dagrun
        if at_once is not None and count > at_once:
            raise Broken("I4 limits", f"run {run_no}: {count} of {at_once} at {position} run")


def _windows(node: Any, run_no: int) -> None:
    rows = node.tables.tasks_of(run_no)
    open_rows = Counter(row.position for row in rows if row.map_index >= 0 and row.state.is_live)
    for position, count in open_rows.items():
        window = node.tables.spec_of_run(run_no).tasks[position].window
        if window is not None and count > window:
            raise Broken("I4 limits", f"run {run_no}: {count} children of {position}, not {window}")


def _active_runs(node: Any) -> None:
    """Each version has its own limit, and a run begins by that of its own."""
    active: Counter[str] = Counter()
    limits: Counter[str] = Counter()
    for run_no in node.tables.live_run_nos():
        dag_id = node.tables.runs[run_no].dag_id
        active[dag_id] += 1
        limits[dag_id] = max(limits[dag_id], node.tables.spec_of_run(run_no).max_active_runs)
    for dag_id, count in active.items():
        limit = limits[dag_id]
        if count > limit:
            raise Broken("I4 limits", f"{count} of {limit} runs of {dag_id} are active")


def _has_lost_its_place(node: Any, row: TaskRow) -> bool:
    """Its run is held still because its end could not be taken; the process is done with it."""
    if node.tables.runs[row.run_no].quarantine is None:
        return False
    live = node.memory.live.get(row.task_no)
    return live is not None and live.worker < 0 and not live.is_hosted


def _tasks(node: Any, starts: Iterable[StartTry]) -> Iterator[TaskSpec]:
    for effect in starts:
        yield node.tables.spec_of_run(effect.start.run_no).tasks[effect.start.position]


def _is_hosted_sensor(task: TaskSpec) -> bool:
    return task.sensor is not None and task.body is Body.COROUTINE
