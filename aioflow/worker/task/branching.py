"""Branching: the tasks that the result of a branch or short circuit skips.

A branch chooses tasks or groups directly downstream of it by their ids. A task that is
downstream of both a chosen and an unchosen task is not skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aioflow.author.node import Node, Part
from aioflow.errors import (
    TaskError,
)

__all__ = (
    "BadChoice",
    "skipped_by",
)


class BadChoice(TaskError):
    """Raised if a branch chose something that is not a task directly downstream of it.

    Args:
        task_id: The branch.
        chosen: The value that the branch returned, or the invalid part of it.
        possible: The names that the branch may return.
    """

    def __init__(self, task_id: str, chosen: object, possible: Sequence[str]) -> None:
        names = ", ".join(possible) or "nothing: no task comes after it"
        super().__init__(
            f"{task_id!r} chose {chosen!r:.200}; it may return the id of a task that comes right "
            f"after it, a list of them, or None. There is {names}"
        )


def skipped_by(node: Node, value: object) -> tuple[int, ...]:
    """Return the ascending indexes of the tasks that the result skips; empty for most tasks.

    Raises:
        BadChoice: If a branch names a task that is not directly downstream of it.
    """
    if node.part is Part.WORK:  # most tasks: hashing an enum takes longer than this
        return ()
    if node.part is Part.BRANCH:
        return _not_chosen_tasks(node, value)
    if value or node.part not in {Part.SHORT_CIRCUIT, Part.GENTLE_SHORT_CIRCUIT}:
        return ()
    nodes = node.dag.nodes
    after = _direct_downstream(nodes, node.task_index)
    if node.part is Part.SHORT_CIRCUIT:
        after = _with_downstream(nodes, after)
    after = _at_its_index(node, after)
    return tuple(sorted(p for p in after if not nodes[p].is_teardown))


def _not_chosen_tasks(node: Node, value: object) -> tuple[int, ...]:
    nodes = node.dag.nodes
    children = _at_its_index(node, _direct_downstream(nodes, node.task_index))
    names = _choosable_names(nodes, children)
    if value is not None and not isinstance(value, str | list | tuple | set | frozenset):
        raise BadChoice(node.task_id, value, sorted(names))
    chosen: set[int] = set()
    for name in [value] if isinstance(value, str) else value or ():
        if name not in names:
            raise BadChoice(node.task_id, name, sorted(names))
        chosen |= names[name]
    # If a child is also downstream of a chosen task, it belongs to the chosen path.
    return tuple(sorted(children - _with_downstream(nodes, chosen)))


def _at_its_index(node: Node, task_indexes: set[int]) -> set[int]:
    """Return the task indexes. For a mapped task, return only those in its mapped group."""
    return task_indexes & node.along if node.is_mapped else task_indexes


def _choosable_names(nodes: Sequence[Node], children: Iterable[int]) -> dict[str, set[int]]:
    """Return the names of tasks and groups that a branch may choose, with their task indexes."""
    names: dict[str, set[int]] = {}
    for child in children:
        names.setdefault(nodes[child].task_id, set()).add(child)
        group = nodes[child].group
        while group:
            names.setdefault(group, set()).add(child)
            group = group.rpartition(".")[0]
    return names


def _direct_downstream(nodes: Sequence[Node], task_index: int) -> set[int]:
    return {node.task_index for node in nodes if task_index in node.parents}


def _with_downstream(nodes: Sequence[Node], first: Iterable[int]) -> set[int]:
    """Return the task indexes in ``first`` and those of all tasks downstream of them."""
    seen = set(first)
    agenda = list(seen)
    while agenda:
        for child in _direct_downstream(nodes, agenda.pop()) - seen:
            seen.add(child)
            agenda.append(child)
    return seen
