"""Limits connections per origin, per DAG, and in total, with a timeout for the wait.

A server that does not respond can only use up the connections of its origin, and a DAG that calls
a hundred such servers only those of the DAG. If all are in use, the next free one goes to the DAG
with the fewest.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

__all__ = ("ALL", "PER_DAG", "PER_ORIGIN", "ConnectionSlots", "NoConnectionSlot")

PER_ORIGIN = 20
PER_DAG = 60
ALL = 400
"""A process has some hundred file descriptors for everything."""

_Queue: TypeAlias = deque[asyncio.Future[None]]


class NoConnectionSlot(Exception):
    """No connection slot became free in time."""


class ConnectionSlots:
    """The connection slots of one event loop."""

    def __init__(self) -> None:
        self._all = 0
        self._of_origin: Counter[str] = Counter()
        self._of_dag: Counter[str] = Counter()
        self._waiting: dict[str, dict[str, _Queue]] = {}  # by DAG, and by origin

    @asynccontextmanager
    async def place(self, dag: str, origin: str, seconds: float) -> AsyncIterator[None]:
        """Hold a connection slot within a ``with``.

        Args:
            seconds: How long to wait for it.

        Raises:
            NoPlace: If none became free in time.
        """
        if self._has_room(dag, origin):
            self._take(dag, origin)
        else:
            await self._wait(dag, origin, seconds)
        try:
            yield
        finally:
            self._give_back(dag, origin)

    def _has_room(self, dag: str, origin: str) -> bool:
        return (
            self._all < ALL and self._of_dag[dag] < PER_DAG and self._of_origin[origin] < PER_ORIGIN
        )

    def _take(self, dag: str, origin: str) -> None:
        self._all += 1
        self._of_dag[dag] += 1
        self._of_origin[origin] += 1

    def _give_back(self, dag: str, origin: str) -> None:
        self._all -= 1
        for counts, key in ((self._of_dag, dag), (self._of_origin, origin)):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
        self._hand_on()

    async def _wait(self, dag: str, origin: str, seconds: float) -> None:
        """Wait until a slot is handed over; it counts as taken then."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(dag, {}).setdefault(origin, deque())
        queue.append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as exc:
            if turn.done() and not turn.cancelled():
                self._give_back(dag, origin)  # handed over at the moment of the timeout
            else:
                self._forget(dag, origin, turn)
            if isinstance(exc, TimeoutError):
                raise NoConnectionSlot(f"no connection was free within {seconds:g} s") from None
            raise

    def _forget(self, dag: str, origin: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(dag, {}).get(origin)
        if queue is not None and turn in queue:
            queue.remove(turn)
            self._tidy(dag, origin)

    def _hand_on(self) -> None:
        """Hand free slots to waiters, starting with the DAG that has the fewest."""
        while (chosen := self._next()) is not None:
            dag, origin = chosen
            turn = self._waiting[dag][origin].popleft()
            self._tidy(dag, origin)
            if not turn.done():
                self._take(dag, origin)
                turn.set_result(None)

    def _next(self) -> tuple[str, str] | None:
        for dag in sorted(self._waiting, key=self._of_dag.__getitem__):
            for origin in self._waiting[dag]:
                if self._has_room(dag, origin):
                    return dag, origin
        return None

    def _tidy(self, dag: str, origin: str) -> None:
        """Drop an empty queue; move a queue that was served behind the others."""
        queue = self._waiting[dag].pop(origin)
        if queue:
            self._waiting[dag][origin] = queue
        elif not self._waiting[dag]:
            del self._waiting[dag]
