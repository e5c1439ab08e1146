"""Detection of cycles in which runs wait for each other.

If a task waits for another run, its query for the end of that run is known here. A wait for one
task of a run depends only on that task and the tasks before it: other tasks of the run need not end
first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aioflow.model.dag import DagSpec
from aioflow.model.ids import RunNo
from aioflow.queries.waits import Wait, WaitNo, Waits

__all__ = ("WAITS_LIMIT", "Cycles", "before")

WAITS_LIMIT = 1_000
"""Maximum number of waits that a search examines. If a search needs more, it finds no cycle."""


class Cycles:
    """Finds cycles among the current waits. It stores no waits itself.

    Args:
        still_waits: Returns whether a task, given by run, task index and map index, is waiting now.
            A wait may still be registered after its task has stopped waiting, if other waits share
            its query.
    """

    def __init__(self, waits: Waits, still_waits: Callable[[RunNo, int, int], bool]) -> None:
        self._waits = waits
        self._still_waits = still_waits
        self._told: set[frozenset[RunNo]] = set()

    def closed_by(self, no: WaitNo) -> str:
        """Return the cycle that a wait closes; empty if none, or if it was reported earlier."""
        found = self._from(no)
        runs = frozenset(each.run_no for each in found)
        if not found or runs in self._told:
            return ""
        if len(self._told) >= WAITS_LIMIT:
            self._told.clear()
        self._told.add(runs)
        return _said(found)

    def of_task(self, run_no: RunNo, task_index: int, map_index: int) -> str:
        """Return the cycle that a task is part of, as ``a -> b -> a``; empty if there is none."""
        for no, wait in self._waits.of_run(run_no):
            if (wait.task_index, wait.map_index) == (task_index, map_index):
                found = self._from(no)
                if found:
                    return _said(found)
        return ""

    def _from(self, first: WaitNo) -> list[Wait]:
        """Return the waits of a shortest cycle that starts with ``first``; empty if none."""
        came_from: dict[WaitNo, WaitNo | None] = {first: None}
        agenda = [first]
        for no in agenda:
            for following in self._following(no):
                if following == first:
                    return self._path(no, came_from)
                if following not in came_from:
                    came_from[following] = no
                    agenda.append(following)
                if len(agenda) > WAITS_LIMIT:
                    return []
        return []

    def _following(self, no: WaitNo) -> Iterator[WaitNo]:
        wait = self._waits.get(no)
        if wait is None or wait.awaited < 0:
            return
        leads_to = self._waits.leads_to(wait)
        for other_no, other in self._waits.of_run(wait.awaited):
            if leads_to is not None and other.task_index not in leads_to:
                continue
            if self._still_waits(other.run_no, other.task_index, other.map_index):
                yield other_no

    def _path(self, last: WaitNo, came_from: dict[WaitNo, WaitNo | None]) -> list[Wait]:
        path: list[Wait] = []
        at: WaitNo | None = last
        while at is not None:
            wait = self._waits.get(at)
            path += [] if wait is None else [wait]
            at = came_from[at]
        return path[::-1]


def before(spec: DagSpec, task_index: int) -> frozenset[int]:
    """Return the indexes of a task and of all tasks that have to end before it."""
    found = {task_index}
    agenda = [task_index]
    while agenda:
        fresh = set(spec.tasks[agenda.pop()].parents) - found
        found |= fresh
        agenda.extend(fresh)
    return frozenset(found)


def _said(found: list[Wait]) -> str:
    names = [wait.awaited_id for wait in found]
    return " -> ".join((names[-1], *names))
