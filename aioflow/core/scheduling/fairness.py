"""Whose turn it is among DAGs of equal priority: each gets its share of the places, however wide.

What begins to wait is given a *turn*: how many of its DAG will have been served by then, in
the same queue, but never less than the present, which is the turn of whoever was served last.
So eight thousand tasks of one DAG stand in a row, and the first of another stands beside the
head of that row, not behind its end. A task that is expected to take less than 5 ms counts
for as much less. Within one turn the DAG whose first task of that turn is the oldest goes first,
with all its tasks of that turn: short tasks of one DAG are claimed together and find its code
loaded, also where runs of many DAG files began in between. The price is bounded: of each DAG,
tasks that were ready later pass an older one of the same rank and priority for less than 5 ms of
expected work and one task more, and only once. Pools that wait for the same places share them in
the same way.
"""

from __future__ import annotations

from typing import TypeAlias

__all__ = ("Fairness", "age_of")

STEP_US = 5_000

_WORTH_SWEEPING = 256
_AGE_BITS = 40
_TURN_BITS = 2 * _AGE_BITS

_Line: TypeAlias = tuple[str, str]
_Class: TypeAlias = tuple[_Line, int, int]
_Next: TypeAlias = tuple[float, int, int]
"""When the next of a DAG may go; the turn of its last, and the age of its first in that turn."""

_FIRST: _Next = (0.0, -1, 0)


class Fairness:
    """The turns. A restart begins anew: all that waits is told its turn again, oldest first."""

    def __init__(self) -> None:
        self._age = 0
        self._now: dict[_Class, float] = {}
        self._next: dict[tuple[_Class, str], _Next] = {}
        self._swept = 0
        self._lane_now: dict[str, float] = {}
        self._line_next: dict[_Line, float] = {}

    def age(self) -> int:
        """Return a number that grows."""
        self._age += 1
        return self._age

    def turn(
        self, line: _Line, rank: int, priority: int, dag_id: str, cost_us: float, age: int
    ) -> int:
        """Return when one more of a DAG may go: less is sooner.

        Args:
            line: The lane and the pool it waits in.
            cost_us: How long it is expected to take; 0 if that is not known.
            age: Decides within one turn: that of the DAG's first task in it, then its own.
        """
        kind = (line, rank, priority)
        following, last, first_age = self._next.get((kind, dag_id), _FIRST)
        at = max(self._now.get(kind, 0.0), following)
        number = int(at // STEP_US)
        if number != last:
            first_age = age
        self._next[kind, dag_id] = (at + _counts(cost_us), number, first_age)
        self._sweep()
        return (number << _TURN_BITS) + (first_age << _AGE_BITS) + age

    def line_turn(self, line: _Line) -> int:
        """Return whose turn it is among the pools of a lane."""
        at = max(self._lane_now.get(line[0], 0.0), self._line_next.get(line, 0.0))
        return int(at // STEP_US)

    def served(self, line: _Line, rank: int, priority: int, turn: int, cost_us: float) -> None:
        """One of them was given its place."""
        kind = (line, rank, priority)
        self._now[kind] = max(self._now.get(kind, 0.0), float((turn >> _TURN_BITS) * STEP_US))
        at = max(self._lane_now.get(line[0], 0.0), self._line_next.get(line, 0.0))
        self._lane_now[line[0]] = at
        self._line_next[line] = at + _counts(cost_us)

    def _sweep(self) -> None:
        """Forget DAGs that have no more of a turn than anybody."""
        if len(self._next) > max(_WORTH_SWEEPING, 2 * self._swept):
            self._next = {
                key: of for key, of in self._next.items() if of[0] > self._now.get(key[0], 0.0)
            }
            self._swept = len(self._next)


def _counts(cost_us: float) -> float:
    return min(cost_us or STEP_US, STEP_US)


def age_of(turn: int) -> int:
    """Return the age that a turn was given with."""
    return turn & ((1 << _AGE_BITS) - 1)
