"""Mapped tasks that have waiters, with the number of children that have not ended."""

from __future__ import annotations

from bisect import bisect_right, insort

from aioflow.model.ids import RunNo, TaskNo

__all__ = ("Count", "Mapped")


class Count:
    """The children of a mapped task, ``first`` to ``end``.

    Attributes:
        missing: Number of children that had not ended at the last look-up. While fewer have ended
            since, the last one has not, so no look-up is needed.
        seen: Endings since that look-up began.
    """

    __slots__ = ("end", "first", "missing", "seen")

    def __init__(self, first: TaskNo, end: TaskNo) -> None:
        self.first = first
        self.end = end
        self.missing = 0
        self.seen = 0


class Mapped:
    """Mapped tasks that have waiters, by the number each would have if it were not mapped."""

    def __init__(self) -> None:
        self._at: dict[tuple[RunNo, int], TaskNo] = {}
        self._place: dict[TaskNo, tuple[RunNo, int]] = {}
        self._counts: dict[TaskNo, Count] = {}
        self._firsts: list[tuple[TaskNo, TaskNo]] = []

    def expect(self, task_no: TaskNo, run_no: RunNo, position: int) -> None:
        """Register a waiter for this mapped task so that its expansion is reported, see ``at``."""
        self._at[run_no, position] = task_no
        self._place[task_no] = (run_no, position)

    def at(self, run_no: RunNo, position: int) -> TaskNo | None:
        """Return the task at this position of a run, if it has waiters."""
        return self._at.get((run_no, position))

    def count(self, task_no: TaskNo, first: TaskNo, width: int) -> Count:
        """Begin a look-up: reset the count of endings, and count from now on."""
        count = self._counts.get(task_no)
        if count is None or (count.first, count.end) != (first, first + width):
            self._uncount(task_no)
            count = self._counts[task_no] = Count(first, first + width)
            if width:
                insort(self._firsts, (first, task_no))
        count.seen = 0
        return count

    def child_ended(self, child_no: TaskNo) -> TaskNo | None:
        """Return the task of which this may have been the last child to end."""
        at = bisect_right(self._firsts, (child_no + 1, -1)) - 1
        if at < 0:
            return None
        task_no = self._firsts[at][1]
        count = self._counts[task_no]
        if child_no >= count.end:
            return None
        count.seen += 1
        return task_no if count.seen >= count.missing else None

    def forget(self, task_no: TaskNo) -> None:
        """Remove a task that has no waiters any more."""
        place = self._place.pop(task_no, None)
        if place is not None:
            del self._at[place]
        self._uncount(task_no)

    def _uncount(self, task_no: TaskNo) -> None:
        count = self._counts.pop(task_no, None)
        if count is not None and count.first < count.end:
            self._firsts.remove((count.first, task_no))
