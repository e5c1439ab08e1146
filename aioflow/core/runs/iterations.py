"""Loops: tasks that repeat together until one of them, the decider, ends them.

The map index is the iteration. All tasks of a loop have as many children as iterations have
started, and stay open until the decider ends in the last iteration. If it succeeds and asks for
another iteration, the same commit adds a child to each. Any other end closes the loop. Iterations
that a person has undone (see ``tasks.rewind``) reuse their rows when they start again.
"""

from __future__ import annotations

from collections.abc import Iterator

from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance
from aioflow.core.tasks import one_to_one
from aioflow.core.transaction import Transaction
from aioflow.model.dag import Chooses
from aioflow.model.states import Failure, TaskState

__all__ = ("begun", "close", "exhausted", "go_round", "groups_of", "is_decided", "reopen")


def begun(run: Run, position: int) -> tuple[int, bool]:
    """Return how many iterations the loop of a task has started, and whether more may follow."""
    mapped = run.spec.tasks[position].mapped
    assert mapped is not None  # noqa: S101 - only mapped tasks are in loops
    group = run.groups.get(mapped.until)
    if group is None:
        return 1, run.states[mapped.until] < TaskState.SUCCESS
    return group.width, group.is_open


def groups_of(run: Run, decider: int) -> Iterator[MappedTask]:
    """Yield the expanded tasks of a loop."""
    mapped = run.spec.tasks[decider].mapped
    assert mapped is not None  # noqa: S101 - see ``begun``
    for position in sorted((decider, *mapped.along)):
        group = run.groups.get(position)
        if group is not None:
            yield group


def exhausted(task: TaskInstance) -> Failure | None:
    """Return the failure of a loop that needs another iteration beyond its limit, or ``None``."""
    limit = task.spec.map_limit
    if task.map_index + 1 < limit:
        return None
    message = f"not good after {limit} rounds, which is its max_rounds"
    return Failure(type="RoundsExhausted", message=message, reason="max_rounds")


def go_round(run: Run, decider: int, tx: Transaction) -> list[MappedTask]:
    """Add an iteration. Return the mapped tasks that must be evaluated, or whose new children must.

    A task before the loop may have been marked since; then the new iteration may not be allowed to
    run.
    """
    grown = []
    for group in groups_of(run, decider):
        tx.change_group(group, group.width)
        had_fresh = group.has_fresh
        group.grow()
        _take_up(group, tx)
        if group.one_to_one is not None:
            grown.append(group)
        elif not (had_fresh or group.unfinished or one_to_one.may_go_on(run, group.position)):
            run.states[group.position] = TaskState.PENDING
            grown.append(group)
        elif not had_fresh:
            tx.slots.offer(group)
    return grown


def _take_up(group: MappedTask, tx: Transaction) -> None:
    """Reuse the row of the last child, if this iteration was undone before."""
    run, index = group.run, group.width - 1
    task_no = group.first_task_no + index
    start_no = run.removed.pop(task_no, None)
    if start_no is None:
        return
    task = TaskInstance(run, task_no, group.position, index)
    task.state = task.stored_state = TaskState.REMOVED
    task.start_no = task.stored_start = start_no
    tx.move(task, TaskState.PENDING)
    run.cleared.hold(task_no, task)


def is_decided(run: Run, position: int, map_index: int) -> bool:
    """Return whether a task is the decider of the last iteration."""
    if run.spec.tasks[position].chooses is not Chooses.ROUNDS:
        return False
    return map_index < 0 or map_index + 1 == run.groups[position].width


def close(run: Run, decider: int, tx: Transaction) -> Iterator[int]:
    """Close a loop. Yield the tasks to evaluate now."""
    for group in groups_of(run, decider):
        if not group.is_open:
            continue
        tx.change_group(group, group.width)
        group.is_open = False
        if group.is_over:
            run.end_group(group)
            tx.task_over(run, group.position)
        yield from run.graph.judges[group.position]


def reopen(run: Run, tx: Transaction) -> None:
    """Reopen closed loops whose deciding task never ran and is pending again.

    Such a loop is in its first iteration. A mark that would keep further ones is refused.
    """
    for group in list(run.groups.values()):
        mapped = run.spec.tasks[group.position].mapped
        if not group.is_loop or group.is_open or mapped is None or mapped.until in run.groups:
            continue
        if run.states[mapped.until] < TaskState.SUCCESS:
            tx.expansions.dissolve(run.run_no, group.position)
            group.is_open = True
            tx.change_group(group, -1)
