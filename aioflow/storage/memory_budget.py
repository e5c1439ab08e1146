"""A limit for the bytes that concurrent transfers hold in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

__all__ = ("MemoryBudget",)


class MemoryBudget:
    """Lets transfers wait until there is memory for them, in the order of their requests.

    A transfer that is larger than the limit runs alone.

    Attributes:
        used_bytes: Memory that transfers hold now.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._turn = anyio.Lock()
        self._freed = anyio.Event()

    @asynccontextmanager
    async def held(self, size: int) -> AsyncIterator[None]:
        """Hold ``size`` bytes while the block runs. Wait until they are free."""
        async with self._turn:
            while self.used_bytes and self.used_bytes + size > self._limit_bytes:
                await self._freed.wait()
            self.used_bytes += size
        try:
            yield
        finally:
            self.used_bytes -= size
            self._freed.set()
            self._freed = anyio.Event()
