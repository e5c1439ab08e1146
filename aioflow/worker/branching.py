"""Tasks that are skipped because of the result of a branch or short circuit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aioflow.author.node import Node, Part
from aioflow.errors import TaskError

__all__ = ("BadChoice", "skipped_by")


class BadChoice(TaskError):
    """A branch chose something that is not directly downstream of it.

    Args:
        task_id: The branch.
        chosen: What it returned, or the invalid part of it.
        possible: What it may return.
    """

    def __init__(self, task_id: str, chosen: object, possible: Sequence[str]) -> None:
        names = ", ".join(possible) or "nothing: no task comes after it"
        super().__init__(
            f"{task_id!r} chose {chosen!r:.200}; it may return the id of a task that comes right "
            f"after it, a list of them, or None. There is {names}"
        )


def skipped_by(node: Node, value: object) -> tuple[int, ...]:
    """Return the positions that the task's result skips, ascending; empty for most tasks.

    Raises:
        BadChoice: If a branch names a task that is not directly downstream of it.
    """
    if node.part is Part.BRANCH:
        return _not_chosen(node, value)
    if value or node.part not in {Part.SHORT_CIRCUIT, Part.GENTLE_SHORT_CIRCUIT}:
        return ()
    nodes = node.dag.nodes
    after = _children(nodes, node.position)
    if node.part is Part.SHORT_CIRCUIT:
        after = _after(nodes, after)
    after = _at_its_index(node, after)
    return tuple(sorted(p for p in after if not nodes[p].is_teardown))


def _not_chosen(node: Node, value: object) -> tuple[int, ...]:
    nodes = node.dag.nodes
    children = _at_its_index(node, _children(nodes, node.position))
    names = _names(nodes, children)
    if value is not None and not isinstance(value, str | list | tuple | set | frozenset):
        raise BadChoice(node.task_id, value, sorted(names))
    chosen: set[int] = set()
    for name in [value] if isinstance(value, str) else value or ():
        if name not in names:
            raise BadChoice(node.task_id, name, sorted(names))
        chosen |= names[name]
    # A child that is also downstream of a chosen task belongs to the chosen path.
    return tuple(sorted(children - _after(nodes, chosen)))


def _at_its_index(node: Node, positions: set[int]) -> set[int]:
    """Limit the positions to the mapped group, if the task is a child of one."""
    return positions & node.along if node.is_mapped else positions


def _names(nodes: Sequence[Node], children: Iterable[int]) -> dict[str, set[int]]:
    """Return the names a branch may choose, of tasks and their groups, with their positions."""
    names: dict[str, set[int]] = {}
    for child in children:
        names.setdefault(nodes[child].task_id, set()).add(child)
        group = nodes[child].group
        while group:
            names.setdefault(group, set()).add(child)
            group = group.rpartition(".")[0]
    return names


def _children(nodes: Sequence[Node], position: int) -> set[int]:
    return {node.position for node in nodes if position in node.parents}


def _after(nodes: Sequence[Node], first: Iterable[int]) -> set[int]:
    """Return these positions and everything downstream of them."""
    seen = set(first)
    agenda = list(seen)
    while agenda:
        for child in _children(nodes, agenda.pop()) - seen:
            seen.add(child)
            agenda.append(child)
    return seen
