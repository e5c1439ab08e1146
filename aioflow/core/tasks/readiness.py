"""Creation of task instances for pending tasks, which have a row only if they were cleared."""

from __future__ import annotations

from collections.abc import Iterator

from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance

__all__ = ("cleared_tasks", "fresh", "is_cleared", "rewind")


def fresh(run: Run, task_index: int, map_index: int) -> TaskInstance:
    """Return the instance of a pending task that is about to change its state.

    A cleared task continues counting from its last ``start_no``, so reports of that start stay
    outdated.
    """
    task_no = run.task_no(task_index, map_index)
    known = run.cleared.take(task_no) if run.cleared else None
    if isinstance(known, TaskInstance):
        return known
    task = TaskInstance(run, task_no, task_index, map_index)
    if known is not None:
        task.start_no = task.stored_start = known
    return task


def cleared_tasks(run: Run) -> Iterator[tuple[int, int]]:
    """Yield task index and map index of the cleared, pending tasks.

    None of these tasks may change its state while iterating.
    """
    first = run.row.first_task_no
    for task_no in run.cleared.between(first, first + len(run.states)):
        yield task_no - first, -1
    for group in run.groups.values():
        first = group.first_task_no
        for task_no in run.cleared.between(first, first + group.width):
            yield group.task_index, task_no - first


def is_cleared(group: MappedTask) -> bool:
    """Return whether any child of a mapped task was cleared and is pending."""
    first = group.first_task_no
    return next(group.run.cleared.between(first, first + group.width), None) is not None


def rewind(group: MappedTask) -> None:
    """Set the cursor of a mapped task to its first pending child.

    Children that follow the children of another task have a queue instead of a cursor.
    """
    group.cursor = group.pending_from(0) if group.one_to_one is None else 0
