"""Which tasks are skipped because a branch or a short circuit has said so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aioflow.author.node import Node, Part
from aioflow.errors import TaskError

__all__ = ("BadChoice", "skipped_by")


class BadChoice(TaskError):
    """A branch chose something that does not come after it.

    Args:
        task_id: The branch.
        chosen: What it returned, or the part of it that is wrong.
        possible: What it may return.
    """

    def __init__(self, task_id: str, chosen: object, possible: Sequence[str]) -> None:
        names = ", ".join(possible) or "nothing: no task comes after it"
        super().__init__(
            f"{task_id!r} chose {chosen!r:.200}; it may return the id of a task that comes right "
            f"after it, a list of them, or None. There is {names}"
        )


def skipped_by(node: Node, value: object) -> tuple[int, ...]:
    """Return the positions that the result of a task skips, ascending; of most tasks none.

    Raises:
        BadChoice: If a branch names a task that is no child of it.
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
    # What comes after a chosen task as well is one of its ways on, not another branch.
    return tuple(sorted(children - _after(nodes, chosen)))


def _at_its_index(node: Node, positions: set[int]) -> set[int]:
    """Return those that a child of a mapped group has a say in: what is in the group with it."""
    return positions & node.along if node.is_mapped else positions


def _names(nodes: Sequence[Node], children: Iterable[int]) -> dict[str, set[int]]:
    """Return what may be chosen: tasks, and the groups they stand in."""
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
    """Return these positions, and all that comes after them."""
    seen = set(first)
    agenda = list(seen)
    while agenda:
        for child in _children(nodes, agenda.pop()) - seen:
            seen.add(child)
            agenda.append(child)
    return seen
