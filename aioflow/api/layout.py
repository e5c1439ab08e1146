"""Where the tasks of a run lie, by (position, map index), whether they have rows or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from aioflow.model.dag import DagSpec
from aioflow.model.ids import TaskNo
from aioflow.model.rows import ExpansionRow, RunRow
from aioflow.model.states import RunState, TaskState

__all__ = ("Layout", "Place", "absent_state")


class Place(msgspec.Struct, frozen=True):
    """One task of a run."""

    position: int
    map_index: int
    task_no: TaskNo


class Layout:
    """The places of a run.

    Args:
        run: Which.
        spec: Of the run's version.
        expansions: Those known so far; a mapped task without one has a single place.
    """

    def __init__(self, run: RunRow, spec: DagSpec, expansions: Sequence[ExpansionRow]) -> None:
        self.spec = spec
        self._first = run.first_task_no
        self._expansions = {  # a damaged row may name a task that the DAG does not have
            one.position: one for one in expansions if one.position < len(spec.tasks)
        }

    @property
    def total(self) -> int:
        """How many places there are."""
        return sum(self.width(position) for position in range(len(self.spec.tasks)))

    def width(self, position: int) -> int:
        """Return how many places a task has."""
        expansion = self._expansions.get(position)
        return 1 if expansion is None else expansion.width

    def is_expanded(self, position: int) -> bool:
        """Whether a task has children."""
        return position in self._expansions

    def is_open(self, position: int) -> bool:
        """Whether it has children, and a stream may bring more."""
        expansion = self._expansions.get(position)
        return expansion is not None and expansion.is_open

    def shown(self, place: Place) -> tuple[int, int]:
        """Return the map index and the round of a place, as people are told them."""
        if not self.is_in_loop(place.position):
            return place.map_index, 0
        return -1, max(place.map_index, 0)

    def is_in_loop(self, position: int) -> bool:
        """Return whether a task goes round; its ``width`` is how many rounds have begun."""
        mapped = self.spec.tasks[position].mapped
        return mapped is not None and mapped.until >= 0

    def last_round(self, position: int) -> int:
        """Return the index of the last round of a task that has begun; -1 if it is in no loop."""
        is_round = self.is_in_loop(position) and self.is_expanded(position)
        return self.width(position) - 1 if is_round else -1

    def place(self, position: int, map_index: int) -> Place | None:
        """Return where one task lies, ``None`` if it has no such child or round.

        Args:
            map_index: Of one in a loop the round; -1 for the last one there is, and of a mapped
                task for that as a whole.
        """
        is_to_come = self.is_in_loop(position) and not self.is_expanded(position)
        if map_index < 0 or (map_index == 0 and is_to_come):
            map_index = self.last_round(position)
        if map_index < 0:
            return Place(position, -1, self._first + position)
        task_no = self.task_no(position, map_index)
        return None if task_no is None else Place(position, map_index, task_no)

    def task_no(self, position: int, map_index: int) -> TaskNo | None:
        """Return the row's number, ``None`` if the task has no such index."""
        expansion = self._expansions.get(position)
        if expansion is None:
            return self._first + position if map_index < 0 else None
        return expansion.first_task_no + map_index if 0 <= map_index < expansion.width else None

    def find(self, task_no: TaskNo) -> Place | None:
        """Return the place of a row."""
        position = task_no - self._first
        if 0 <= position < len(self.spec.tasks):
            return Place(position, -1, task_no)
        for expansion in self._expansions.values():
            map_index = task_no - expansion.first_task_no
            if 0 <= map_index < expansion.width:
                return Place(expansion.position, map_index, task_no)
        return None

    def page(self, offset: int, limit: int) -> list[Place]:
        """Return the places from ``offset`` on, at most ``limit``."""
        found: list[Place] = []
        for position in range(len(self.spec.tasks)):
            width = self.width(position)
            if offset >= width:
                offset -= width
                continue
            found.extend(self._places(position, offset, offset + limit - len(found)))
            offset = 0
            if len(found) >= limit:
                break
        return found

    def _places(self, position: int, start: int, end: int) -> Iterator[Place]:
        expansion = self._expansions.get(position)
        if expansion is None:
            yield Place(position, -1, self._first + position)
            return
        for map_index in range(start, min(end, expansion.width)):
            yield Place(position, map_index, expansion.first_task_no + map_index)

    @staticmethod
    def ranges(places: Sequence[Place], longest: int) -> Iterator[tuple[TaskNo, TaskNo]]:
        """Yield ``(first, end)`` of neighbouring rows, so that few reads find them all."""
        first = end = -1
        for place in places:
            if place.task_no == end and end - first < longest:
                end += 1
                continue
            if end > first:
                yield first, end
            first, end = place.task_no, place.task_no + 1
        if end > first:
            yield first, end

    def counts(
        self, rows: Sequence[tuple[int, TaskState, int]], run_state: RunState
    ) -> dict[str, int]:
        """Return how many tasks are in each state, of all of them.

        Args:
            rows: As ``Store.count_states`` returns them.
            run_state: Tells what a task without a row is.
        """
        counts: dict[str, int] = {}
        for _, state, count in rows:
            counts[state.label] = counts.get(state.label, 0) + count
        absent = self.total - sum(count for _, _, count in rows)
        if absent > 0:
            label = absent_state(run_state).label
            counts[label] = counts.get(label, 0) + absent
        return dict(sorted(counts.items()))


def absent_state(run_state: RunState) -> TaskState:
    """Return the state of a task that has no row: it is to come, or has ended with its run.

    A run ends well before its tasks have where a person marked it so.
    """
    if run_state.is_live:
        return TaskState.PENDING
    return TaskState.SUCCESS if run_state is RunState.SUCCESS else TaskState.CANCELLED
