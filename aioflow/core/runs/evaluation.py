"""Evaluation of trigger rules for a task, or for one of its children.

Parents are counted in tallies and not visited. The exceptions are mapped parents that the
children follow index by index; of those, one child at a time is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator

from aioflow.core.state.graph import Judged
from aioflow.core.state.state_counts import TALLY, TALLY_OFFSET
from aioflow.core.state.task_instance import Run
from aioflow.core.tasks import stream_expand
from aioflow.core.tasks.expand import leaves, pick
from aioflow.core.tasks.trigger_rules import Verdict, together
from aioflow.core.tasks.trigger_rules import decide as judge
from aioflow.core.tasks.trigger_rules import decide_share as judge_share
from aioflow.model.states import TaskState

__all__ = ("WHOLE", "instances", "verdict")

WHOLE = -1
"""Map index of a task that is not mapped, or not expanded yet."""


def verdict(run: Run, position: int, index: int = WHOLE) -> Verdict:
    """Return the verdict of the trigger rules.

    A task over a stream that has yielded items runs if it would run after a success of the stream.
    """
    if stream_expand.has_begun(run, position):
        source = stream_expand.source_of(run, position)
        if _judged(run, position, index, source) is Verdict.RUN:
            return Verdict.RUN
    return _judged(run, position, index)


def instances(run: Run, position: int, parent: int, index: int) -> Iterator[int]:
    """Yield the states of the parent's instances that one child of a task depends on."""
    group = run.groups.get(parent)
    if group is None:
        yield run.states[parent]
    elif index == WHOLE:
        yield TaskState.PENDING  # each child is evaluated by itself
    else:
        for number in _indexes(run, position, parent, index):
            yield group.states[number]


def _indexes(run: Run, position: int, parent: int, index: int) -> Iterator[int]:
    mapped = run.spec.tasks[position].mapped
    assert mapped is not None  # noqa: S101 - only mapped tasks follow others
    if parent in mapped.along:
        yield index
        return
    one_to_one = run.groups[position].one_to_one
    assert one_to_one is not None  # noqa: S101
    if len(one_to_one.widths) == 1:
        yield index
        return
    picks = pick(mapped, index, one_to_one.widths)
    pairs = zip(leaves(mapped.sources), picks, strict=True)
    # An instance that the child uses twice counts once.
    yield from {number for leaf, number in pairs if leaf.position == parent and number >= 0}


def _judged(run: Run, position: int, index: int, assumed: int = -1) -> Verdict:
    """Return the verdict, with one parent assumed to have succeeded."""
    looks = run.graph.judged[position]
    if len(looks) == 1:
        return _look(run, position, looks[0], index, assumed)
    return together([_look(run, position, look, index, assumed) for look in looks])


def _look(run: Run, position: int, look: Judged, index: int, assumed: int) -> Verdict:
    counts = run.tallies[look.tally * TALLY : (look.tally + 1) * TALLY]
    for parent in look.indexed:
        for state in instances(run, position, parent, index):
            counts[0] += 1
            if state >= TaskState.SUCCESS:
                counts[TALLY_OFFSET[state]] += 1
    total, success, failed, upstream_failed, skipped, removed = counts
    success += assumed in look.parents
    if look.min_success is not None:
        return judge_share(
            look.min_success,
            total=total,
            success=success,
            failed=failed,
            upstream_failed=upstream_failed,
            skipped=skipped,
            removed=removed,
        )
    setups = [_setup_state(run, position, look, p, index) for p in look.setups if p != assumed]
    return judge(
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


def _setup_state(run: Run, position: int, look: Judged, setup: int, index: int) -> int:
    if setup not in look.indexed:
        return run.states[setup]
    return next(instances(run, position, setup, index), TaskState.PENDING)
