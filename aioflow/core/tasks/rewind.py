"""Rewinding of loops to an earlier iteration: later ones are undone, the last one first.

After each slice the loop has only the remaining iterations, and is open. So an interrupted rewind
leaves a loop that is a few iterations shorter. The tasks of an undone iteration are
``removed``; their rows are used again when the same iteration starts again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aioflow.core.repair.reset import renewed
from aioflow.core.state.task_instance import MappedTask, Run
from aioflow.core.transaction import Transaction
from aioflow.model.states import TaskState

__all__ = ("begun_in", "shorten", "taken_back")

_GONE: Final = bytes((TaskState.PENDING, TaskState.REMOVED))


def begun_in(group: MappedTask, first: int) -> int:
    """Return how many tasks a rewind to this iteration undoes."""
    states = group.states[first:]
    return len(states) - sum(states.count(state) for state in _GONE)


def taken_back(run: Run) -> Iterator[list[tuple[MappedTask, int]]]:
    """Yield the tasks still to be undone, one whole iteration at a time."""
    for first, groups in _loops(run):
        widest = max((group.width for group in groups), default=0)
        for index in range(widest - 1, first - 1, -1):
            found = [(group, index) for group in groups if _has_to_go(group, index, first)]
            if found:
                yield found


def shorten(run: Run, tx: Transaction) -> None:
    """Shorten the loops to their remaining iterations."""
    for first, groups in _loops(run):
        left = max([first + 1, *map(_left, groups)])
        is_back = left == first + 1 and all(group.states[first] == 0 for group in groups)
        for group in groups:
            if group.width > left or (is_back and not group.is_open):
                _shorten(group, left, tx)


def _shorten(old: MappedTask, width: int, tx: Transaction) -> None:
    group = renewed(old)
    group.shorten(width)
    group.is_open = True
    tx.expansions.dissolve(group.run.run_no, group.position)
    tx.change_group(group, -1)


def _left(group: MappedTask) -> int:
    """Return the number of iterations up to the last one with something left to undo."""
    first = group.first_task_no
    cleared = group.run.cleared.between(first, first + group.width)
    last = max(cleared, default=first - 1)
    return max(len(group.states.rstrip(_GONE)), last - first + 1)


def _has_to_go(group: MappedTask, index: int, first: int) -> bool:
    state = group.states[index]
    if state == TaskState.PENDING:
        return index > first and group.first_task_no + index in group.run.cleared
    return index == first or state != TaskState.REMOVED


def _loops(run: Run) -> list[tuple[int, list[MappedTask]]]:
    """Return each loop that is rewound: the iteration, and its expanded tasks."""
    loops: dict[int, tuple[int, list[MappedTask]]] = {}
    for position, first in () if run.clearing is None else run.clearing.rounds:
        mapped = run.spec.tasks[position].mapped
        if mapped is not None and position in run.groups:
            loops.setdefault(mapped.until, (first, []))[1].append(run.groups[position])
    return list(loops.values())
