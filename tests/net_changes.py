"""Net changes: the states that chains of legal steps lead to.

The batch of a turn joins all steps of a task into a single change of its row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from aioflow.core.transitions import RUN_MOVES, TASK_MOVES
from aioflow.model.states import RunState, TaskState

__all__ = ("net_is_reachable", "net_is_reachable_run")


def net_is_reachable(was: TaskState, state: TaskState) -> bool:
    """Return whether legal steps lead from ``was`` to ``state`` without a clear in between.

    A live task may also keep its state while other columns change. An ended task may not.
    """
    return (was, state) in _TASK


def net_is_reachable_run(was: RunState, state: RunState) -> bool:
    """Return whether legal steps, including clears, lead a run from ``was`` to ``state``."""
    return (was, state) in _RUN


def _chained(unchanged: Iterable[int], moves: Collection[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the pairs of states connected by chains of moves, and states that may remain."""
    reached = {(state, state) for state in unchanged}
    before = -1
    while len(reached) > before:
        before = len(reached)
        reached |= {(a, d) for a, b in reached for c, d in moves if b == c}
    return reached


_TASK = _chained(
    [state for state in TaskState if state.is_live],
    [move for move in TASK_MOVES if move[1] is not TaskState.PENDING],
)
_RUN = _chained(RunState, RUN_MOVES)
