"""An oracle for the outcome of tasks and runs, independent of the code in ``core``.

Trigger rules are evaluated over the list of the parents' states, not over counts. The outcome of a
run is evaluated over the final states of its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, wraps
from math import ceil
from typing import TypeVar

from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.states import RunState, TaskState, TriggerRule

__all__ = ("above", "judge", "judge_task", "outcome", "per_dag")

_S, _F, _U, _K = (
    TaskState.SUCCESS,
    TaskState.FAILED,
    TaskState.UPSTREAM_FAILED,
    TaskState.SKIPPED,
)
_R = TriggerRule

T = TypeVar("T")
_MOST = 10_000


def per_dag(function: Callable[[DagSpec, int], T]) -> Callable[[DagSpec, int], T]:
    """Cache a function whose result depends only on a DAG and a task index in it.

    DAGs are compared by identity, because comparing their contents would take longer than computing
    most results.
    """
    known: dict[tuple[int, int], tuple[DagSpec, T]] = {}

    @wraps(function)
    def remembered(spec: DagSpec, task_index: int) -> T:
        found = known.get((id(spec), task_index))
        if found is None or found[0] is not spec:
            if len(known) >= _MOST:
                known.clear()
            found = known[id(spec), task_index] = (spec, function(spec, task_index))
        return found[1]

    return remembered


def judge_task(spec: DagSpec, task_index: int, ends: Sequence[Sequence[TaskState]]) -> str:
    """Return the decision that follows from all conditions on a task's parents.

    Args:
        ends: For every task of the DAG, the states of its instances.
    """
    task = spec.tasks[task_index]
    grouped = {parent for group in task.groups for parent in group.parents}
    alone = [parent for parent in task.parents if parent not in grouped]
    said = [_asked(spec, group.rule, group.parents, ends) for group in task.groups]
    if alone and task.min_success is not None:
        said.append(_share(task.min_success, _states(alone, ends)))
    elif alone:
        said.append(_asked(spec, task.rule, alone, ends))
    if task.rule is not _R.ALWAYS:
        needed = [setup for setup in _setups_over(spec, task_index) if setup not in task.parents]
        said.append(_share(1.0, _states(needed, ends)))
    if task.is_teardown:
        said.append(judge(_R.ALL_DONE, _states(_between(spec, task_index), ends)))
    for answer in ("fail", "wait", "skip"):
        if answer in said:
            return answer
    return "run"


def _asked(
    spec: DagSpec, rule: TriggerRule, parents: Sequence[int], ends: Sequence[Sequence[TaskState]]
) -> str:
    states = _states(parents, ends)
    setups = [_whole(ends[p]) for p in parents if spec.tasks[p].is_setup]
    if rule is not _R.ALL_DONE_SETUP_SUCCESS or not setups or _S in setups:
        return judge(rule, states)
    if any(state < TaskState.SUCCESS for state in states):
        return "wait"
    return "skip" if set(setups) == {_K} else "fail"


def _whole(instances: Sequence[TaskState]) -> TaskState:
    """Return the combined state of the children of a mapped task."""
    for state in (_F, TaskState.CANCELLED, _U):
        if state in instances:
            return state
    return _S if _S in instances else _K


def _share(least: float, states: Sequence[TaskState]) -> str:
    counted: list[TaskState] = [state for state in states if state is not TaskState.REMOVED]
    needed = ceil(_exactly(least) * len(counted))
    bad = sum(state in {_F, _U, TaskState.CANCELLED} for state in counted)
    if any(state < TaskState.SUCCESS for state in counted):
        return "wait"
    if sum(state is _S for state in counted) >= needed:
        return "run"
    return "fail" if bad else "skip"


@cache
def _exactly(share: float) -> Fraction:
    return Fraction(share).limit_denominator(10**6)


def _states(task_indexes: Sequence[int], ends: Sequence[Sequence[TaskState]]) -> list[TaskState]:
    return [state for task_index in task_indexes for state in ends[task_index]]


@per_dag
def above(spec: DagSpec, task_index: int) -> set[int]:
    """Return all ancestors of a task."""
    found: set[int] = set()
    agenda = list(spec.tasks[task_index].parents)
    while agenda:
        parent = agenda.pop()
        if parent not in found:
            found.add(parent)
            agenda.extend(spec.tasks[parent].parents)
    return found


@per_dag
def _setups_over(spec: DagSpec, task_index: int) -> list[int]:
    """Return the setups whose scope includes the task."""
    found = []
    for setup in sorted(p for p in above(spec, task_index) if spec.tasks[p].is_setup):
        teardowns = _teardowns_of(spec, setup)
        before = any(task_index in above(spec, teardown) for teardown in teardowns)
        if (before or not teardowns) and task_index not in teardowns:
            found.append(setup)
    return found


def _teardowns_of(spec: DagSpec, setup: int) -> list[int]:
    return [t for t, task in enumerate(spec.tasks) if task.is_teardown and setup in task.parents]


@per_dag
def _between(spec: DagSpec, teardown: int) -> list[int]:
    """Return the tasks that lie between a setup of this teardown and the teardown."""
    before = above(spec, teardown)
    setups = [p for p in spec.tasks[teardown].parents if spec.tasks[p].is_setup]
    return [p for p in sorted(before) if any(setup in above(spec, p) for setup in setups)]


def judge(rule: TriggerRule, parents: Sequence[TaskState]) -> str:
    """Return ``run``, ``skip``, ``fail`` or ``wait`` for parents in these states."""
    states = [_F if state is TaskState.CANCELLED else state for state in parents]
    done = all(state >= TaskState.SUCCESS for state in states)
    good, bad = states.count(_S), states.count(_F)
    blocked, skipped = states.count(_U), states.count(_K)
    if not states or rule is _R.ALWAYS:
        return "run"
    early = _early(rule, good=good, bad=bad, blocked=blocked, skipped=skipped)
    if early is not None:
        return early
    if not done:
        return "wait"
    return _late(rule, good=good, skipped=skipped, count=len(states))


def _early(rule: TriggerRule, *, good: int, bad: int, blocked: int, skipped: int) -> str | None:
    """Return the decision that can be made before all parents have ended, if any."""
    match rule:
        case _R.ALL_SUCCESS if bad or blocked:
            return "fail"
        case _R.ALL_SUCCESS if skipped:
            return "skip"
        case _R.NONE_FAILED | _R.NONE_FAILED_MIN_ONE_SUCCESS if bad or blocked:
            return "fail"
        case _R.ALL_FAILED if good or skipped:
            return "skip"
        case _R.ALL_SKIPPED if good or bad or blocked:
            return "skip"
        case _R.ALL_DONE_MIN_ONE_SUCCESS | _R.NONE_SKIPPED if skipped:
            return "skip"
        case _R.ONE_SUCCESS if good:
            return "run"
        case _R.ONE_FAILED if bad or blocked:
            return "run"
        case _R.ONE_DONE if good or bad:
            return "run"
        case _:
            return None


def _late(rule: TriggerRule, *, good: int, skipped: int, count: int) -> str:
    """Return the decision once all parents have ended."""
    match rule:
        case _R.ONE_FAILED | _R.ONE_DONE:
            return "skip"
        case _R.ONE_SUCCESS:
            return "skip" if skipped == count else "fail"
        case _R.NONE_FAILED_MIN_ONE_SUCCESS if not good:
            return "skip" if skipped == count else "fail"
        case _R.ALL_DONE_MIN_ONE_SUCCESS if not good:
            return "fail"
        case _:
            return "run"


def outcome(spec: DagSpec, states: Sequence[TaskState]) -> RunState:
    """Return the outcome of a run whose tasks ended in these states."""
    bad = {_F, _U, TaskState.CANCELLED}
    heeded = [not task.is_teardown or task.fails_run for task in spec.tasks]
    children: list[list[int]] = [[] for _ in spec.tasks]
    for task_index, task in enumerate(spec.tasks):
        for parent in task.parents:
            children[parent].append(task_index)
    for task_index, state in enumerate(states):
        is_leaf = heeded[task_index] and not any(heeded[child] for child in children[task_index])
        if is_leaf and state in bad:
            return RunState.FAILED
    for task_index, state in enumerate(states):
        if state is not _F or not heeded[task_index]:
            continue
        if not any(_wants_failure(spec.tasks[child], task_index) for child in children[task_index]):
            return RunState.PARTIAL
    return RunState.SUCCESS


def _wants_failure(task: TaskSpec, parent: int) -> bool:
    wanted = {_R.ONE_SUCCESS, _R.ONE_DONE, _R.ONE_FAILED, _R.ALL_FAILED}
    rules = {group.rule for group in task.groups if parent in group.parents}
    if not rules and task.min_success is None:
        rules = {task.rule}
    return bool(rules & wanted)
