"""What must come of a task and a run, said a second time and in another way than ``core``.

Rules are judged over the list of the parents' states, not over counts; a run's outcome over
the final states of its tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.model import DagSpec, RunState, TaskState, TriggerRule

__all__ = ("judge", "outcome")

_S, _F, _U, _K = (
    TaskState.SUCCESS,
    TaskState.FAILED,
    TaskState.UPSTREAM_FAILED,
    TaskState.SKIPPED,
)
_R = TriggerRule


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
    """What can be said before all parents have ended."""
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
    """What is left to say once they have."""
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
    """Return how a run ends whose tasks ended like this."""
    bad = {_F, _U, TaskState.CANCELLED}
    children: list[list[int]] = [[] for _ in spec.tasks]
    for position, task in enumerate(spec.tasks):
        for parent in task.parents:
            children[parent].append(position)
    if any(states[p] in bad for p in range(len(states)) if not children[p]):
        return RunState.FAILED
    wanted = {_R.ONE_SUCCESS, _R.ONE_DONE, _R.ONE_FAILED, _R.ALL_FAILED}
    for position, state in enumerate(states):
        if state is _F and not any(spec.tasks[c].rule in wanted for c in children[position]):
            return RunState.PARTIAL
    return RunState.SUCCESS
