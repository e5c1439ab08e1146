"""Runs blocking functions in threads, and waits if the machine cannot start another thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread

from aioflow.clock import SystemClock

__all__ = ("in_thread",)

_AGAIN_SECONDS = 0.05

_clock = SystemClock()

Answer = TypeVar("Answer")
Arguments = TypeVarTuple("Arguments")


async def in_thread(
    function: Callable[[Unpack[Arguments]], Answer],
    *arguments: *Arguments,
    limiter: anyio.CapacityLimiter | None = None,
) -> Answer:
    """Run a blocking function in a thread. Once the function has begun, it cannot be cancelled.

    If no new thread can be started, wait until a busy thread is free: once any thread has been
    started, at least one always remains.
    """
    has_begun = False

    def begin() -> Answer:
        nonlocal has_begun
        has_begun = True
        return function(*arguments)

    while True:
        try:
            return await anyio.to_thread.run_sync(begin, limiter=limiter)
        except RuntimeError as exc:
            if has_begun or "new thread" not in str(exc):
                raise
        await _clock.sleep(_AGAIN_SECONDS)
