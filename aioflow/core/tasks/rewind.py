"""Loops that go back to a round: what came after it is taken back, the last round first.

After each slice a loop has the rounds that are left of it, and may go round again. So it is a
loop that stands a few rounds earlier, wherever that is cut short. The task of a round that is
taken back is ``removed``, and its row is that of the same round once it begins again.
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
    """Return how many tasks a person takes back who has a loop go back to this round."""
    states = group.states[first:]
    return len(states) - sum(states.count(state) for state in _GONE)


def taken_back(run: Run) -> Iterator[list[tuple[MappedTask, int]]]:
    """Yield what is still to be taken back, a whole round at a time."""
    for first, groups in _loops(run):
        widest = max((group.width for group in groups), default=0)
        for index in range(widest - 1, first - 1, -1):
            found = [(group, index) for group in groups if _has_to_go(group, index, first)]
            if found:
                yield found


def shorten(run: Run, tx: Transaction) -> None:
    """Have loops as many rounds as are left of them."""
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
    """Return how many rounds there are up to the last that still has something to be cleared."""
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
    """Return each loop: to which round it goes back, and its tasks that have any."""
    loops: dict[int, tuple[int, list[MappedTask]]] = {}
    for position, first in () if run.clearing is None else run.clearing.rounds:
        mapped = run.spec.tasks[position].mapped
        if mapped is not None and position in run.groups:
            loops.setdefault(mapped.until, (first, []))[1].append(run.groups[position])
    return list(loops.values())
