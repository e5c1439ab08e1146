"""The supervisor of user coroutines. Each runs as one plain ``asyncio`` task, created only here.

An anyio task group costs twice the memory per coroutine. If a coroutine in a group swallows its
cancellation, the group keeps cancelling it in a busy loop. This supervisor cancels a coroutine once
and awaits it with a timeout. After the timeout the coroutine is abandoned: it is counted and may
continue to run, but is never awaited again. Long computations run in slices, so that none of them
blocks the event loop for long.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, Generic, TypeVar

from aioflow.author.codec import Steps
from aioflow.worker.crash_recorder import NO_OWNER, CrashRecorder, Stepped

__all__ = (
    "Slices",
    "TaskSupervisor",
    "UserCoroutine",
    "current_coroutine",
    "watching",
)


class UserCoroutine:
    """One supervised coroutine.

    Attributes:
        ending: Why aioflow cancelled it; empty if aioflow did not. If the coroutine is cancelled
            and this is empty, user code cancelled it.
        abandoned: Whether it outlived its cancellation. Its outcome is then ignored.
    """

    __slots__ = ("abandoned", "ending", "limit", "task")

    def __init__(self) -> None:
        self.ending = ""
        self.abandoned = False
        self.limit: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def number(self) -> int:
        """The number of the coroutine in the crash recorder."""
        return NO_OWNER

    @property
    def key(self) -> tuple[int, int] | None:
        """The key of the log for its output; ``None`` if its output is not logged."""
        return None


current_coroutine: contextvars.ContextVar[UserCoroutine | None] = contextvars.ContextVar(
    "current_coroutine", default=None
)
"""The supervised coroutine whose code is running, including asyncio tasks that the code starts.

This is a single variable, because each variable costs memory in the context of each coroutine.
"""

watching: contextvars.ContextVar[UserCoroutine | None] = contextvars.ContextVar(
    "watching", default=None
)
"""The watch that a trigger is joining. Queries made meanwhile are on behalf of all its triggers."""

Supervised = TypeVar("Supervised", bound=UserCoroutine)


class TaskSupervisor(Generic[Supervised]):
    """Runs supervised coroutines on the running loop, and signs the crash recorder for each step.

    Asyncio tasks started by a supervised coroutine are signed with its number, too.

    Each coroutine runs in its own copy of the context in which the supervisor was created.

    Args:
        recorder: The crash recorder to sign.
        limit_seconds: Time limit for a cancelled coroutine to end.
        on_ended: Called once for each coroutine that has ended, even if it was cancelled before its
            first step, but not if it was abandoned.
        on_abandoned: Called instead for a coroutine that did not end within the limit.
    """

    def __init__(
        self,
        recorder: CrashRecorder,
        limit_seconds: float,
        on_ended: Callable[[Supervised], None],
        on_abandoned: Callable[[Supervised], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._recorder = recorder
        self._limit_seconds = limit_seconds
        self._on_ended = on_ended
        self._on_abandoned = on_abandoned
        self._on_end = self._ended
        self._services: set[asyncio.Task[None]] = set()
        self.abandoned_count = 0
        self._loop.set_task_factory(self._make_task)

    def start(self, hosted: Supervised, coroutine: Coroutine[Any, Any, None]) -> None:
        """Schedule a coroutine.

        Args:
            hosted: Created by the caller, so that the caller can pass it to the coroutine. It is
                referenced until the coroutine ends.
            coroutine: Must catch exceptions of user code itself; an exception that escapes is a bug
                in aioflow.
        """
        context = self._context.copy()
        context.run(current_coroutine.set, hosted)
        hosted.task = self._loop.create_task(coroutine, context=context)
        # The callback runs in that context, which contains `hosted`, so all coroutines share one
        # callback.
        hosted.task.add_done_callback(self._on_end, context=context)

    def serve(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine of aioflow itself, without signing the crash recorder."""
        context = contextvars.copy_context()
        context.run(current_coroutine.set, None)
        task = self._loop.create_task(coroutine, context=context)
        self._services.add(task)
        task.add_done_callback(self._services.discard)

    def cancel(self, hosted: Supervised, reason: str) -> None:
        """Cancel a coroutine. Idempotent."""
        if hosted.ending or hosted.task is None or hosted.task.done():
            return
        hosted.ending = reason
        hosted.task.cancel()
        self.bound(hosted)

    def bound(self, hosted: Supervised) -> None:
        """Abandon a coroutine unless it ends within the limit, which starts with the first call."""
        if hosted.limit is None:
            hosted.limit = self._loop.call_later(self._limit_seconds, self._abandon, hosted)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # Only `start` sets the variable in this context.
        hosted: Supervised = current_coroutine.get()  # type: ignore[assignment]
        if hosted.limit is not None:
            hosted.limit.cancel()
        hosted.task = None  # breaks a reference cycle that the garbage collector would have to find
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not hosted.abandoned:
            self._loop.call_exception_handler(
                {"message": "a hosted coroutine left its cancel scope", "exception": problem}
            )
        if hosted.abandoned:
            self.abandoned_count -= 1
        else:
            self._on_ended(hosted)

    def _abandon(self, hosted: Supervised) -> None:
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
        hosted = current_coroutine.get() if context is None else context.get(current_coroutine)
        if hosted is not None and (
            type(coroutine) is CoroutineType or asyncio.iscoroutine(coroutine)
        ):
            coroutine = Stepped(coroutine, hosted, self._recorder)
        return asyncio.Task(coroutine, loop=loop, context=context, **options)


SLICE_SECONDS = 0.005
"""Maximum duration of a slice, in seconds."""

T = TypeVar("T")


class Slices:
    """Runs computations in slices. Each loop iteration runs at most one slice of one computation.

    Args:
        seconds: Maximum duration of a slice.
    """

    def __init__(self, seconds: float = SLICE_SECONDS) -> None:
        self._seconds = seconds
        self._turn = asyncio.Lock()

    async def run(self, steps: Steps[T]) -> T:
        """Run all steps and return their result.

        If no other computation waits, the first step runs immediately. Most computations have only
        one step.
        """
        result: T
        try:
            if self._turn.locked():
                await asyncio.sleep(0)
            else:
                next(steps)  # usually the only one, which needs neither lock nor clock
            while True:
                async with self._turn:
                    until = time.monotonic() + self._seconds
                    while time.monotonic() < until:
                        next(steps)
                    await asyncio.sleep(0)
        except StopIteration as done:
            result = done.value
        return result
