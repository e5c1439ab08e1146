"""Iterations of loops: sets of tasks that repeat together until one of them ends the loop.

The task that ends a loop is its *decider*. Each task of a loop has one child per started iteration;
the map index of the child is the iteration number. When the decider of the latest iteration
succeeds and requests another iteration, the same commit adds a child to each task. When that
decider ends in any other way, the loop is closed. Until then its tasks may get more children.
"""

from __future__ import annotations

from collections.abc import Iterator

from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance
from aioflow.core.tasks import one_to_one
from aioflow.core.transaction import Transaction
from aioflow.model.dag import Chooses
from aioflow.model.states import Failure, TaskState

__all__ = (
    "add_iteration",
    "close_loop",
    "is_last_decider",
    "iteration_limit_failure",
    "loop_groups",
    "reopen_loops",
    "started_iterations",
)


def started_iterations(run: Run, task_index: int) -> tuple[int, bool]:
    """Return how many iterations the loop of a task has started, and whether more may follow."""
    mapped = run.spec.tasks[task_index].mapped
    assert mapped is not None  # noqa: S101 - only mapped tasks are in loops
    group = run.groups.get(mapped.until)
    if group is None:
        return 1, run.states[mapped.until] < TaskState.SUCCESS
    return group.width, group.is_open


def loop_groups(run: Run, decider: int) -> Iterator[MappedTask]:
    """Yield the expanded tasks of a loop."""
    mapped = run.spec.tasks[decider].mapped
    assert mapped is not None  # noqa: S101 - see ``started_iterations``
    for task_index in sorted((decider, *mapped.along)):
        group = run.groups.get(task_index)
        if group is not None:
            yield group


def iteration_limit_failure(task: TaskInstance) -> Failure | None:
    """Return the failure of a loop at its iteration limit; ``None`` below the limit."""
    limit = task.spec.map_limit
    if task.map_index + 1 < limit:
        return None
    message = f"until was not true after {limit} rounds, which is max_rounds"
    return Failure(type="RoundsExhausted", message=message, reason="max_rounds")


def add_iteration(run: Run, decider: int, tx: Transaction) -> list[MappedTask]:
    """Add an iteration to a loop.

    If a task before the loop was marked after the loop started, the trigger rules may not allow the
    new iteration to run.

    Returns:
        The mapped tasks to evaluate, either as a whole or only their new child.
    """
    grown = []
    for group in loop_groups(run, decider):
        tx.change_group(group, group.width)
        had_fresh = group.has_fresh
        group.grow()
        if group.one_to_one is not None:
            grown.append(group)
        elif not (had_fresh or group.unfinished or one_to_one.may_continue(run, group.task_index)):
            run.states[group.task_index] = TaskState.PENDING
            grown.append(group)
        elif not had_fresh:
            tx.slots.offer(group)
    return grown


def is_last_decider(run: Run, task_index: int, map_index: int) -> bool:
    """Return whether a task is the decider of the latest iteration."""
    if run.spec.tasks[task_index].chooses is not Chooses.ROUNDS:
        return False
    return map_index < 0 or map_index + 1 == run.groups[task_index].width


def close_loop(run: Run, decider: int, tx: Transaction) -> Iterator[int]:
    """Close a loop. Yield the tasks to evaluate now."""
    for group in loop_groups(run, decider):
        if not group.is_open:
            continue
        tx.change_group(group, group.width)
        group.is_open = False
        if group.is_over:
            run.end_group(group)
            tx.task_ended(run, group.task_index)
        yield from run.graph.evaluators[group.task_index]


def reopen_loops(run: Run, tx: Transaction) -> None:
    """Reopen closed loops whose decider never ran and is pending again.

    Such a loop is in its first iteration, because tasks of loops cannot be marked.
    """
    for group in list(run.groups.values()):
        mapped = run.spec.tasks[group.task_index].mapped
        if not group.is_loop or group.is_open or mapped is None or mapped.until in run.groups:
            continue
        if run.states[mapped.until] < TaskState.SUCCESS:
            tx.expansions.dissolve(run.run_no, group.task_index)
            group.is_open = True
            tx.change_group(group, -1)
