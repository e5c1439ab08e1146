"""Unusual DAGs, drawn from the seed, with every rule, retry, limit, expansion and kind of body."""

from __future__ import annotations

import random

import msgspec

from aioflow.model.dag import (
    Body,
    DagSpec,
    EdgeGroup,
    MapSource,
    MapSpec,
    RetryPolicy,
    ScheduleSpec,
    SensorSpec,
    StartTriggerSpec,
    TaskSpec,
)
from aioflow.model.states import TriggerRule

__all__ = ("COUNTING", "POOLS", "SECOND", "make_dag", "make_dags", "without")

SECOND = 1_000_000
POOLS = ("default", "narrow", "wide")
COUNTING = "narrow"
"""The pool that may count deferred tasks."""

WIDEST = 20


def make_dags(rng: random.Random) -> list[DagSpec]:
    """Return one to three DAGs."""
    return [make_dag(f"dag{number}", rng) for number in range(rng.randint(1, 3))]


def without(spec: DagSpec, task_index: int) -> DagSpec:
    """Return the DAG without one task. The tasks after it run without its result."""

    def moved(parents: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(p - (p > task_index) for p in parents if p != task_index)

    tasks = []
    for number, task in enumerate(spec.tasks):
        if number == task_index:
            continue
        mapped = task.mapped
        if mapped is not None:
            sources, until = _without(mapped.sources, task_index), mapped.until
            is_undecided = until == task_index  # what was a loop is none
            along, until = moved(mapped.along), until - (until > task_index)
            mapped = MapSpec(sources, along, until) if sources and not is_undecided else None
        tasks.append(
            msgspec.structs.replace(
                task,
                parents=moved(task.parents),
                argument_parents=moved(task.argument_parents),
                groups=tuple(
                    EdgeGroup(moved(group.parents), group.rule)
                    for group in task.groups
                    if moved(group.parents)
                ),
                mapped=mapped,
            )
        )
    return msgspec.structs.replace(spec, tasks=tuple(tasks))


def _without(sources: tuple[MapSource, ...], task_index: int) -> tuple[MapSource, ...]:
    retained = []
    for source in sources:
        if source.join:
            parts = _without(source.parts, task_index)
            if parts:
                retained.append(MapSource(source.parameter, -1, -1, source.join, parts))
        elif source.task_index != task_index:
            place = source.task_index - (source.task_index > task_index)
            retained.append(MapSource(source.parameter, place, source.width))
    return tuple(retained)


def make_dag(dag_id: str, rng: random.Random) -> DagSpec:
    """Return a DAG of up to 30 tasks."""
    size = rng.choice((1, 2, 3, 5, 8, 12, 30))
    tasks: list[TaskSpec] = []
    for task_index in range(size):
        count = min(task_index, rng.choice((0, 1, 1, 2, 3, 5)))
        parents = tuple(sorted(rng.sample(range(task_index), count)))
        tasks.append(_task(task_index, parents, tasks, rng))
    schedule = None
    if rng.random() < 0.25:
        schedule = _schedule(rng.choice((600, 3600)) * SECOND, kind=size)
    catchup = rng.random() < 0.5
    return DagSpec(
        dag_id=dag_id,
        file=f"{dag_id}.py",
        tasks=tuple(tasks),
        schedule=schedule,
        catchup=catchup,
        skips_missed=not catchup and size % 3 == 0,
        max_active_runs=rng.choice((1, 2, 16)),
        max_active_tasks=rng.choice((None, None, 1, 2, 4)),
        run_timeout_us=rng.choice((None, None, None, 60 * SECOND, 3600 * SECOND)),
        deadline_us=rng.choice((None, None, SECOND, 900 * SECOND)),
        if_paused="stop" if schedule is None and len(tasks) % 2 else "stay",
    )


def _schedule(length_us: int, *, kind: int) -> ScheduleSpec:
    """Return a schedule of the given kind, with about this much time between fire times."""
    every = ScheduleSpec(every_us=length_us)
    match kind:
        case 2:
            return ScheduleSpec(gap_us=length_us)
        case 3:
            return ScheduleSpec(every_us=length_us, jitter_us=length_us // 2)
        case 5:
            return ScheduleSpec(parts=(every, ScheduleSpec(cron="*/15 * * * *")))
        case 8:
            return ScheduleSpec(cron="30 */10 * * * *")
        case _:
            return every


def _task(
    task_index: int, parents: tuple[int, ...], tasks: list[TaskSpec], rng: random.Random
) -> TaskSpec:
    body = rng.choice(list(Body))
    sensor = None
    if rng.random() < 0.15:
        sensor = SensorSpec(
            interval_us=rng.choice((1, 60)) * SECOND,
            timeout_us=rng.choice((5, 120, 3600)) * SECOND,
            backoff=rng.choice((1.0, 2.0)),
            on_timeout=rng.choice(("fail", "skip")),
            on_error=rng.choice(("retry", "retry", "skip", "ignore")),
        )
    mapped, map_limit, taken = None, 50_000, tuple(p for p in parents if rng.random() < 0.5)
    if sensor is None and rng.random() < 0.3:
        mapped, map_limit, taken = _expansion(parents, taken, tasks, rng)
    start_trigger = None
    if sensor is None and rng.random() < 0.15:
        start_trigger = StartTriggerSpec(
            class_path="sim:Trigger",
            next_method=rng.choice(("", "resume")),
            timeout_us=rng.choice((None, 2 * SECOND, 900 * SECOND)),
        )
    pool = rng.choice(POOLS)
    setups = [p for p in parents if tasks[p].is_setup]
    is_teardown = bool(setups) and rng.random() < 0.6
    rule = rng.choice((TriggerRule.ALL_SUCCESS, rng.choice(list(TriggerRule))))
    return TaskSpec(
        task_id=f"t{task_index}",
        body=body,
        parents=parents,
        argument_parents=taken,
        rule=TriggerRule.ALL_DONE_SETUP_SUCCESS if is_teardown else rule,
        min_success=None if is_teardown else rng.choice((*[None] * 9, 0.0, 0.5, 0.95, 1.0)),
        groups=_groups(parents, rng) if rng.random() < 0.15 else (),
        is_setup=mapped is None and rng.random() < 0.15,
        is_teardown=is_teardown,
        fails_run=is_teardown and rng.random() < 0.3,
        retry=RetryPolicy(
            tries=rng.randint(1, 4),
            delay_us=rng.choice((0, 1, 30, 200)) * SECOND,
            factor=rng.choice((1.0, 2.0)),
            max_delay_us=rng.choice((None, 100 * SECOND)),
            jitter=rng.random() < 0.5,
        ),
        pool=pool,
        slots=1 if pool == "default" else rng.choice((1, 1, 2)),
        priority=rng.choice((0, 0, 1, 5)),
        mapped=mapped,
        map_limit=map_limit,
        window=rng.choice((None, 1, 3)) if mapped else None,
        sensor=sensor,
        deadline_us=rng.choice((*[None] * 9, SECOND, 60 * SECOND)),
        execution_timeout_us=rng.choice((None, 2 * SECOND, 300 * SECOND)),
        max_active_tis_per_dagrun=rng.choice((None, None, 1, 2)),
        max_active_tis_per_dag=rng.choice((None, None, None, 1, 2)),
        start_trigger=start_trigger,
    )


def _groups(parents: tuple[int, ...], rng: random.Random) -> tuple[EdgeGroup, ...]:
    """Draw edge groups for some of the parents. Some parents are in two groups."""
    groups = []
    for _ in range(rng.choice((1, 1, 2))):
        named = tuple(p for p in parents if rng.random() < 0.5)
        if named:
            groups.append(EdgeGroup(named, rng.choice(list(TriggerRule))))
    return tuple(dict.fromkeys(groups))


def _expansion(
    parents: tuple[int, ...], taken: tuple[int, ...], tasks: list[TaskSpec], rng: random.Random
) -> tuple[MapSpec | None, int, tuple[int, ...]]:
    """Draw an expansion over a literal, a parent's list or a product, possibly beyond limits."""
    map_limit = rng.choice((3, WIDEST, 50_000))
    lists = [p for p in parents if tasks[p].mapped is None and tasks[p].sensor is None]
    sources = []
    if lists and rng.random() < 0.7:
        parent = rng.choice(lists)
        fed = tasks[parent].feeds_limit
        limit = map_limit if fed is None else min(fed, map_limit)
        tasks[parent] = msgspec.structs.replace(tasks[parent], feeds_limit=limit)
        sources.append(MapSource("x", parent, -1))
        taken = tuple(sorted({*taken, parent}))
    if not sources or rng.random() < 0.2:
        sources.append(MapSource("y", -1, rng.randint(0, 4 if sources else WIDEST)))
    return MapSpec(tuple(sources)), map_limit, taken
