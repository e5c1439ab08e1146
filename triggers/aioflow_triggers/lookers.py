"""Runs polls of folders in threads; a poll that hangs does not block the others.

A poll of a folder on an unreachable server may hang for hours. It uses one thread at a time, and
after some seconds that thread no longer counts towards the limit of concurrent polls.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

__all__ = ("HANGS_AFTER_SECONDS", "PollThreads")

HANGS_AFTER_SECONDS = 5.0
AT_ONCE = 4
_THREADS = 64
"""Includes threads that hang; if all of them do, further polls wait."""

T = TypeVar("T")

_logger = logging.getLogger("aioflow.trigger.folders")

# An executor of its own: a file system that hangs must not use up the loop's default threads.
_threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="aioflow-folders")


class _Job(Generic[T]):
    """A poll that is queued or running."""

    __slots__ = ("done", "folder", "hangs", "timer", "work")

    def __init__(self, folder: str, work: Callable[[], T], done: asyncio.Future[T]) -> None:
        self.folder = folder
        self.work = work
        self.done = done
        self.hangs = False
        self.timer: asyncio.TimerHandle | None = None


class PollThreads(Generic[T]):
    """Runs polls in threads for one event loop, without holding a reference to the loop."""

    def __init__(self) -> None:
        self._queue: deque[_Job[T]] = deque()
        self._behind: dict[str, deque[_Job[T]]] = {}  # polls queued behind one of the same folder
        self._running = 0

    def poll(self, folder: str, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``work`` in a thread, after any running poll of this folder.

        Cancel the future if the result is no longer needed.
        """
        job = _Job(folder, work, asyncio.get_running_loop().create_future())
        behind = self._behind.get(folder)
        if behind is not None:
            self._behind[folder] = deque(other for other in behind if not other.done.done())
            self._behind[folder].append(job)
        else:
            self._behind[folder] = deque()
            self._queue.append(job)
            self._start()
        return job.done

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue and self._running < AT_ONCE:
            job = self._queue.popleft()
            self._running += 1
            job.timer = loop.call_later(HANGS_AFTER_SECONDS, self._give_up, job)
            taken = loop.run_in_executor(_threads, job.work)
            taken.add_done_callback(partial(self._taken, job))

    def _give_up(self, job: _Job[T]) -> None:
        """Stop counting a poll that hangs, so that others can start."""
        job.hangs = True
        self._running -= 1
        _logger.warning(
            "%s does not answer since %g s; other folders are looked at meanwhile",
            job.folder,
            HANGS_AFTER_SECONDS,
        )
        self._start()

    def _taken(self, job: _Job[T], taken: asyncio.Future[T]) -> None:
        if job.timer is not None:
            job.timer.cancel()
        if not job.hangs:
            self._running -= 1
        behind = self._behind.pop(job.folder)
        while behind and behind[0].done.done():
            behind.popleft()
        if behind:
            self._queue.append(behind.popleft())
            self._behind[job.folder] = behind
        self._start()
        problem = asyncio.CancelledError() if taken.cancelled() else taken.exception()
        if job.done.done():
            return
        if problem is None:
            job.done.set_result(taken.result())
        else:
            job.done.set_exception(problem)
