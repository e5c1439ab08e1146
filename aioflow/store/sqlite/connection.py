"""A SQLite connection with its own thread, in which whole functions run instead of statements."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

from aioflow._threads import in_thread
from aioflow.store.sqlite.database_file import translated_errors

__all__ = ("Connection", "ThreadedConnection", "open_threaded")

T = TypeVar("T")


class Connection(Protocol):
    """A connection as the store uses it."""

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function with the connection, and return its result."""

    def interrupt(self) -> None:
        """Abort the statement that is running."""


class ThreadedConnection:
    """A connection that only its own thread uses.

    Functions run in the order of their calls, also if the task that waits for one is cancelled.

    Args:
        raw: The open connection. This object closes it.

    Raises:
        RuntimeError: If the system has no thread to spare.
    """

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw
        self._is_closed = False
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        # A daemon: a connection that nobody closed does not hold up the end of the process.
        Thread(target=_serve, args=(raw, self._calls), name="aioflow-sqlite", daemon=True).start()

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """See ``Connection``.

        Raises:
            ValueError: If the connection is closed.
        """
        if self._is_closed:
            raise ValueError("the connection is closed")
        call = _Call(function, asyncio.get_running_loop().create_future())
        self._calls.put(call)
        result: T = await call.answer
        return result

    def interrupt(self) -> None:
        """See ``Connection``."""
        self._raw.interrupt()

    async def close(self) -> None:
        """Wait for all functions, then close the connection and end the thread."""
        if self._is_closed:
            return
        try:
            await self.run(sqlite3.Connection.close)
        finally:
            self._is_closed = True
            self._calls.put(None)


class _Call:
    """A function to run, and the future for its result."""

    def __init__(
        self, function: Callable[[sqlite3.Connection], Any], answer: asyncio.Future[Any]
    ) -> None:
        self._function = function
        self.answer = answer

    def run(self, raw: sqlite3.Connection) -> None:
        """Run the function and pass its result to the loop of the future."""
        try:
            result = self._function(raw)
        except BaseException as exc:  # noqa: BLE001 - raised where the result is awaited
            self._report(self.answer.set_exception, exc)
        else:
            self._report(self.answer.set_result, result)

    def _report(self, give: Callable[[Any], object], what: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.answer.get_loop().call_soon_threadsafe(self._give, give, what)

    def _give(self, give: Callable[[Any], object], what: object) -> None:
        if not self.answer.done():  # it was cancelled
            give(what)


def _serve(raw: sqlite3.Connection, calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.run(raw)
        del call  # it refers to the result


async def open_threaded(
    connector: Callable[[], sqlite3.Connection], path: Path
) -> ThreadedConnection:
    """Open a connection that has its own thread.

    Args:
        path: The database file, for messages.
    """
    with translated_errors(path):
        raw = await in_thread(connector)
    try:
        return ThreadedConnection(raw)
    except BaseException:
        raw.close()
        raise
