"""Children that follow the children of another task, index by index.

A task follows a mapped task if it expands over that task or is in the same mapped group. It expands
as soon as its width is known and all its other parents have ended. Only those other parents can end
it as a whole. After that, each child is evaluated separately over the instances that it depends on,
and waits until the instances that produce its items have ended. The children that may start are in
the ``OneToOne`` queue of the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from aioflow.core.state.graph import TALLY
from aioflow.core.state.mapped_task import OneToOne
from aioflow.core.state.task_instance import MappedTask, Run
from aioflow.core.tasks.expand import consumers, leaves
from aioflow.core.tasks.trigger_rules import Verdict, parent_states, verdict
from aioflow.model.dag import MapSpec
from aioflow.model.states import TaskState

__all__ = (
    "Entry",
    "child_verdict",
    "followers",
    "forget",
    "has_unevaluated_children",
    "is_known",
    "may_continue",
    "may_open",
    "may_skip",
    "reset_queues",
    "widths",
)

Entry: TypeAlias = tuple[int, int]
"""A task to evaluate: task index and map index, which is ``WHOLE`` before the expansion."""


def widths(run: Run, mapped: MapSpec) -> list[int | None]:
    """Return the number of items of each list that a task expands over.

    The number is ``None`` if it is not known or there is no list.
    """
    return [_width(run, leaf.task_index, leaf.width) for leaf in leaves(mapped.sources)]


def _width(run: Run, task_index: int, literal: int) -> int | None:
    if task_index < 0:
        return literal
    if run.spec.tasks[task_index].mapped is None:
        return run.widths.get(task_index)
    group = run.groups.get(task_index)
    return None if group is None or group.is_open else group.width


def is_known(run: Run, task_index: int) -> bool:
    """Return whether all tasks that a task follows have a final width or ended unexpanded."""
    mapped = run.spec.tasks[task_index].mapped
    along = () if mapped is None else mapped.along  # mapped tasks of one loop grow together
    for parent in run.graph.indexed[task_index]:
        group = run.groups.get(parent)
        is_open = group is not None and group.is_open and parent not in along
        if is_open or (group is None and run.states[parent] < TaskState.SUCCESS):
            return False
    return True


def may_open(run: Run, task_index: int) -> bool:
    """Return whether a task may expand before the children that it follows have ended.

    It may if its width is known and all its other parents have ended.
    """
    if not is_known(run, task_index):
        return False
    for look in run.graph.evaluated[task_index]:
        total, *ended = run.tallies[look.tally * TALLY : (look.tally + 1) * TALLY]
        if sum(ended) < total:
            return False
    return True


def may_continue(run: Run, task_index: int) -> bool:
    """Return whether the rule of a mapped task with reset children allows them to continue."""
    said = verdict(run, task_index)
    opens = said is Verdict.WAIT and bool(run.graph.indexed[task_index])
    return said is Verdict.RUN or (opens and may_open(run, task_index))


def forget(group: MappedTask) -> None:
    """Reset the queue of a task that has become pending again.

    Its children will be evaluated again, after the task itself.
    """
    if group.one_to_one is not None:
        group.one_to_one = OneToOne(group.one_to_one.widths, group.width)


def child_verdict(group: MappedTask, index: int) -> Verdict:
    """Return the verdict for a child. Even if its rule says RUN, it waits until its items exist."""
    run, task_index = group.run, group.task_index
    said = verdict(run, task_index, index)
    mapped = run.spec.tasks[task_index].mapped
    if said is not Verdict.RUN or mapped is None:
        return said
    for leaf in leaves(mapped.sources):
        if leaf.task_index not in run.graph.indexed[task_index]:
            continue
        for state in parent_states(run, task_index, leaf.task_index, index):
            if state < TaskState.SUCCESS:
                return Verdict.WAIT
    return said


def may_skip(group: MappedTask, index: int) -> bool:
    """Return whether a child may be skipped because it is pending and was not allowed to start."""
    is_let = group.one_to_one is not None and group.one_to_one.may_start(index)
    return group.states[index] == TaskState.PENDING and not is_let


def followers(run: Run, task_index: int, index: int) -> Iterator[Entry]:
    """Yield the children of other tasks that follow this child and have been evaluated before."""
    for follower in run.graph.followers[task_index]:
        group = run.groups.get(follower)
        mapped = run.spec.tasks[follower].mapped
        if group is None or group.one_to_one is None or mapped is None:
            continue
        for child in _children(mapped, task_index, index, group.one_to_one.widths):
            if child < group.one_to_one.evaluated:
                yield follower, child


def _children(mapped: MapSpec, task_index: int, index: int, sizes: Sequence[int]) -> Iterator[int]:
    if task_index in mapped.along:
        yield index
        return
    for number, leaf in enumerate(leaves(mapped.sources)):
        if leaf.task_index == task_index:
            yield from consumers(mapped, number, index, sizes)


def reset_queues(run: Run) -> None:
    """Reset all queues of a run. The children are evaluated again later, some in each turn."""
    for group in run.groups.values():
        mapped = run.spec.tasks[group.task_index].mapped
        if mapped is not None and run.graph.indexed[group.task_index]:
            sizes = [size or 0 for size in widths(run, mapped)]
            group.one_to_one = OneToOne(sizes, group.width)


def _after_past(run: Run) -> list[int]:
    """Return the mapped tasks that depend on the previous run."""
    return [task_index for task_index in run.groups if task_index in run.graph.past]


def has_unevaluated_children(run: Run) -> bool:
    """Return whether any mapped child awaits evaluation.

    Such children depend on other children or on the previous run.
    """
    if any(run.states[task_index] == TaskState.PENDING for task_index in _after_past(run)):
        return True
    found = ((group.one_to_one, group.width) for group in run.groups.values())
    return any(one is not None and one.evaluated < width for one, width in found)
