"""Fair shares of slots among DAGs of equal priority, however many tasks each of them has.

A new entry gets a *turn*: the amount of work of its DAG that will have been served by then in the
same queue, but at least the present turn, which is that of the entry served last. So eight thousand
tasks of one DAG get consecutive turns, and the first task of another DAG gets the turn of the first
of them, not the one after the last. A task that is expected to take less than 5 ms counts
proportionally less. Within one turn the DAG whose first task of that turn is the oldest goes first,
with all its tasks of that turn: short tasks of one DAG are claimed together and find its code
loaded, even if runs of many DAG files started in between. The cost is bounded: per DAG, newer tasks
pass an older one of the same rank and priority for less than 5 ms of expected work plus one task,
and only once. Pools that wait for the same slots share them in the same way.
"""

from __future__ import annotations

from typing import TypeAlias

__all__ = ("Fairness", "age_of")

STEP_US = 5_000

_WORTH_SWEEPING = 256
_AGE_BITS = 40
_TURN_BITS = 2 * _AGE_BITS

_QueueKey: TypeAlias = tuple[str, str]
_Class: TypeAlias = tuple[_QueueKey, int, int]
_Next: TypeAlias = tuple[float, int, int]
"""When the next task of a DAG may go; the turn of its last one; the age of the first in that."""

_FIRST: _Next = (0.0, -1, 0)


class Fairness:
    """The turns in all queues. After a restart all entries get new turns, the oldest first."""

    def __init__(self) -> None:
        self._age = 0
        self._now: dict[_Class, float] = {}
        self._next: dict[tuple[_Class, str], _Next] = {}
        self._swept = 0
        self._virtual_time: dict[str, float] = {}
        self._line_next: dict[_QueueKey, float] = {}

    def age(self) -> int:
        """Return a number that increases with each call."""
        self._age += 1
        return self._age

    def turn(
        self, queue_key: _QueueKey, rank: int, priority: int, dag_id: str, cost_us: float, age: int
    ) -> int:
        """Return when one more task of a DAG may go: a lower number goes first.

        Args:
            queue_key: The executor and the pool that it waits for.
            cost_us: How long it is expected to take; 0 if unknown.
            age: Decides within one turn: first by the age of the DAG's first task in it, then its
                own.
        """
        kind = (queue_key, rank, priority)
        following, last, first_age = self._next.get((kind, dag_id), _FIRST)
        at = max(self._now.get(kind, 0.0), following)
        number = int(at // STEP_US)
        if number != last:
            first_age = age
        self._next[kind, dag_id] = (at + _counts(cost_us), number, first_age)
        self._sweep()
        return (number << _TURN_BITS) + (first_age << _AGE_BITS) + age

    def line_turn(self, queue_key: _QueueKey) -> int:
        """Return the turn of a pool among the pools of an executor."""
        at = max(self._virtual_time.get(queue_key[0], 0.0), self._line_next.get(queue_key, 0.0))
        return int(at // STEP_US)

    def served(
        self, queue_key: _QueueKey, rank: int, priority: int, turn: int, cost_us: float
    ) -> None:
        """Record that an entry was given its slot."""
        kind = (queue_key, rank, priority)
        self._now[kind] = max(self._now.get(kind, 0.0), float((turn >> _TURN_BITS) * STEP_US))
        at = max(self._virtual_time.get(queue_key[0], 0.0), self._line_next.get(queue_key, 0.0))
        self._virtual_time[queue_key[0]] = at
        self._line_next[queue_key] = at + _counts(cost_us)

    def _sweep(self) -> None:
        """Forget DAGs that are not ahead of the present turn."""
        if len(self._next) > max(_WORTH_SWEEPING, 2 * self._swept):
            self._next = {
                key: of for key, of in self._next.items() if of[0] > self._now.get(key[0], 0.0)
            }
            self._swept = len(self._next)


def _counts(cost_us: float) -> float:
    return min(cost_us or STEP_US, STEP_US)


def age_of(turn: int) -> int:
    """Return the age that was passed for a turn."""
    return turn & ((1 << _AGE_BITS) - 1)
