"""Writes results to their files, and retries as long as the disk refuses.

A task whose body has succeeded must not fail or run again because the disk is full for a while.
So the process holds the result in memory and retries, which the log of the task notes.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import TypeAlias

from aioflow.protocol.commands import StartTask
from aioflow.protocol.reports import ResultWriteFailed

__all__ = ("OnWriteFailed", "write_failure_reporter", "write_out", "written")

OnWriteFailed: TypeAlias = Callable[[bool], None]
"""Called after each failed write, with whether the disk is full."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FIRST_DELAY, _LONGEST_DELAY = 0.25, 5.0  # seconds between two writes


def write_failure_reporter(
    start: StartTask, report: Callable[[ResultWriteFailed], None]
) -> OnWriteFailed:
    """Return a function that reports each failed write of a try's result."""
    return lambda disk_is_full: report(
        ResultWriteFailed(start.task_no, start.start_no, disk_is_full)
    )


def write_out(
    write: Callable[[], None], on_failed: OnWriteFailed, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Write in this thread, retrying until it succeeds."""
    for delay in _delays():
        try:
            write()
        except OSError as exc:
            _say(exc, delay)
            on_failed(exc.errno in _FULL)
            sleep(delay)
        else:
            return


async def written(
    write: Callable[[], None],
    threads: Executor | None = None,
    on_failed: OnWriteFailed | None = None,
) -> None:
    """Write in a thread, retrying until it succeeds. No thread is occupied between two writes.

    Args:
        threads: The executor; the loop's default if not given.
    """
    loop = asyncio.get_running_loop()
    for delay in _delays():
        try:
            await loop.run_in_executor(threads, write)
        except OSError as exc:
            _say(exc, delay)
            if on_failed is not None:
                on_failed(exc.errno in _FULL)
            await asyncio.sleep(delay)
        else:
            return


def _delays() -> Iterator[float]:
    delay = _FIRST_DELAY
    while True:
        yield delay
        delay = min(2 * delay, _LONGEST_DELAY)


def _say(problem: OSError, delay: float) -> None:
    print(  # noqa: T201 - into the log of the task
        f"the result cannot be written: {problem}; it is kept, and tried again in {delay:g} s",
        flush=True,
    )
