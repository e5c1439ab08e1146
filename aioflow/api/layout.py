"""Row numbers of a run's task instances by (position, map index), with or without rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from aioflow.model.dag import DagSpec
from aioflow.model.ids import TaskNo
from aioflow.model.rows import ExpansionRow, RunRow
from aioflow.model.states import RunState, TaskState

__all__ = ("Layout", "TaskLocation", "absent_state")


class TaskLocation(msgspec.Struct, frozen=True):
    """The location of one task instance in a run."""

    position: int
    map_index: int
    task_no: TaskNo


class Layout:
    """The locations of all task instances of a run.

    Args:
        run: The run.
        spec: The DAG as of the run's version.
        expansions: Those known so far. A mapped task without one counts as one instance.
    """

    def __init__(self, run: RunRow, spec: DagSpec, expansions: Sequence[ExpansionRow]) -> None:
        self.spec = spec
        self._first = run.first_task_no
        self._expansions = {  # a damaged row may name a task that the DAG does not have
            one.position: one for one in expansions if one.position < len(spec.tasks)
        }

    @property
    def total(self) -> int:
        """Number of task instances."""
        return sum(self.width(position) for position in range(len(self.spec.tasks)))

    def width(self, position: int) -> int:
        """Return the number of instances of a task."""
        expansion = self._expansions.get(position)
        return 1 if expansion is None else expansion.width

    def is_expanded(self, position: int) -> bool:
        """Return whether a task has children."""
        return position in self._expansions

    def is_open(self, position: int) -> bool:
        """Return whether a task has children and a stream may add more."""
        expansion = self._expansions.get(position)
        return expansion is not None and expansion.is_open

    def shown(self, place: TaskLocation) -> tuple[int, int]:
        """Return the map index and iteration of a task instance as shown to users."""
        if not self.is_in_loop(place.position):
            return place.map_index, 0
        return -1, max(place.map_index, 0)

    def is_in_loop(self, position: int) -> bool:
        """Return whether a task is in a loop; its ``width`` is the number of iterations begun."""
        mapped = self.spec.tasks[position].mapped
        return mapped is not None and mapped.until >= 0

    def last_round(self, position: int) -> int:
        """Return the last iteration of a task that has begun; -1 if the task is in no loop."""
        is_round = self.is_in_loop(position) and self.is_expanded(position)
        return self.width(position) - 1 if is_round else -1

    def place(self, position: int, map_index: int) -> TaskLocation | None:
        """Locate a task instance; ``None`` if that child or iteration does not exist.

        Args:
            map_index: The child; in a loop, the iteration. -1 means the mapped task as a whole, or
                the loop's last iteration.
        """
        is_to_come = self.is_in_loop(position) and not self.is_expanded(position)
        if map_index < 0 or (map_index == 0 and is_to_come):
            map_index = self.last_round(position)
        if map_index < 0:
            return TaskLocation(position, -1, self._first + position)
        task_no = self.task_no(position, map_index)
        return None if task_no is None else TaskLocation(position, map_index, task_no)

    def task_no(self, position: int, map_index: int) -> TaskNo | None:
        """Return the row number of a task instance; ``None`` if the index does not exist."""
        expansion = self._expansions.get(position)
        if expansion is None:
            return self._first + position if map_index < 0 else None
        return expansion.first_task_no + map_index if 0 <= map_index < expansion.width else None

    def find(self, task_no: TaskNo) -> TaskLocation | None:
        """Return the location of a row number; ``None`` if it is not of this run."""
        position = task_no - self._first
        if 0 <= position < len(self.spec.tasks):
            return TaskLocation(position, -1, task_no)
        for expansion in self._expansions.values():
            map_index = task_no - expansion.first_task_no
            if 0 <= map_index < expansion.width:
                return TaskLocation(expansion.position, map_index, task_no)
        return None

    def page(self, offset: int, limit: int) -> list[TaskLocation]:
        """Return the locations from ``offset`` on, at most ``limit``."""
        found: list[TaskLocation] = []
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

    def _places(self, position: int, start: int, end: int) -> Iterator[TaskLocation]:
        expansion = self._expansions.get(position)
        if expansion is None:
            yield TaskLocation(position, -1, self._first + position)
            return
        for map_index in range(start, min(end, expansion.width)):
            yield TaskLocation(position, map_index, expansion.first_task_no + map_index)

    @staticmethod
    def ranges(places: Sequence[TaskLocation], longest: int) -> Iterator[tuple[TaskNo, TaskNo]]:
        """Yield ``(first, end)`` of adjacent row numbers, so that few queries cover all of them."""
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
        """Return the number of task instances in each state, including those without a row.

        Args:
            rows: As ``Store.count_states`` returns them.
            run_state: Determines the state of task instances without a row.
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
    """Return the state of a task without a row.

    It is pending in a live run, successful in a successful one, and cancelled otherwise. A run that
    was marked manually has ended although its tasks had not.
    """
    if run_state.is_live:
        return TaskState.PENDING
    return TaskState.SUCCESS if run_state is RunState.SUCCESS else TaskState.CANCELLED
