"""Work in steps on an event loop that others share: none of it holds the loop for long."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

from aioflow.author.steps import Steps

__all__ = ("Slices",)

SLICE_SECONDS = 0.005
"""How long steps go on before the loop comes round."""

T = TypeVar("T")


class Slices:
    """Does work in steps. Each turn of the loop has one slice of one piece of work at most.

    Args:
        seconds: How long a slice is.
    """

    def __init__(self, seconds: float = SLICE_SECONDS) -> None:
        self._seconds = seconds
        self._turn = asyncio.Lock()

    async def run(self, steps: Steps[T]) -> T:
        """Do the work of all steps; return what it came to.

        The first slice is done at once, unless others wait: nearly all work is over then.
        """
        result: T
        try:
            if self._turn.locked():
                await asyncio.sleep(0)
            else:
                next(steps)  # most work is a single step, which needs neither lock nor clock
            while True:
                async with self._turn:
                    until = time.monotonic() + self._seconds
                    while time.monotonic() < until:
                        next(steps)
                    await asyncio.sleep(0)
        except StopIteration as done:
            result = done.value
        return result
