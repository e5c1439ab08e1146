"""The chain of causes: a task waits for its parents, those for theirs, down to what is real."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from aioflow.api.layout import Layout, Place, absent_state
from aioflow.api.reader import Counted
from aioflow.api.views import CauseView, wait_view
from aioflow.model import LIVE_TASK_STATES, TaskState, Wait, WaitKind
from aioflow.rows import RunRow, TaskRow
from aioflow.store import Store

__all__ = ("CHAIN_LIMIT", "Chain", "Explained")

CHAIN_LIMIT = 100
"""Links in one answer. Who needs more asks about one of them."""

_CHILDREN_SHOWN = 3
_PAGES_SEARCHED = 20
_PAGE = 1_000

Explained: TypeAlias = Mapping[tuple[int, int], Wait | None]


class _Link(msgspec.Struct, frozen=True):
    depth: int
    place: Place


class Chain:
    """Walks from what waits to what it waits for; every task is met once.

    Args:
        count: Tells how its tasks stand, see ``Api.states``; asked once, where it matters.
        explain: Asks the engine what tasks of the run wait for, a level at a time.
    """

    def __init__(
        self,
        run: RunRow,
        layout: Layout,
        count: Callable[[], Awaitable[Counted]],
        store: Store,
        explain: Callable[[Sequence[tuple[int, int]]], Awaitable[Explained]],
    ) -> None:
        self._run = run
        self._layout = layout
        self._count = count
        self._counted: Counted | None = None
        self._store = store
        self._explain = explain
        self._seen: set[Place] = set()
        self._left_out = 0

    async def of_task(self, place: Place) -> tuple[list[CauseView], int]:
        """Return the chain that begins at one task, and how many links were left out."""
        return await self._walk([place])

    async def of_run(self) -> tuple[list[CauseView], int]:
        """Return what the run waits for in the end: its unfinished tasks, parents first.

        A task that only waits for others of the run is no news and left out.
        """
        found: list[CauseView] = []
        left_out = 0
        for position in range(len(self._layout.spec.tasks)):
            for place in await self._unfinished(position):
                (cause,) = await self._causes([_Link(0, place)])
                if cause.waiting_on is not None and cause.waiting_on.kind == WaitKind.UPSTREAM:
                    continue
                if len(found) < CHAIN_LIMIT:
                    found.append(cause)
                else:
                    left_out += 1
        return found, left_out + self._left_out

    async def _walk(self, places: Sequence[Place]) -> tuple[list[CauseView], int]:
        """Go down level by level, then put each link behind the one that waits for it."""
        below: dict[Place, list[Place]] = {}
        causes: dict[Place, CauseView] = {}
        level = deque(_Link(0, place) for place in places)
        self._seen.update(places)
        while level:
            links = list(level)
            level.clear()
            for link, cause in zip(links, await self._causes(links), strict=True):
                causes[link.place] = cause
                below[link.place] = await self._next(link, cause)
                level.extend(_Link(link.depth + 1, place) for place in below[link.place])
        ordered: list[CauseView] = []
        stack = list(reversed(places))
        while stack:
            place = stack.pop()
            ordered.append(causes[place])
            stack.extend(reversed(below[place]))
        return ordered, self._left_out

    async def _next(self, link: _Link, cause: CauseView) -> list[Place]:
        if cause.waiting_on is None:
            if link.place.map_index < 0 and self._layout.is_expanded(link.place.position):
                return self._unmet(await self._unfinished(link.place.position))
            return []
        if cause.waiting_on.kind != WaitKind.UPSTREAM:
            return []
        found: list[Place] = []
        for parent in self._layout.spec.tasks[link.place.position].parents:
            found += await self._unfinished(parent)
        return self._unmet(found)

    def _unmet(self, places: Sequence[Place]) -> list[Place]:
        fresh = [place for place in places if place not in self._seen]
        room = max(CHAIN_LIMIT - len(self._seen), 0)
        self._left_out += max(len(fresh) - room, 0)
        self._seen.update(fresh[:room])
        return fresh[:room]

    async def _causes(self, links: Sequence[_Link]) -> list[CauseView]:
        asked = [(link.place.position, link.place.map_index) for link in links]
        waits = await self._explain(asked)
        return [
            self._view(link, await self._state(link.place), await self._label(link.place), wait)
            for link, wait in zip(links, map(waits.get, asked), strict=True)
        ]

    def _view(
        self, link: _Link, state: TaskState, label: str | None, wait: Wait | None
    ) -> CauseView:
        map_index, round_number = self._layout.shown(link.place)
        return CauseView(
            depth=link.depth,
            task_id=self._layout.spec.tasks[link.place.position].task_id,
            map_index=map_index,
            round=round_number,
            map_label=label,
            state=state.label,
            waiting_on=wait_view(wait),
        )

    async def _state(self, place: Place) -> TaskState:
        if place.map_index < 0 and self._layout.is_expanded(place.position):
            return await self._group_state(place.position)
        rows = await self._store.list_tasks_between(place.task_no, place.task_no + 1)
        return rows[0].state if rows else absent_state(self._run.state)

    async def _states(self) -> Counted:
        if self._counted is None:
            self._counted = await self._count()
        return self._counted

    async def _label(self, place: Place) -> str | None:
        if place.map_index < 0:
            return None
        found = await self._store.list_labels(place.task_no, place.task_no + 1)
        return found.get(place.task_no)

    async def _group_state(self, position: int) -> TaskState:
        """Return the state of a mapped task as a whole: that of its least finished children."""
        counted = {
            state: count
            for at, state, count in await self._states()
            if at == position and state is not TaskState.PENDING
        }
        if sum(counted.values()) < self._layout.width(position):
            return TaskState.RUNNING if counted else absent_state(self._run.state)
        if any(state.is_live for state in counted) or self._layout.is_open(position):
            return TaskState.RUNNING
        last = self._layout.last_round(position)
        if last >= 0:
            return await self._state(self._children(position, last)[0])
        for state in (TaskState.FAILED, TaskState.CANCELLED, TaskState.UPSTREAM_FAILED):
            if state in counted:
                return state
        return TaskState.SUCCESS if TaskState.SUCCESS in counted else TaskState.SKIPPED

    async def _unfinished(self, position: int) -> list[Place]:
        """Return a few places of a task that have not ended; of many, some stand for all."""
        if not self._layout.is_expanded(position):
            task_no = self._run.first_task_no + position
            place = Place(position, -1, task_no)
            return [place] if (await self._state(place)).is_live else []
        return await self._unfinished_children(position)

    async def _unfinished_children(self, position: int) -> list[Place]:
        ended = sum(
            count
            for at, state, count in await self._states()
            if at == position and state not in LIVE_TASK_STATES
        )
        left = self._layout.width(position) - ended
        if left <= 0 and self._run.state.is_live and self._layout.is_open(position):
            return await self._maker_of(position)
        if left <= 0 or not self._run.state.is_live:
            return []
        found: list[Place] = []
        for page in range(_PAGES_SEARCHED):
            places = self._children(position, page * _PAGE)
            if not places or len(found) >= min(_CHILDREN_SHOWN, left):
                break
            rows = await self._rows(places)
            found += [place for place in places if _is_live(rows.get(place.task_no))]
        found = found[:_CHILDREN_SHOWN]
        self._left_out += left - len(found)
        return found

    async def _maker_of(self, position: int) -> list[Place]:
        """All of its children have ended: whoever may bring more is what is waited for."""
        mapped = self._layout.spec.tasks[position].mapped
        if mapped is not None and mapped.until not in {-1, position}:
            return await self._unfinished(mapped.until)
        source = -1 if mapped is None else mapped.sources[0].position
        return [] if source < 0 else [Place(source, -1, self._run.first_task_no + source)]

    def _children(self, position: int, start: int) -> list[Place]:
        end = min(start + _PAGE, self._layout.width(position))
        first = self._layout.task_no(position, 0) or 0
        return [Place(position, index, first + index) for index in range(start, end)]

    async def _rows(self, places: Sequence[Place]) -> dict[int, TaskRow]:
        found = await self._store.list_tasks_between(
            places[0].task_no, places[-1].task_no + 1, limit=len(places)
        )
        return {row.task_no: row for row in found}


def _is_live(row: TaskRow | None) -> bool:
    return row is None or row.state.is_live
