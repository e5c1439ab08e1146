"""An event loop under a seed: any of what is ready may run next, and time jumps to the next timer.

Runs callbacks one at a time through the private lists of CPython's loop, as they are in
Python 3.11; nothing here may wait for a thread or a socket.
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
    """Nothing is ready and no timer is armed: nothing will ever happen again."""


class SeededLoop(asyncio.SelectorEventLoop):
    """See the module.

    A seed has its own odds that what runs next is not what was ready first, and that time
    passes before it runs, as on a machine that is busy.
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
        """Virtual seconds."""
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
            handle._run()

    def _jump(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        if not self._ready and not self._stopping:
            if not self._scheduled:
                raise Stalled
            self._virtual = max(self._virtual, self._scheduled[0]._when)


class _InOrder(dict[Any, None]):
    """As much of a set as anyio needs, in the order in which things came."""

    def add(self, entry: Any) -> None:
        self[entry] = None

    def discard(self, entry: Any) -> None:
        self.pop(entry, None)

    def remove(self, entry: Any) -> None:
        del self[entry]


@contextmanager
def cancelled_in_order() -> Iterator[None]:
    """Have anyio cancel tasks in the order of their starts, and not of their addresses."""
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
