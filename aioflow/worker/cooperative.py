"""Runs long computations in slices, so that none of them blocks the event loop for long."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

from aioflow.author.steps import Steps

__all__ = ("Slices",)

SLICE_SECONDS = 0.005
"""Maximum seconds of a slice."""

T = TypeVar("T")


class Slices:
    """Runs computations in slices. Each loop iteration runs at most one slice of one of them.

    Args:
        seconds: Length of a slice.
    """

    def __init__(self, seconds: float = SLICE_SECONDS) -> None:
        self._seconds = seconds
        self._turn = asyncio.Lock()

    async def run(self, steps: Steps[T]) -> T:
        """Run all steps and return their result.

        Unless another computation waits, the first step runs immediately: most need only one.
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
