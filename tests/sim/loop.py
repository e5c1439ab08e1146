"""A seeded event loop: any ready callback may run next, and time jumps to the next timer.

Callbacks are run one at a time through private attributes of CPython's event loop, as of Python
3.11. Nothing here may wait for a thread or a socket.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from anyio._backends._asyncio import CancelScope, TaskGroup

__all__ = ("SeededLoop", "Stalled", "cancelled_in_order")

ANYWHERE = (0.0, 0.1, 0.3, 1.0)
LATE = (0.0, 0.0, 0.002)
LATEST_SECONDS = 0.2


class Stalled(Exception):
    """No callback is ready and no timer is armed, so nothing will ever happen again."""


class SeededLoop(asyncio.SelectorEventLoop):
    """The event loop of a seed; see the module.

    Each seed has its own probability that callbacks run out of order, and that time passes before a
    callback runs, as on a busy machine.
    """

    _ready: Any
    _scheduled: list[Any]
    _stopping: bool

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._anywhere = rng.choice(ANYWHERE)
        self._late = rng.choice(LATE)
        self._virtual = 0.0

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual

    def _run_once(self) -> None:
        self._jump()
        while self._scheduled and self._scheduled[0]._when <= self._virtual:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                self._ready.append(handle)
        if not self._ready:
            return
        if len(self._ready) > 1 and self._rng.random() < self._anywhere:
            index = self._rng.randrange(len(self._ready))
            handle = self._ready[index]
            del self._ready[index]
        else:
            handle = self._ready.popleft()
        if not handle._cancelled:
            if self._late and self._rng.random() < self._late:
                self._virtual += self._rng.random() * LATEST_SECONDS
            self._run_handle(handle)

    def _run_handle(self, handle: Any) -> None:
        handle._run()

    def _jump(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        if not self._ready and not self._stopping:
            if not self._scheduled:
                raise Stalled
            self._virtual = max(self._virtual, self._scheduled[0]._when)


class _InOrder(dict[Any, None]):
    """The part of the set interface that anyio needs, in insertion order."""

    def add(self, entry: Any) -> None:
        self[entry] = None

    def discard(self, entry: Any) -> None:
        self.pop(entry, None)

    def remove(self, entry: Any) -> None:
        del self[entry]


@contextmanager
def cancelled_in_order() -> Iterator[None]:
    """Let anyio cancel tasks in the order in which they started instead of by their addresses."""
    scope, group = CancelScope.__init__, TaskGroup.__init__

    def ordered_scope(self: Any, *arguments: Any, **options: Any) -> None:
        scope(self, *arguments, **options)
        self._child_scopes, self._tasks = _InOrder(), _InOrder()

    def ordered_group(self: Any, *arguments: Any, **options: Any) -> None:
        group(self, *arguments, **options)
        self._tasks = _InOrder()

    with (
        patch.object(CancelScope, "__init__", ordered_scope),
        patch.object(TaskGroup, "__init__", ordered_group),
    ):
        yield
