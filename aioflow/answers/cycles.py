"""Who waits for whom among runs, and whether that leads back to where it began.

A task that waits for another run is found here while it asks how that ends. A wait for one
task of a run leads on only from that task and those before it: the others need not end first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from aioflow.model import DagSpec, RunNo

__all__ = ("LOOKED_AT", "Cycles", "Waiting", "before")

LOOKED_AT = 1_000
"""Waits looked at for one cycle at most: beyond these none is found."""


class Waiting(msgspec.Struct, frozen=True, eq=False):
    """A task waits for another run, or a task of it.

    Attributes:
        run_no: Of the task that waits.
        position: Which task that is.
        map_index: -1 for a task that is not mapped.
        awaited: The run it waits for.
        run_id: The name of that.
        leads_to: Positions in it that have to end first; ``None`` for all.
    """

    run_no: RunNo
    position: int
    map_index: int
    awaited: RunNo
    run_id: str
    leads_to: frozenset[int] | None


class Cycles:
    """The waits there are, by the run that waits.

    Args:
        still_waits: Whether a task, by run, position and map index, waits for anything now. A
            question outlives the wait it was asked for: nobody takes it back.
    """

    def __init__(self, still_waits: Callable[[RunNo, int, int], bool]) -> None:
        self._still_waits = still_waits
        self._by_run: dict[RunNo, set[Waiting]] = {}
        self._told: set[frozenset[RunNo]] = set()

    def add(self, waiting: Waiting) -> str:
        """Enter a wait; return the cycle it closes, if it does and nobody was told of that."""
        self._by_run.setdefault(waiting.run_no, set()).add(waiting)
        found = self._from(waiting)
        runs = frozenset(each.run_no for each in found)
        if not found or runs in self._told:
            return ""
        if len(self._told) >= LOOKED_AT:
            self._told.clear()
        self._told.add(runs)
        return _said(found)

    def remove(self, waiting: Waiting) -> None:
        """It waits no longer."""
        waits = self._by_run.get(waiting.run_no, set())
        waits.discard(waiting)
        if not waits:
            self._by_run.pop(waiting.run_no, None)

    def of_task(self, run_no: RunNo, position: int, map_index: int) -> str:
        """Say which cycle a task stands in, as ``a -> b -> a``; empty if it stands in none."""
        for waiting in self._by_run.get(run_no, ()):
            if (waiting.position, waiting.map_index) == (position, map_index):
                found = self._from(waiting)
                if found:
                    return _said(found)
        return ""

    def _from(self, first: Waiting) -> list[Waiting]:
        """Return the waits of a shortest cycle that begins with this one; none if it has none."""
        came_from: dict[Waiting, Waiting | None] = {first: None}
        agenda = [first]
        for waiting in agenda:
            for following in self._following(waiting):
                if following is first:
                    return _path(waiting, came_from)
                if following not in came_from:
                    came_from[following] = waiting
                    agenda.append(following)
                if len(agenda) > LOOKED_AT:
                    return []
        return []

    def _following(self, waiting: Waiting) -> Iterator[Waiting]:
        leads_to = waiting.leads_to
        for other in self._by_run.get(waiting.awaited, ()):
            if leads_to is not None and other.position not in leads_to:
                continue
            if self._still_waits(other.run_no, other.position, other.map_index):
                yield other


def before(spec: DagSpec, position: int) -> frozenset[int]:
    """Return a task and all that have to end before it."""
    found = {position}
    agenda = [position]
    while agenda:
        fresh = set(spec.tasks[agenda.pop()].parents) - found
        found |= fresh
        agenda.extend(fresh)
    return frozenset(found)


def _path(last: Waiting, came_from: dict[Waiting, Waiting | None]) -> list[Waiting]:
    path: list[Waiting] = []
    at: Waiting | None = last
    while at is not None:
        path.append(at)
        at = came_from[at]
    return path[::-1]


def _said(found: list[Waiting]) -> str:
    names = [waiting.run_id for waiting in found]
    return " -> ".join((names[-1], *names))
