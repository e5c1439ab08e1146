"""Loops: how they are drawn into DAGs, and their invariant.

I20 of ``tests.sim.invariants``: a loop runs another iteration, with all of its tasks, exactly if
its deciding task requested it, and never beyond its limit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec

from aioflow.model.dag import Chooses, DagSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import TaskState, TriggerRule
from tests.sim.broken import Broken
from tests.sim.workload import POOLS, SECOND

__all__ = ("goes_on", "hold", "is_round", "whole", "with_loops")


def with_loops(spec: DagSpec, rng: random.Random) -> DagSpec:
    """Return the DAG with added loops, and with tasks that follow them."""
    tasks = list(spec.tasks)
    for _ in range(rng.choice((1, 1, 2))):
        _add_loop(tasks, rng)
    return msgspec.structs.replace(spec, tasks=tuple(tasks))


def _add_loop(tasks: list[TaskSpec], rng: random.Random) -> None:
    first, size = len(tasks), rng.choice((1, 2, 3, 4))
    decider, limit = first + size, rng.choice((1, 2, 3, 6))
    for task_index in range(first, decider):
        inner = [p for p in range(first, task_index) if rng.random() < 0.6]
        outer = rng.sample(range(first), min(first, rng.choice((0, 0, 1, 2))))
        task = _task(task_index, (*inner, *outer), rng, rng.choice(_RULES))
        is_setup = not inner and task_index < decider - 1 and rng.random() < 0.2
        tasks.append(msgspec.structs.replace(task, is_setup=is_setup))
    followed = {parent for task in tasks[first:] for parent in task.parents}
    tails = [p for p in range(first, decider) if p not in followed]
    rule = rng.choice((*[TriggerRule.ALL_SUCCESS] * 3, *TriggerRule))
    tasks.append(_task(decider, tails, rng, rule))
    if rng.random() < 0.3:
        _add_teardown(tasks, range(first, decider), rng)
    own = range(first, len(tasks))
    for task_index in own:
        along = tuple(other for other in own if other != task_index)
        tasks[task_index] = msgspec.structs.replace(
            tasks[task_index],
            mapped=MapSpec((MapSource("", -1, 1),), along, decider),
            map_limit=limit,
            chooses=Chooses.ROUNDS if task_index == decider else Chooses.NOTHING,
        )
    _add_takers(tasks, own, decider, rng)


def _add_teardown(tasks: list[TaskSpec], inside: range, rng: random.Random) -> None:
    """Add a teardown that no task of the loop waits for. Its setup may be outside the loop."""
    setups = [p for p, task in enumerate(tasks) if task.is_setup and p not in inside]
    setups = setups[-1:] + [p for p in inside if tasks[p].is_setup]
    if setups:
        teardown = _task(len(tasks), (*setups, *inside), rng, TriggerRule.ALL_DONE_SETUP_SUCCESS)
        tasks.append(msgspec.structs.replace(teardown, is_teardown=True))


def _add_takers(tasks: list[TaskSpec], own: range, decider: int, rng: random.Random) -> None:
    value = rng.choice(own)
    tasks.append(_task(len(tasks), (decider, value), rng, rng.choice(_RULES)))
    if rng.random() < 0.5:
        each = _task(len(tasks), (decider, value), rng, TriggerRule.ALL_SUCCESS)
        over = MapSpec((MapSource("x", value, -1),))
        tasks.append(msgspec.structs.replace(each, mapped=over, map_limit=20))


_RULES = (*[TriggerRule.ALL_SUCCESS] * 6, TriggerRule.ALL_DONE, *TriggerRule)


def _task(task_index: int, parents: Any, rng: random.Random, rule: TriggerRule) -> TaskSpec:
    return TaskSpec(
        task_id=f"t{task_index}",
        parents=tuple(sorted({*parents})),
        rule=rule,
        retry=RetryPolicy(tries=rng.randint(1, 4), delay_us=rng.choice((0, 30)) * SECOND),
        pool=rng.choice(POOLS),
        execution_timeout_us=rng.choice((None, None, 300 * SECOND)),
        max_active_tis_per_dagrun=rng.choice((None, None, 1)),
    )


def goes_on(spec: TaskSpec, rng: random.Random) -> bool:
    """Draw whether a deciding task requests another iteration."""
    return spec.chooses is Chooses.ROUNDS and rng.random() < 0.6


# ── invariant ───────────────────────────────────────────────────────────────────────────


def is_round(spec: DagSpec, task_index: int) -> bool:
    """Return whether the map indexes of a task are iterations."""
    mapped = spec.tasks[task_index].mapped
    return mapped is not None and mapped.until >= 0


def whole(node: Any, run_no: int, task_index: int) -> TaskState | None:
    """Return the state of a loop task as a whole, from its rows; ``None`` before it has begun."""
    row = node.tables.expansions.get((run_no, task_index))
    if row is None:
        return None
    if row.is_open:
        return TaskState.PENDING
    states = [_state(node, row.first_task_no + index) for index in range(row.width)]
    if any(state.is_live for state in states):
        return TaskState.PENDING
    return states[-1]


def _state(node: Any, task_no: int) -> TaskState:
    row = node.tables.tasks.get(task_no)
    return TaskState.PENDING if row is None else row.state


def hold(node: Any, turn: Any) -> None:
    """Check all invariants of loops that a commit may have broken."""
    tables = node.tables
    for run_no in turn.run_nos:
        spec = tables.spec_of_run(run_no)
        for decider, task in enumerate(spec.tasks):
            if task.chooses is Chooses.ROUNDS and is_round(spec, decider):
                _rounds_go_together(node, run_no, decider)
                _rounds_were_asked_for(node, run_no, decider)


def _rows(node: Any, run_no: int, decider: int) -> Iterator[Any]:
    mapped = node.tables.spec_of_run(run_no).tasks[decider].mapped
    for task_index in (decider, *mapped.along):
        row = node.tables.expansions.get((run_no, task_index))
        if row is not None:
            yield row


def _rounds_go_together(node: Any, run_no: int, decider: int) -> None:
    rows = list(_rows(node, run_no, decider))
    if len({(row.width, row.is_open) for row in rows}) > 1:
        raise Broken("I20 rounds", f"one loop, and it is {rows}")
    limit = node.tables.spec_of_run(run_no).tasks[decider].map_limit
    if any(row.width > limit for row in rows):
        raise Broken("I20 rounds", f"{rows[0]} goes round further than {limit} times")


def _rounds_were_asked_for(node: Any, run_no: int, decider: int) -> None:
    tables = node.tables
    row = tables.expansions.get((run_no, decider))
    if row is None or tables.is_held(run_no) or tables.is_clearing(run_no):
        return
    ends = [tables.tasks.get(row.first_task_no + index) for index in range(row.width)]
    for index, end in enumerate(ends[:-1]):
        if end is None or (end.task_no, end.start_no) not in node.ledger.again:
            raise Broken("I20 rounds", f"round {index + 1} follows {end}, who did not ask for it")
    last = ends[-1]
    has_ended = last is not None and not last.state.is_live
    if has_ended and row.is_open and tables.runs[run_no].state.is_live:
        raise Broken("I20 rounds", f"{row} is open, and {last} has ended")
    if last is None or last.state is not TaskState.SUCCESS:
        return
    if (last.task_no, last.start_no) in node.ledger.again:
        raise Broken("I20 rounds", f"{last} asked for another round, and there is none")
