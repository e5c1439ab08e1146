"""Write results to their files, for as long as the disk refuses them.

A task whose body has succeeded must not fail, nor run again, because a disk is full for a while.
So its process keeps the result and tries again, and the log of the task says so.
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

__all__ = ("OnKept", "kept", "write_out", "written")

OnKept: TypeAlias = Callable[[bool], None]
"""Called after each attempt that fails, with whether the disk is full."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FIRST_DELAY, _LONGEST_DELAY = 0.25, 5.0  # seconds between two attempts


def kept(start: StartTask, report: Callable[[ResultWriteFailed], None]) -> OnKept:
    """Return a function that reports each attempt to write the result of a start that fails."""
    return lambda disk_is_full: report(
        ResultWriteFailed(start.task_no, start.start_no, disk_is_full)
    )


def write_out(
    write: Callable[[], None], on_kept: OnKept, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Write in this thread; return once it is done."""
    for delay in _delays():
        try:
            write()
        except OSError as exc:
            _say(exc, delay)
            on_kept(exc.errno in _FULL)
            sleep(delay)
        else:
            return


async def written(
    write: Callable[[], None], threads: Executor | None = None, on_kept: OnKept | None = None
) -> None:
    """Write in a thread; return once it is done. Between two attempts no thread is held.

    Args:
        threads: Where; those of the loop if they are not given.
    """
    loop = asyncio.get_running_loop()
    for delay in _delays():
        try:
            await loop.run_in_executor(threads, write)
        except OSError as exc:
            _say(exc, delay)
            if on_kept is not None:
                on_kept(exc.errno in _FULL)
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
