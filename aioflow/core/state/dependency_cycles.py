"""Cycles of tasks that depend on each other."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ("cycles",)


def cycles(children: tuple[tuple[int, ...], ...]) -> Iterator[list[int]]:
    """Yield disjoint cycles, each with its first task repeated at the end.

    This is a depth-first search with an explicit stack. Each strongly connected component that
    contains a cycle yields at least one cycle, because the first back edge found in the component
    cannot meet a cycle of another component.
    """
    reported: set[int] = set()
    visited = bytearray(len(children))
    for start in range(len(children)):
        if visited[start]:
            continue
        visited[start] = 1
        path = [start]
        depth_of = {start: 0}
        pending = [iter(children[start])]
        while path:
            child = next(pending[-1], None)
            if child is None:
                pending.pop()
                del depth_of[path.pop()]
            elif child in depth_of:
                cycle = path[depth_of[child] :]
                if reported.isdisjoint(cycle):
                    reported.update(cycle)
                    yield [*cycle, child]
            elif not visited[child]:
                visited[child] = 1
                depth_of[child] = len(path)
                path.append(child)
                pending.append(iter(children[child]))
