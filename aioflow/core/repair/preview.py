"""Previews of clears and marks: the tasks that a selection affects, counted by state.

A preview counts the same selection that the request would make and execute, see ``selection`` and
``mark``. Children are counted from their packed states, so a wide mapped task takes hardly longer
than a narrow one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from aioflow.core.repair import selection
from aioflow.core.repair.selection import FAILED
from aioflow.core.state.task_instance import MappedTask, Run
from aioflow.model.states import TaskState
from aioflow.protocol.outbox import Clearing
from aioflow.protocol.requests import Preview, TouchedTask

__all__ = ("preview", "preview_of_run")

_UNRUN = (TaskState.UPSTREAM_FAILED, TaskState.SKIPPED)


def preview(run: Run, chosen: Clearing, tasks: tuple[str, ...] | None) -> Preview:
    """Return the tasks that a selection would change.

    Args:
        tasks: The ids of tasks that are cleared without their downstream tasks, which may then stay
            ``upstream_failed``; ``None`` if there are no such tasks.
    """
    touched = [*_marked(run, chosen), *_cleared(run, chosen)]
    touched.sort(key=lambda task: run.graph.index_of[task.task_id])
    left = [] if tasks is None else selection.left_failed(run, tasks, chosen)
    return Preview(state=run.state, tasks=touched, upstream_failed=left)


def preview_of_run(run: Run) -> Preview:
    """Preview a mark of a live run as a whole. It changes all tasks that have not ended."""
    found: list[TouchedTask] = []
    for task_index, task in enumerate(run.spec.tasks):
        states = {
            state: count for state, count in _counts(run, task_index).items() if state.is_live
        }
        if states:
            found.append(TouchedTask(task_id=task.task_id, states=states, is_marked=True))
    return Preview(state=run.state, tasks=found, upstream_failed=[])


def _counts(run: Run, task_index: int) -> dict[TaskState, int]:
    """Count the children of a task by state. A task without children counts as one."""
    group = run.groups.get(task_index)
    if group is None:
        return {TaskState(run.states[task_index]): 1}
    return {state: group.counts[state] for state in TaskState if group.counts[state]}


def _marked(run: Run, chosen: Clearing) -> Iterator[TouchedTask]:
    """Yield the tasks whose state differs from their mark."""
    if chosen.mark is None:
        return
    for task_index, first, end in chosen.mark.ranges:
        group = run.groups.get(task_index)
        own = bytes(
            (run.states[task_index],) if group is None or first < 0 else group.states[first:end]
        )
        found = {state: own.count(state) for state in TaskState if state is not chosen.mark.state}
        yield from _touched(run, task_index, found, is_marked=True)


def _cleared(run: Run, chosen: Clearing) -> Iterator[TouchedTask]:
    """Yield the tasks that are cleared."""
    excluded = dict(chosen.excluded)
    spared = {task_index: _size(bits) for task_index, bits in excluded.items()}
    children: dict[int, list[int]] = {}
    for task_index, index in chosen.children:
        if not _has(excluded.get(task_index, b""), index):
            children.setdefault(task_index, []).append(index)
    for task_index in chosen.whole:
        if task_index in chosen.retained:
            continue
        stay = {TaskState.PENDING, *([TaskState.REMOVED] * (task_index in chosen.reexpanded))}
        found = {s: n for s, n in _counts(run, task_index).items() if s not in stay}
        yield from _touched(run, task_index, _less(found, spared.get(task_index, 0)))
    for task_index in chosen.failed:
        found = {s: n for s, n in _counts(run, task_index).items() if s in FAILED}
        yield from _touched(run, task_index, found)
    for task_index, indexes in children.items():
        yield from _touched(run, task_index, _states_of(run.groups[task_index], indexes))
    for task_index in set(chosen.unrun) & run.groups.keys():
        found = {s: n for s, n in _counts(run, task_index).items() if s in _UNRUN}
        yield from _touched(run, task_index, _less(found, spared.get(task_index, 0)))


def _states_of(group: MappedTask, indexes: list[int]) -> dict[TaskState, int]:
    counted = Counter(TaskState(group.states[index]) for index in indexes)
    return {state: count for state, count in counted.items() if state is not TaskState.PENDING}


def _less(states: dict[TaskState, int], skipped: int) -> dict[TaskState, int]:
    """Return the counts without the children that a branch has skipped, which stay skipped."""
    return states | {TaskState.SKIPPED: states.get(TaskState.SKIPPED, 0) - skipped}


def _has(bits: bytes, index: int) -> bool:
    return bool(bits) and bool(bits[index >> 3] >> (index & 7) & 1)


def _size(bits: bytes) -> int:
    return int.from_bytes(bits).bit_count()


def _touched(
    run: Run, task_index: int, states: Mapping[TaskState, int], *, is_marked: bool = False
) -> Iterator[TouchedTask]:
    counts = {state: count for state, count in states.items() if count > 0}
    if counts:
        task_id = run.spec.tasks[task_index].task_id
        yield TouchedTask(task_id=task_id, states=counts, is_marked=is_marked)
