"""Comparison of two DAG versions: whether a run of one can continue with the other.

The rows of a run refer to tasks by position, and its mapped children to items by index. So both
versions need the same tasks at the same positions, with the same edges and expansions. Code,
retries, pools, limits and timeouts may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from aioflow.core.tasks.expand import leaves
from aioflow.model.dag import DagSpec, TaskSpec

__all__ = ("differences",)

_ALIKE: tuple[tuple[str, Callable[[TaskSpec], object]], ...] = (
    ("follows other tasks", lambda task: (task.parents, task.argument_parents)),
    (
        "has another trigger rule",
        lambda task: (task.rule, task.min_success, task.groups, task.fails_run),
    ),
    ("is mapped otherwise", lambda task: task.mapped),
    ("is a stream in one of them only", lambda task: task.streams),
    ("is a setup or teardown in one of them only", lambda t: (t.is_setup, t.is_teardown)),
    ("chooses otherwise what is skipped", lambda task: task.chooses),
    (
        "waits for the run before in one of them only",
        lambda task: (task.depends_on_past, task.wait_for_downstream),
    ),
)


def differences(old: DagSpec, new: DagSpec) -> list[str]:
    """Return why a run of one version cannot continue with another, in the order of the tasks."""
    was, now = ([task.task_id for task in spec.tasks] for spec in (old, new))
    missing = [f"task {task_id!r} is gone" for task_id in was if task_id not in set(now)]
    added = [f"task {task_id!r} is new" for task_id in now if task_id not in set(was)]
    if missing or added:
        return missing + added
    if was != now:
        first = next(a for a, b in zip(was, now, strict=True) if a != b)
        return [f"the tasks are in another order, from {first!r} on"]
    return [reason for at in range(len(was)) for reason in _of_task(old.tasks, new.tasks, at)]


def _of_task(old: Sequence[TaskSpec], new: Sequence[TaskSpec], position: int) -> Iterator[str]:
    was, now = old[position], new[position]
    for reason, part in _ALIKE:
        if part(was) != part(now):
            yield f"task {was.task_id!r} {reason}"
    if was.map_limit != now.map_limit and _grows(old, was):
        # Its children have the row numbers that were reserved when it expanded.
        limit = "max_rounds" if was.mapped is not None and was.mapped.until >= 0 else "map_limit"
        yield f"task {was.task_id!r} has another {limit}"


def _grows(tasks: Sequence[TaskSpec], task: TaskSpec) -> bool:
    """Return whether the task is in a loop or expands over a stream."""
    if task.mapped is None:
        return False
    made = (leaf.position for leaf in leaves(task.mapped.sources))
    return task.mapped.until >= 0 or any(tasks[at].streams for at in made if at >= 0)
