"""Joined lists, mapped tasks over mapped tasks and mapped groups: drawn, and evaluated separately.

The instances that a child depends on are found by joining Python lists instead of counting.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from aioflow.model.dag import DagSpec, Join, MapSource, MapSpec, TaskSpec
from aioflow.model.states import TaskState, TriggerRule
from tests.sim import oracle, waiting
from tests.sim.broken import Broken

__all__ = ("expected_width", "hold", "indexed", "leaves", "with_joins")

Taken: TypeAlias = frozenset[tuple[int, int]]
"""Inputs of one child as ``(task_index, index)``; -1 stands for a list in the DAG file."""

_MOST = 20
_JOINS: tuple[Join, ...] = ("zip", "zip_longest", "concat")


def with_joins(spec: DagSpec, rng: random.Random) -> DagSpec:
    """Return the DAG with added tasks that expand over other mapped tasks, or over joined lists."""
    tasks = list(spec.tasks)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _add(tasks, rng)
    if rng.random() < 0.4:
        _add_group(tasks, rng)
    return msgspec.structs.replace(spec, tasks=tuple(tasks))


def _add(tasks: list[TaskSpec], rng: random.Random) -> None:
    """Add a task that expands over an existing or new mapped task, alone or joined with others."""
    mapped = [p for p, task in enumerate(tasks) if task.mapped is not None]
    if not mapped or rng.random() < 0.3:
        literal = MapSpec((MapSource("x", -1, rng.choice((1, 2, 3, 5))),))
        tasks.append(_task(tasks, (), literal, rng))
        mapped.append(len(tasks) - 1)
    sources = [_source("x", tasks, mapped, rng)]
    if rng.random() < 0.2:
        sources.append(MapSource("y", -1, rng.choice((0, 1, 2))))
    others = rng.sample(range(len(tasks)), min(len(tasks), rng.choice((0, 0, 1, 2))))
    tasks.append(_task(tasks, others, MapSpec(tuple(sources)), rng))
    if rng.random() < 0.5:  # a task that depends on all of them
        tasks.append(_task(tasks, (len(tasks) - 1,), None, rng))


def _source(
    name: str, tasks: list[TaskSpec], mapped: list[int], rng: random.Random, depth: int = 0
) -> MapSource:
    if depth < 2 and rng.random() < 0.4:
        join = rng.choice(_JOINS)
        parts = tuple(_source("", tasks, mapped, rng, depth + 1) for _ in range(2))
        return MapSource(name, -1, -1, join, parts)
    if depth and rng.random() < 0.3:
        return MapSource(name, -1, rng.choice((0, 1, 2, 4)))
    lists = [p for p, t in enumerate(tasks) if t.mapped is None and t.feeds_limit and not t.streams]
    if lists and rng.random() < 0.2:
        return MapSource(name, rng.choice(lists), -1)
    return MapSource(name, rng.choice(mapped[-3:]), -1)


def _add_group(tasks: list[TaskSpec], rng: random.Random) -> None:
    """Add a group: tasks that share one source and depend on each other."""
    first, size = len(tasks), rng.choice((2, 3, 4))
    mapped = [p for p, task in enumerate(tasks) if task.mapped is not None]
    source = MapSource("x", -1, rng.choice((1, 2, 4)))
    if mapped and rng.random() < 0.6:
        source = _source("x", tasks, mapped, rng)
    makers = [leaf.task_index for leaf in leaves(source) if leaf.task_index >= 0]
    group = range(first, first + size)
    for task_index in group:
        inner = [p for p in range(first, task_index) if rng.random() < 0.5]
        along = tuple(p for p in group if p != task_index)
        outer = rng.sample(range(first), min(first, rng.choice((0, 0, 1))))
        parents = (*inner, *outer, *(() if inner else makers))
        task = _task(tasks, parents, MapSpec((source,), along), rng)
        is_setup = not inner and rng.random() < 0.2
        tasks.append(msgspec.structs.replace(task, is_setup=is_setup))
    tasks.append(_task(tasks, (first + size - 1,), None, rng))


def _task(
    tasks: list[TaskSpec], others: Sequence[int], mapped: MapSpec | None, rng: random.Random
) -> TaskSpec:
    """Return a task that resembles the others and expands over the given sources."""
    made = (
        []
        if mapped is None or mapped.along
        else [
            leaf.task_index
            for source in mapped.sources
            for leaf in leaves(source)
            if leaf.task_index >= 0
        ]
    )
    like = rng.choice(tasks)
    return TaskSpec(
        task_id=f"t{len(tasks)}",
        body=like.body,
        parents=tuple(sorted({*others, *made})),
        rule=rng.choice((*[TriggerRule.ALL_SUCCESS] * 4, TriggerRule.ALL_DONE, *TriggerRule)),
        min_success=rng.choice((*[None] * 9, 0.5)),
        retry=like.retry,
        pool=like.pool,
        slots=like.slots,
        mapped=mapped,
        map_limit=_MOST if mapped is not None else 50_000,
        window=rng.choice((None, None, 1, 3)) if mapped is not None else None,
        execution_timeout_us=like.execution_timeout_us,
        max_active_tis_per_dagrun=rng.choice((None, None, None, 2)),
    )


# ── inputs of a child ───────────────────────────────────────────────────────────────────


def leaves(source: MapSource) -> Iterator[MapSource]:
    """Yield the elementary lists that a source consists of."""
    if not source.join:
        yield source
    for part in source.parts:
        yield from leaves(part)


def _makers(task: TaskSpec) -> list[int]:
    sources = () if task.mapped is None else task.mapped.sources
    return [
        leaf.task_index for source in sources for leaf in leaves(source) if leaf.task_index >= 0
    ]


@oracle.per_dag
def indexed(spec: DagSpec, task_index: int) -> set[int]:
    """Return the mapped tasks on whose children this task's children depend."""
    task = spec.tasks[task_index]
    if task.mapped is None:
        return set()
    over = {maker for maker in _makers(task) if spec.tasks[maker].mapped is not None}
    return over | {p for p in oracle.above(spec, task_index) if p in task.mapped.along}


def _width_of(node: Any, run_no: int, task_index: int) -> int | None:
    """Return how many items a task has produced, from its rows; ``None`` until that is final."""
    tables = node.tables
    if tables.spec_of_run(run_no).tasks[task_index].mapped is not None:
        row = tables.expansions.get((run_no, task_index))
        return None if row is None or row.is_open else int(row.width)
    result = tables.results.get(tables.runs[run_no].first_task_no + task_index)
    return None if result is None else result.width


def _children(node: Any, run_no: int, mapped: MapSpec) -> list[Taken] | None:
    """Return the inputs of each child, or ``None`` while they are not known."""
    if mapped.until >= 0:
        row = node.tables.expansions.get((run_no, mapped.until))
        return [frozenset()] * (1 if row is None else row.width)
    sources = []
    for source in mapped.sources:
        items = _items(node, run_no, source)
        if items is None:
            return None
        sources.append(items)
    return [frozenset().union(*parts) for parts in itertools.product(*sources)]


def _items(node: Any, run_no: int, source: MapSource) -> list[Taken] | None:
    if not source.join:
        width = source.width
        if source.task_index >= 0:
            known = _width_of(node, run_no, source.task_index)
            if known is None:
                return None
            width = known
        return [frozenset({(source.task_index, index)}) for index in range(width)]
    parts = [_items(node, run_no, part) for part in source.parts]
    lists = [part for part in parts if part is not None]
    if len(lists) < len(parts):
        return None
    if source.join == "concat":
        return list(itertools.chain(*lists))
    if source.join == "zip":
        return [frozenset().union(*row) for row in zip(*lists, strict=False)]
    longest = itertools.zip_longest(*lists, fillvalue=frozenset())
    return [frozenset().union(*row) for row in longest]


def expected_width(node: Any, run_no: int, mapped: MapSpec) -> int | None:
    """Return the expected number of children."""
    children = _children(node, run_no, mapped)
    return None if children is None else len(children)


# ── invariants ──────────────────────────────────────────────────────────────────────────


def hold(
    node: Any,
    run_no: int,
    task_index: int,
    rows: Sequence[Any],
    ends: Sequence[Sequence[TaskState]],
) -> None:
    """I13: check a task whose children depend on the children of other tasks."""
    spec: DagSpec = node.tables.spec_of_run(run_no)
    along = indexed(spec, task_index)
    if (run_no, task_index) not in node.tables.widths:
        _whole(node, run_no, task_index, rows, ends, along)
        return
    mapped = spec.tasks[task_index].mapped
    assert mapped is not None
    children = _children(node, run_no, mapped)
    assert children is not None
    by_index = {row.map_index: row for row in rows}
    memory = node.memory.runs.get(run_no)
    one_to_one = None if memory is None else memory.groups[task_index].one_to_one
    evaluated = len(children) if one_to_one is None else one_to_one.evaluated
    of = {p: _by_index(node, run_no, p) for p in along}
    for index, taken in enumerate(children):
        mine = {p: _states_of(of[p], p, index, taken, ends, mapped) for p in along}
        seen = [mine.get(p, list(states)) for p, states in enumerate(ends)]
        items = [state for p in along if p in _makers(spec.tasks[task_index]) for state in mine[p]]
        row = by_index.get(index)
        if row is None and index >= evaluated:
            continue  # not evaluated in its turn, which was full
        if row is not None and waiting.is_overdue(row):
            continue
        _child(f"run {run_no}, task {task_index}[{index}]", spec, task_index, row, seen, items)


def _by_index(node: Any, run_no: int, task_index: int) -> dict[int, TaskState] | None:
    if (run_no, task_index) not in node.tables.widths:
        return None
    rows = node.tables.tasks_of(run_no)
    return {row.map_index: row.state for row in rows if row.task_index == task_index}


def _states_of(
    of: dict[int, TaskState] | None,
    parent: int,
    index: int,
    taken: Taken,
    ends: Sequence[Sequence[TaskState]],
    mapped: MapSpec,
) -> list[TaskState]:
    if of is None:
        return list(ends[parent])
    if parent in mapped.along:
        return [of.get(index, TaskState.PENDING)]
    return [of.get(number, TaskState.PENDING) for p, number in sorted(taken) if p == parent]


def _child(
    where: str,
    spec: DagSpec,
    task_index: int,
    row: Any,
    seen: list[list[TaskState]],
    items: list[TaskState],
) -> None:
    said = oracle.judge_task(spec, task_index, seen)
    if row is None:
        if said in {"skip", "fail"}:
            raise Broken("I13 rules", f"{where} should {said}, nothing came of it")
        return
    if row.try_number:
        if said != "run" or any(state.is_live for state in items):
            raise Broken("I13 rules", f"{where} started, the oracle says {said}, items {items}")
        return
    expected = {TaskState.SKIPPED: "skip", TaskState.UPSTREAM_FAILED: "fail"}[row.state]
    was_skipped_first = row.state is TaskState.SKIPPED and said == "fail"
    if said != expected and not was_skipped_first:
        raise Broken("I13 rules", f"{where} is {row.state.label}, the oracle says {said}")


def _whole(
    node: Any,
    run_no: int,
    task_index: int,
    rows: Sequence[Any],
    ends: Sequence[Sequence[TaskState]],
    along: set[int],
) -> None:
    """Check a task before its expansion. Only parents without matching children are decisive."""
    spec: DagSpec = node.tables.spec_of_run(run_no)
    expanded = {p for p in along if (run_no, p) in node.tables.widths}
    seen = [[TaskState.PENDING] if p in expanded else s for p, s in enumerate(ends)]
    said = oracle.judge_task(spec, task_index, seen)
    where = f"run {run_no}, task {task_index} as a whole"
    mapped = spec.tasks[task_index].mapped
    assert mapped is not None
    if rows:
        verdicts = {TaskState.SKIPPED: "skip", TaskState.UPSTREAM_FAILED: "fail"}
        is_empty = said in {"run", "wait"}  # nothing to expand over, or too much
        was_skipped_first = rows[0].state is TaskState.SKIPPED and said == "fail"
        if verdicts.get(rows[0].state) != said and not is_empty and not was_skipped_first:
            raise Broken("I13 rules", f"{where} is {rows[0].state.label}, not {said}")
        return
    others = [
        s
        for p, states in enumerate(seen)
        if p in spec.tasks[task_index].parents and p not in along
        for s in states
    ]
    open_too = any(state.is_live for state in others)
    may_open = _children(node, run_no, mapped) is not None and all(
        _width_of(node, run_no, p) is not None
        or not any(s.is_live for s in ends[p])
        or (p in mapped.along and p in expanded)
        for p in along
    )
    early = spec.tasks[task_index].rule is TriggerRule.ALWAYS and not any(
        s >= TaskState.SUCCESS for p in spec.tasks[task_index].parents for s in ends[p]
    )
    if said in {"skip", "fail"} or (may_open and said == "run" and not early and not open_too):
        raise Broken("I13 rules", f"{where} should {said}, nothing came of it")
