"""Trigger rules, which decide from the final states of the parents whether a task or child runs.

``decide`` takes counts and never visits parents. So the end of a parent costs one addition per
child, no matter how many parents there are. Every rule depends only on *which* states occur among
the parents, so a rule is stored as a table over the subsets of six states.

Each rule decides as early as it can. The verdicts RUN, UPSTREAM_FAILED and SKIP do not change as
further parents end, for every rule and in every order. The one exception is ``all_success``: a SKIP
turns into UPSTREAM_FAILED when a parent fails after another was skipped. A task that was skipped
early has ended, so it stays skipped, as in Airflow. Once all parents have ended, every rule has
decided.

``verdict`` evaluates the rules of one task of a run. It takes the counts of the parents from
tallies. Mapped parents whose children are followed index by index are an exception: of each of
them, only the instances that the child depends on are looked up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import TypeAlias

from aioflow.core.state.graph import TALLY, TALLY_OFFSET, Evaluated
from aioflow.core.state.task_instance import Run
from aioflow.core.tasks import stream_expand
from aioflow.core.tasks.expand import leaves, pick
from aioflow.model.states import TaskState, TriggerRule

__all__ = ("WHOLE", "Verdict", "decide", "decide_share", "parent_states", "together", "verdict")


class Verdict(Enum):
    """Decision of a rule for a task that has not started."""

    RUN = "run"
    WAIT = "wait"
    SKIP = "skip"
    UPSTREAM_FAILED = "upstream_failed"


# Module variables, because looking up a class attribute takes longer than the decision itself.
_RUN = Verdict.RUN
_WAIT = Verdict.WAIT
_SKIP = Verdict.SKIP
_UPSTREAM_FAILED = Verdict.UPSTREAM_FAILED
_SETUP_RULE = TriggerRule.ALL_DONE_SETUP_SUCCESS

# States that occur among the parents, one bit each. The last bit means that some have not ended.
_S, _F, _U, _K, _R, _UNFINISHED = (1 << bit for bit in range(6))


def decide(
    rule: TriggerRule,
    *,
    total: int,
    success: int,
    failed: int,
    upstream_failed: int,
    skipped: int,
    removed: int = 0,
    setup_success: int = 0,
    setup_total: int = 0,
    setup_skipped: int = 0,
) -> Verdict:
    """Return the verdict of ``rule`` for these counts of parents.

    Parents are counted by instance. A mapped parent counts once per mapped child. Until it is
    expanded, it counts as one instance that has not ended, so that no rule that needs all parents
    decides too early.

    ``cancelled`` counts as ``failed``. ``removed`` counts only as ended. Setups are counted with
    the other parents. Only ``all_done_setup_success`` also uses their separate counts; without
    setups it equals ``all_done``. Without parents every rule returns RUN.
    """
    if total == 0:
        return _RUN
    # No setup has succeeded, so it is not enough that all parents have ended.
    if rule is _SETUP_RULE and setup_total > 0 and not setup_success:
        if success + failed + upstream_failed + skipped + removed < total:
            return _WAIT
        return _SKIP if setup_skipped >= setup_total else _UPSTREAM_FAILED
    seen = 0
    if success:
        seen |= _S
    if failed:
        seen |= _F
    if upstream_failed:
        seen |= _U
    if skipped:
        seen |= _K
    if removed:
        seen |= _R
    if success + failed + upstream_failed + skipped + removed < total:
        seen |= _UNFINISHED
    return _TABLE[rule][seen]


def decide_share(
    least: float,
    *,
    total: int,
    success: int,
    failed: int,
    upstream_failed: int,
    skipped: int,
    removed: int = 0,
) -> Verdict:
    """Return the verdict of ``min_success=least``: RUN if all ended and this share succeeded.

    Removed instances are not counted. If the share is not reached, the task is upstream_failed if
    any instance is failed or upstream_failed; otherwise it is skipped. Nothing is decided early,
    because a parent that has not expanded counts as one instance and may become a million.
    """
    needed = math.ceil(least * (total - removed) - _ROUNDING)
    bad = failed + upstream_failed
    if success + bad + skipped + removed < total:
        return _WAIT
    if success >= needed:
        return _RUN
    return _UPSTREAM_FAILED if bad else _SKIP


_ROUNDING = 1e-9
"""Tolerance for rounding: 0.07 * 100 is slightly more than 7 in floating point."""


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Combine the verdicts for all groups of parents of one task.

    The task runs if the verdict for every group is RUN. A failure is final immediately. A skip
    waits for the other groups, so that the result does not depend on their order.
    """
    said = set(verdicts)
    for verdict in (_UPSTREAM_FAILED, _WAIT, _SKIP):
        if verdict in said:
            return verdict
    return _RUN


# ── rules, each a function of the states that occur among the parents ───────────────────


def _always(_seen: int) -> Verdict:
    return _RUN


def _all_success(seen: int) -> Verdict:
    if seen & (_F | _U):
        return _UPSTREAM_FAILED
    if seen & _K:
        return _SKIP
    return _at_the_end(seen, _RUN)


def _all_failed(seen: int) -> Verdict:
    return _SKIP if seen & (_S | _K) else _at_the_end(seen, _RUN)


def _all_skipped(seen: int) -> Verdict:
    return _SKIP if seen & (_S | _F | _U) else _at_the_end(seen, _RUN)


def _all_done(seen: int) -> Verdict:
    return _at_the_end(seen, _RUN)


def _all_done_min_one_success(seen: int) -> Verdict:
    if seen & _K:
        return _SKIP
    return _at_the_end(seen, _RUN if seen & _S else _UPSTREAM_FAILED)


def _one_success(seen: int) -> Verdict:
    if seen & _S:
        return _RUN
    return _at_the_end(seen, _SKIP if seen == _K else _UPSTREAM_FAILED)


def _one_failed(seen: int) -> Verdict:
    return _RUN if seen & (_F | _U) else _at_the_end(seen, _SKIP)


def _one_done(seen: int) -> Verdict:
    # A parent that did not run because of its own parents does not count as done.
    return _RUN if seen & (_S | _F) else _at_the_end(seen, _SKIP)


def _none_failed(seen: int) -> Verdict:
    return _UPSTREAM_FAILED if seen & (_F | _U) else _at_the_end(seen, _RUN)


def _none_failed_min_one_success(seen: int) -> Verdict:
    if seen & (_F | _U):
        return _UPSTREAM_FAILED
    if seen & _S:
        return _at_the_end(seen, _RUN)
    return _at_the_end(seen, _SKIP if seen == _K else _UPSTREAM_FAILED)


def _none_skipped(seen: int) -> Verdict:
    return _SKIP if seen & _K else _at_the_end(seen, _RUN)


def _at_the_end(seen: int, verdict: Verdict) -> Verdict:
    return _WAIT if seen & _UNFINISHED else verdict


_Rule: TypeAlias = Callable[[int], Verdict]
_RULES: Mapping[TriggerRule, _Rule] = {
    TriggerRule.ALL_SUCCESS: _all_success,
    TriggerRule.ALL_FAILED: _all_failed,
    TriggerRule.ALL_DONE: _all_done,
    TriggerRule.ALL_DONE_MIN_ONE_SUCCESS: _all_done_min_one_success,
    TriggerRule.ALL_DONE_SETUP_SUCCESS: _all_done,
    TriggerRule.ALL_SKIPPED: _all_skipped,
    TriggerRule.ONE_SUCCESS: _one_success,
    TriggerRule.ONE_FAILED: _one_failed,
    TriggerRule.ONE_DONE: _one_done,
    TriggerRule.NONE_FAILED: _none_failed,
    TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS: _none_failed_min_one_success,
    TriggerRule.NONE_SKIPPED: _none_skipped,
    TriggerRule.ALWAYS: _always,
}
_TABLE = {rule: tuple(map(evaluator, range(2 * _UNFINISHED))) for rule, evaluator in _RULES.items()}


WHOLE = -1
"""Map index of a task that is not mapped, or not expanded yet."""


def verdict(run: Run, task_index: int, index: int = WHOLE) -> Verdict:
    """Return the verdict of the trigger rules of a task, or of one of its children.

    A task that expands over a stream with yielded items runs as soon as it would run if the stream
    had succeeded.
    """
    if stream_expand.has_begun(run, task_index):
        source = stream_expand.source_of(run, task_index)
        if _verdict_assuming(run, task_index, index, source) is Verdict.RUN:
            return Verdict.RUN
    return _verdict_assuming(run, task_index, index)


def parent_states(run: Run, task_index: int, parent: int, index: int) -> Iterator[int]:
    """Yield the states of the instances of one parent that a child of a task depends on."""
    group = run.groups.get(parent)
    if group is None:
        yield run.states[parent]
    elif index == WHOLE:
        yield TaskState.PENDING  # each child is evaluated by itself
    else:
        for number in _indexes(run, task_index, parent, index):
            yield group.states[number]


def _indexes(run: Run, task_index: int, parent: int, index: int) -> Iterator[int]:
    mapped = run.spec.tasks[task_index].mapped
    assert mapped is not None  # noqa: S101 - only mapped tasks follow others
    if parent in mapped.along:
        yield index
        return
    one_to_one = run.groups[task_index].one_to_one
    assert one_to_one is not None  # noqa: S101
    if len(one_to_one.widths) == 1:
        yield index
        return
    picks = pick(mapped, index, one_to_one.widths)
    pairs = zip(leaves(mapped.sources), picks, strict=True)
    # An instance that the child uses twice counts once.
    yield from {number for leaf, number in pairs if leaf.task_index == parent and number >= 0}


def _verdict_assuming(run: Run, task_index: int, index: int, assumed: int = -1) -> Verdict:
    """Return the verdict as if one parent had succeeded."""
    looks = run.graph.evaluated[task_index]
    if len(looks) == 1:
        return _group_verdict(run, task_index, looks[0], index, assumed)
    return together([_group_verdict(run, task_index, look, index, assumed) for look in looks])


def _group_verdict(run: Run, task_index: int, look: Evaluated, index: int, assumed: int) -> Verdict:
    counts = run.tallies[look.tally * TALLY : (look.tally + 1) * TALLY]
    for parent in look.indexed:
        for state in parent_states(run, task_index, parent, index):
            counts[0] += 1
            if state >= TaskState.SUCCESS:
                counts[TALLY_OFFSET[state]] += 1
    total, success, failed, upstream_failed, skipped, removed = counts
    success += assumed in look.parents
    if look.min_success is not None:
        return decide_share(
            look.min_success,
            total=total,
            success=success,
            failed=failed,
            upstream_failed=upstream_failed,
            skipped=skipped,
            removed=removed,
        )
    setups = [_setup_state(run, task_index, look, p, index) for p in look.setups if p != assumed]
    return decide(
        look.rule,
        total=total,
        success=success,
        failed=failed,
        upstream_failed=upstream_failed,
        skipped=skipped,
        removed=removed,
        setup_total=len(look.setups),
        setup_success=setups.count(TaskState.SUCCESS) + (assumed in look.setups),
        setup_skipped=setups.count(TaskState.SKIPPED),
    )


def _setup_state(run: Run, task_index: int, look: Evaluated, setup: int, index: int) -> int:
    if setup not in look.indexed:
        return run.states[setup]
    return next(parent_states(run, task_index, setup, index), TaskState.PENDING)
