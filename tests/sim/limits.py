"""Limits, recounted from the rows: slots, pools, windows, and active runs of a DAG.

In a pool that counts deferred tasks, every deferred task has weight, and a resumed task has weight
until it runs. When a limit is lowered, tasks above the new limit may continue, but no further task
starts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from aioflow.model.batch import Batch
from aioflow.model.dag import Body, TaskSpec
from aioflow.model.rows import TaskRow
from aioflow.model.states import TaskState, TriggerState
from aioflow.model.workers import LOCAL
from aioflow.protocol.effects import StartTry
from tests.sim.broken import Broken

__all__ = ("hold",)

_MAY_WEIGH = frozenset({TaskState.RUNNING, TaskState.DEFERRED, TaskState.QUEUED, TaskState.SENSING})


def hold(node: Any, batch: Batch, starts: list[StartTry]) -> None:
    """I4: check the slots, the pools in which something starts, and the limits of runs."""
    _pools_with_deferred(node, batch, starts)
    if starts or batch.steps:
        _tasks_and_runs(node, batch, starts)


def _tasks_and_runs(node: Any, batch: Batch, starts: list[StartTry]) -> None:
    tables = node.tables
    in_pool: Counter[str] = Counter()
    bodies: Counter[Body] = Counter()
    by_run: defaultdict[int, list[TaskRow]] = defaultdict(list)
    for run_no in tables.unfinished():
        spec = tables.spec_of_run(run_no)
        for row in tables.running(run_no):
            if _has_lost_its_place(node, row):
                continue
            task = spec.tasks[row.task_index]
            in_pool[task.pool] += task.slots
            bodies[task.body] += task.executor == LOCAL
            by_run[run_no].append(row)
    if bodies[Body.FUNCTION] > len(node.slots.workers):
        raise Broken("I4 limits", f"{bodies[Body.FUNCTION]} functions run at once")
    if bodies[Body.COROUTINE] > node.slots.coroutines:
        raise Broken("I4 limits", f"{bodies[Body.COROUTINE]} coroutines run at once")
    for pool in {task.pool for task in _tasks(node, starts) if not _is_hosted_sensor(task)}:
        limit = tables.pools.get(pool)
        if limit is None or limit.include_deferred:
            continue  # a pool that counts deferred tasks has a stricter check
        if in_pool[pool] > limit.slots:
            raise Broken("I4 limits", f"started in pool {pool}: {in_pool[pool]} of {limit.slots}")
    for run_no, rows in by_run.items():
        _run_limits(node.tables.spec_of_run(run_no), run_no, rows)
    _limits_over_runs(node, by_run)
    for run_no in {row.run_no for row in batch.new_tasks if row.map_index >= 0}:
        _windows(node, run_no)
    _active_runs(node)


def _pools_with_deferred(node: Any, batch: Batch, starts: list[StartTry]) -> None:
    """Check that the usage of a pool that counts deferred tasks never grows beyond its limit.

    Tasks that are deferred from their start count as well. Claims made before the pool began to
    count deferred tasks are excepted: they start behind a task that has been deferred since.
    """
    tables = node.tables
    counting = {name for name, row in tables.pools.items() if row.include_deferred}
    if not (starts or batch.steps or batch.pools) or not (counting or tables.weights):
        return
    begun = _begun_claims(node, batch, starts)
    weights: Counter[str] = Counter()
    for run_no in tables.unfinished():
        spec = tables.spec_of_run(run_no)
        for row in tables.tasks_of(run_no):
            if row.state not in _MAY_WEIGH:
                continue
            task = spec.tasks[row.task_index]
            if not _is_hosted_sensor(task) and _weighs(node, row, task):
                weights[task.pool] += task.slots
    # A commit before a crash was not checked. The pools that it changed are detected here.
    changed = {name for name in counting if tables.weighed.get(name) != tables.pools[name]}
    changed |= {row.name for row in batch.pools}
    tables.weighed = dict(tables.pools)
    for name in counting - changed:
        now, before, limit = weights[name], tables.weights[name], tables.pools[name].slots
        if now > max(before, limit) + begun[name]:
            raise Broken("I4 limits", f"pool {name} grew from {before} to {now} of {limit}")
    tables.weights = weights


def _begun_claims(node: Any, batch: Batch, starts: list[StartTry]) -> Counter[str]:
    """Return the weight of earlier claims that began in a batch.

    Also check that no new claim is made in a pool that counts deferred tasks.
    """
    begun: Counter[str] = Counter()
    granted = {effect.start.task_no for effect in starts}
    for task_no in {no for no, state in batch.steps if state is TaskState.RUNNING} - granted:
        row = node.tables.tasks[task_no]
        task = node.tables.spec_of_run(row.run_no).tasks[row.task_index]
        begun[task.pool] += task.slots
    for effect, task in zip(starts, _tasks(node, starts), strict=True):
        pool = node.tables.pools.get(task.pool)
        if effect.claimed and pool is not None and pool.include_deferred:
            raise Broken("I4 limits", f"{task.task_id} is claimed in pool {task.pool}")
    return begun


def _weighs(node: Any, row: TaskRow, task: TaskSpec) -> bool:
    if row.state is TaskState.RUNNING:
        return not _has_lost_its_place(node, row)
    if row.state is TaskState.DEFERRED:
        return True
    if row.started_at is None:  # an interrupted try asks for its slots again
        return False
    if node.tables.runs[row.run_no].quarantine is not None:  # it does not continue
        return False
    if task.sensor is None:  # an operator's stream outlives its tries
        return row.state is TaskState.QUEUED
    return row.state in {TaskState.QUEUED, TaskState.SENSING} and any(
        found.task_no == row.task_no and found.ordinal < 0 and found.state is TriggerState.FIRED
        for found in node.tables.triggers.values()
    )


def _run_limits(spec: Any, run_no: int, rows: list[TaskRow]) -> None:
    if spec.max_active_tasks is not None and len(rows) > spec.max_active_tasks:
        raise Broken("I4 limits", f"run {run_no}: {len(rows)} of {spec.max_active_tasks} tasks run")
    for task_index, count in Counter(row.task_index for row in rows).items():
        at_once = spec.tasks[task_index].max_active_tis_per_dagrun
        if at_once is not None and count > at_once:
            raise Broken("I4 limits", f"run {run_no}: {count} of {at_once} at {task_index} run")


def _limits_over_runs(node: Any, by_run: dict[int, list[TaskRow]]) -> None:
    """Check the limits of tasks over all runs of a DAG.

    Versions may have different limits. The tasks of all of them are counted together, against the
    highest one.
    """
    running: Counter[tuple[str, str]] = Counter()
    limits: Counter[tuple[str, str]] = Counter()
    for run_no, rows in by_run.items():
        spec = node.tables.spec_of_run(run_no)
        for task in (spec.tasks[row.task_index] for row in rows):
            if task.max_active_tis_per_dag is not None:
                key = spec.dag_id, task.task_id
                running[key] += 1
                limits[key] = max(limits[key], task.max_active_tis_per_dag)
    for key, count in running.items():
        if count > limits[key]:
            raise Broken("I4 limits", f"{count} of {limits[key]} of {key} run in all runs")


def _windows(node: Any, run_no: int) -> None:
    rows = node.tables.tasks_of(run_no)
    begun = (row for row in rows if TaskState.PENDING < row.state < TaskState.SUCCESS)
    open_rows = Counter(row.task_index for row in begun if row.map_index >= 0)
    for task_index, count in open_rows.items():
        window = node.tables.spec_of_run(run_no).tasks[task_index].window
        if window is not None and count > window:
            raise Broken(
                "I4 limits", f"run {run_no}: {count} children of {task_index}, not {window}"
            )


def _active_runs(node: Any) -> None:
    """Check the number of active runs: a run begins under the limit of its own version.

    Only a run that all later runs of its DAG wait for may begin beyond the limit. Quarantined runs
    do not count.
    """
    beyond, runs = node.tables.beyond, node.tables.runs
    candidates = defaultdict(list)
    task = [no for no in node.tables.live_run_nos() if runs[no].quarantine is None]
    for run_no in sorted(node.tables.may_be_beyond & set(task) - beyond):
        candidates[node.tables.runs[run_no].dag_id].append(run_no)
    active: Counter[str] = Counter()
    limits: Counter[str] = Counter()
    for run_no in task:
        if node.tables.runs[run_no].backfill is not None:
            continue  # they have their own limit
        dag_id = node.tables.runs[run_no].dag_id
        active[dag_id] += 1
        limits[dag_id] = max(limits[dag_id], node.tables.spec_of_run(run_no).max_active_runs)
    beyond &= set(task)
    for dag_id, count in active.items():
        count -= sum(node.tables.runs[run_no].dag_id == dag_id for run_no in beyond)
        limit = limits[dag_id]
        while count > limit and candidates[dag_id]:
            beyond.add(candidates[dag_id].pop())
            count -= 1
        if count > limit:
            raise Broken("I4 limits", f"{count} of {limit} runs of {dag_id} are active")


def _has_lost_its_place(node: Any, row: TaskRow) -> bool:
    """Return whether the task's process has ended, although the row still says that it runs.

    The report of the end was refused, and the run is quarantined.
    """
    if node.tables.runs[row.run_no].quarantine is None:
        return False
    task = node.memory.active_tasks.get(row.task_no)
    return task is not None and task.worker < 0 and not task.is_hosted


def _tasks(node: Any, starts: Iterable[StartTry]) -> Iterator[TaskSpec]:
    for effect in starts:
        yield node.tables.spec_of_run(effect.start.run_no).tasks[effect.start.task_index]


def _is_hosted_sensor(task: TaskSpec) -> bool:
    return task.sensor is not None and task.body is Body.COROUTINE
