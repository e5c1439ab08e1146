"""The causes why unfinished children of a mapped task wait, grouped, at a bounded cost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from aioflow.core.runs.task_counts import fresh_queued
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import MappedTask, Run
from aioflow.core.why import explain_task
from aioflow.model.states import LIVE_TASK_STATES, TaskState, Wait, WaitKind

__all__ = ("NAMED", "SAMPLED", "ChildrenCause", "explain_children")

SAMPLED = 100
"""Maximum number of children of each state that are explained."""

NAMED = 3
"""Maximum number of indices returned per cause."""

_SHARED = frozenset(
    {
        WaitKind.SLOT,
        WaitKind.LIMIT,
        WaitKind.WINDOW,
        WaitKind.UPSTREAM,
        WaitKind.DEPENDS_ON_PAST,
    }
)
"""Kinds whose details may concern many children. Other details, such as errors, concern one."""


class ChildrenCause(msgspec.Struct, frozen=True, kw_only=True):
    """Children of one task that are in the same state for the same cause.

    Attributes:
        state: ``QUEUED`` for children without a row that wait only for a slot.
        wait: The wait of the first child; ``None`` if it is in progress.
        indices: The indices of the first children.
        count: Number of these children. If a state other than ``QUEUED`` has more than ``SAMPLED``
            children, those beyond count for no cause.
    """

    state: TaskState
    wait: Wait | None
    indices: tuple[int, ...]
    count: int


def explain_children(
    run: Run, position: int, memory: Memory, slots: Slots
) -> list[ChildrenCause] | None:
    """Return the causes, the most frequent first; ``None`` if the task has no children."""
    group = run.groups.get(position)
    if group is None:
        return None
    found: dict[object, ChildrenCause] = {}
    for index, state, count in _sampled(group):
        wait = explain_task(run, position, index, memory, slots)
        key = (state, None if wait is None else (wait.kind, _shared_part(wait)))
        known = found.get(key)
        if known is None:
            found[key] = ChildrenCause(state=state, wait=wait, indices=(index,), count=count)
            continue
        indices = known.indices if len(known.indices) == NAMED else (*known.indices, index)
        found[key] = msgspec.structs.replace(known, indices=indices, count=known.count + count)
    return sorted(found.values(), key=lambda cause: (-cause.count, cause.indices))


def _shared_part(wait: Wait) -> str:
    """Return the part of a detail that distinguishes causes: for a trigger its class."""
    if wait.kind in _SHARED:
        return wait.detail
    class_path, number, _ = wait.detail.partition(" #")
    return class_path if number and wait.looks_no is not None else ""


def _sampled(group: MappedTask) -> Iterator[tuple[int, TaskState, int]]:
    """Yield sampled children, their displayed state, and how many children each one represents."""
    for state in (state for state in LIVE_TASK_STATES if state is not TaskState.PENDING):
        for at, index in enumerate(_indices_of(group, state), start=1):
            # Queued children wait for the same pool and behind the same limits.
            is_for_rest = state is TaskState.QUEUED and at == SAMPLED
            yield index, state, 1 + group.counts[state] - at if is_for_rest else 1
    yield from _sampled_fresh(group)


def _sampled_fresh(group: MappedTask) -> Iterator[tuple[int, TaskState, int]]:
    """Yield samples of the children without a row, as ``_sampled`` does."""
    queued, one_to_one = fresh_queued(group), group.one_to_one
    if one_to_one is not None:
        for index in _indices_of(group, TaskState.PENDING):
            is_queued = queued > 0 and one_to_one.may_start(index)
            yield index, TaskState.QUEUED if is_queued else TaskState.PENDING, 1
        return
    # All children that wait for their first start have the same cause: the last one represents the
    # others.
    named = list(islice(_indices_of(group, TaskState.PENDING), NAMED))
    for at, index in enumerate(named, start=1):
        stands_for = 1 + group.fresh - at if at == len(named) else 1
        yield index, TaskState.QUEUED if queued else TaskState.PENDING, stands_for


def _indices_of(group: MappedTask, state: TaskState) -> Iterator[int]:
    """Yield the first children in a state, without a Python step for each of the others."""
    index, left = -1, min(SAMPLED, group.counts[state])
    while left > 0 and (index := group.states.find(state, index + 1)) >= 0:
        yield index
        left -= 1
