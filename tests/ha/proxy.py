"""A TCP proxy before a PostgreSQL server that delays, swallows or cuts a node's connections."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, Self

__all__ = ("Proxy",)

_PIECE = 64 * 1024


class Proxy:
    """Forwards connections to the Unix socket of a server, in a separate thread.

    Attributes:
        delay_seconds: By how much each piece of data is delayed.
        is_black_hole: Whether data in both directions disappears without an error.
        is_refusing: Whether new connections are closed at once.
    """

    def __init__(self, server: Path) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._open: set[asyncio.StreamWriter] = set()
        self.delay_seconds = 0.0
        self.is_black_hole = self.is_refusing = False
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._listener = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """The URL of the database ``postgres`` through this proxy."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def cut(self) -> None:
        """Close all connections at once, as a reset does."""
        self._run(self._cut())

    async def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _close(self) -> None:
        self.is_refusing = True
        self._listener.close()
        await self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        done: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result(30)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_refusing:
            writer.transport.abort()
            return
        try:
            theirs = await asyncio.open_unix_connection(str(self._server))
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, theirs[1]}
        try:
            await asyncio.gather(self._copy(reader, theirs[1]), self._copy(theirs[0], writer))
        finally:
            self._open -= {writer, theirs[1]}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_PIECE):
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                if not self.is_black_hole:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()
