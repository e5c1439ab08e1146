"""A proxy between one node and the server of the demo, by which that node can be cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio

__all__ = ("Proxy",)

_PIECE = 64 * 1024
_CLOSE_SECONDS = 5.0


class Proxy:
    """Forwards connections from one Unix socket to another.

    Attributes:
        is_cut: Whether connections are refused.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        self._serving = 0
        self._is_idle = anyio.Event()
        self.is_cut = False

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Listen on a socket, in a folder that only this user can enter, within the block."""
        server = await asyncio.start_unix_server(self._serve, path)
        try:
            yield
        finally:
            server.close()
            self.cut()
            # The end of the loop would cancel the rest, and log that as an error.
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                while self._serving:
                    self._is_idle = anyio.Event()
                    await self._is_idle.wait()

    def cut(self) -> None:
        """Reset all connections, and refuse new ones."""
        self.is_cut = True
        for writer in list(self._open):
            writer.transport.abort()

    def mend(self) -> None:
        """Accept connections again."""
        self.is_cut = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        self._serving += 1
        try:
            if self.is_cut:
                return
            there_reader, there = await asyncio.open_unix_connection(self._target)
            ends.add(there)
            self._open |= ends
            async with anyio.create_task_group() as copying:
                copying.start_soon(_copy, reader, there)
                copying.start_soon(_copy, there_reader, writer)
        except OSError:
            pass  # the server is gone, as is the connection then
        finally:
            self._open -= ends
            for end in ends:
                end.transport.abort()
            self._serving -= 1
            self._is_idle.set()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
