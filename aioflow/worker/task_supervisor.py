"""The one place with plain ``asyncio`` tasks: a hosted coroutine each.

An anyio task group costs twice the memory per coroutine, and one that swallows cancellation
would spin in it. Here a coroutine is cancelled once, awaited with a limit, then abandoned:
left to itself, counted, and never waited for again.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast

from aioflow.worker.crash_recorder import NOBODY, BlackBox, Stepped

__all__ = ("Hosted", "Nursery", "guest", "watching")


class Hosted:
    """One hosted coroutine.

    Attributes:
        ending: Why it was cancelled by us; empty while it was not. A cancellation without it
            is user code's own doing.
        abandoned: It outlived its cancellation; what it does from now on counts for nothing.
    """

    __slots__ = ("abandoned", "ending", "limit", "task")

    def __init__(self) -> None:
        self.ending = ""
        self.abandoned = False
        self.limit: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def number(self) -> int:
        """What the black box shows for it."""
        return NOBODY

    @property
    def key(self) -> tuple[int, int] | None:
        """Names the log of what it prints, if it has one."""
        return None


guest: contextvars.ContextVar[Hosted | None] = contextvars.ContextVar("guest", default=None)
"""Whose code runs: a hosted coroutine, and whatever it starts. One variable, because each one
set costs every coroutine its share of a context."""

watching: contextvars.ContextVar[Hosted | None] = contextvars.ContextVar("watching", default=None)
"""The watch that a trigger joins: what is asked for there is asked for whoever waits in it."""

Guest = TypeVar("Guest", bound=Hosted)


class Nursery(Generic[Guest]):
    """Runs hosted coroutines on the running loop and signs the black box for each step.

    Tasks which a hosted coroutine starts itself are signed with its number too.

    Each runs in a context of its own, as it is when the nursery is made.

    Args:
        box: Where to sign.
        limit_seconds: How long a cancelled coroutine may take to end.
        on_ended: Called once for each that has ended, also if it was cancelled before its
            first step, but not for an abandoned one.
        on_abandoned: Called instead for one that did not end within the limit.
    """

    def __init__(
        self,
        box: BlackBox,
        limit_seconds: float,
        on_ended: Callable[[Guest], None],
        on_abandoned: Callable[[Guest], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._box = box
        self._limit_seconds = limit_seconds
        self._on_ended = on_ended
        self._on_abandoned = on_abandoned
        self._on_end = self._ended
        self._services: set[asyncio.Task[None]] = set()
        self.abandoned_count = 0
        self._loop.set_task_factory(self._make_task)

    def start(self, hosted: Guest, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine soon.

        Args:
            hosted: Made by the caller, which thereby can hand it to its coroutine. It is
                kept from here to its end.
            coroutine: Must fence user code itself; what escapes it is our bug.
        """
        context = self._context.copy()
        context.run(guest.set, hosted)
        hosted.task = self._loop.create_task(coroutine, context=context)
        # In its own context, which names it: of each callback there is one for all.
        hosted.task.add_done_callback(self._on_end, context=context)

    def serve(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine of the host itself; the box stays unsigned."""
        context = contextvars.copy_context()
        context.run(guest.set, None)
        task = self._loop.create_task(coroutine, context=context)
        self._services.add(task)
        task.add_done_callback(self._services.discard)

    def cancel(self, hosted: Guest, reason: str) -> None:
        """Cancel it, once: a second call changes nothing."""
        if hosted.ending or hosted.task is None or hosted.task.done():
            return
        hosted.ending = reason
        hosted.task.cancel()
        self.bound(hosted)

    def bound(self, hosted: Guest) -> None:
        """Abandon it unless it ends within the limit from the first such call on."""
        if hosted.limit is None:
            hosted.limit = self._loop.call_later(self._limit_seconds, self._abandon, hosted)

    def _ended(self, task: asyncio.Task[None]) -> None:
        hosted: Guest = cast("Guest", guest.get())  # nobody else sets it in there
        if hosted.limit is not None:
            hosted.limit.cancel()
        hosted.task = None  # each holds the other: do not leave that to the collector
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not hosted.abandoned:
            self._loop.call_exception_handler(
                {"message": "a hosted coroutine broke its fence", "exception": problem}
            )
        if hosted.abandoned:
            self.abandoned_count -= 1
        else:
            self._on_ended(hosted)

    def _abandon(self, hosted: Guest) -> None:
        hosted.abandoned = True
        self.abandoned_count += 1
        self._on_abandoned(hosted)

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Any,
        *,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[Any]:
        hosted = guest.get() if context is None else context.get(guest)
        if hosted is not None and asyncio.iscoroutine(coroutine):
            coroutine = Stepped(coroutine, hosted, self._box)
        return asyncio.Task(coroutine, loop=loop, context=context, **options)
