"""The network between daemons and their server: delays, cuts, resets, and lost replies."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import asyncpg

from tests.sim.cluster.rows import Result
from tests.sim.cluster.server import Answer, Request, Server, Session

__all__ = ("Connection", "Network")

_LAGS = (0.0, 0.0, 0.0005, 0.001, 0.02)


class _Way:
    """One direction of a connection. It delivers in order."""

    def __init__(self, network: Network, host: int) -> None:
        self._network = network
        self._host = host
        self._last = 0.0

    def carry(self, function: Callable[[], None], seconds: float) -> None:
        """Call ``function`` after at least this many seconds, but not while the host is cut off."""
        network = self._network
        at = self._last = max(self._last, network.loop.time() + seconds)

        def arrive() -> None:
            if self._host in network.cut:
                network.held.setdefault(self._host, []).append(lambda: self.carry(function, 0.01))
            else:
                function()

        network.loop.call_at(at, arrive, context=network.context)


class Network:
    """Connects daemons with the server.

    Attributes:
        cut: Numbers of the hosts that are cut off. What they send arrives later.
        fails: Draws whether a fault of a kind happens.
    """

    def __init__(
        self,
        server: Server,
        rng: random.Random,
        fails: Callable[[str], bool],
        longest_seconds: float,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.context = contextvars.copy_context()
        self.server, self.rng, self.fails = server, rng, fails
        self.cut: set[int] = set()
        self.held: dict[int, list[Callable[[], None]]] = {}
        self.longest_seconds = longest_seconds
        self._connections: list[Connection] = []

    async def connect(
        self, host: int, writer: Any, *, timeout: float, limit: float | None, settings: Any
    ) -> Connection:
        """Open a connection of a host.

        Raises:
            OSError: If the server cannot be reached.
        """
        await anyio.sleep(self.rng.choice(_LAGS))
        if host in self.cut:
            await anyio.sleep(timeout)
            raise TimeoutError("no route")
        if self.server.is_away:
            raise ConnectionRefusedError("the server is away")
        connection = Connection(self, host, writer, limit, settings)
        self._connections = [one for one in self._connections if not one.is_closed()]
        self._connections.append(connection)
        return connection

    def heal(self, host: int) -> None:
        """Reconnect a host. What was in transit arrives."""
        self.cut.discard(host)
        for again in self.held.pop(host, []):
            again()

    def reset(self, is_meant: Callable[[Connection], bool], server_seconds: float = 0.0) -> None:
        """Break the matching connections, at once for the daemon, later for the server."""
        for one in [one for one in self._connections if is_meant(one)]:
            one.break_off(server_seconds)


class Connection:
    """The part of the asyncpg connection interface that the stores use.

    Attributes:
        host: The number of the host on which its daemon runs.
        writer: The life of the node that opened the connection.
    """

    def __init__(
        self, network: Network, host: int, writer: Any, limit: float | None, settings: Any
    ) -> None:
        self.host, self.writer = host, writer
        self._network = network
        self._limit = limit
        self._there, self._back = _Way(network, host), _Way(network, host)
        self._waiting: asyncio.Future[Answer] | None = None
        self._is_closed = False
        given: Mapping[str, str] = settings
        self._session: Session = network.server.open_session(writer, given)

    # ── as asyncpg has it ───────────────────────────────────────────────────────────────

    def is_closed(self) -> bool:
        """Return whether the connection is closed."""
        return self._is_closed

    def terminate(self) -> None:
        """Close the connection at once. The server still receives what was sent earlier."""
        if not self._is_closed:
            self._is_closed = True
            self._there.carry(self._session.end, self._lag())

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Begin a transaction; commit at the end of the block, unless it raises."""
        await self._ask("BEGIN", ())
        try:
            yield
        except BaseException:
            if not self._is_closed:
                with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    await self._ask("ROLLBACK", ())
            raise
        await self._ask("COMMIT", ())

    async def execute(self, sql: str, *values: Any) -> str:
        """Execute a statement; return the status with the number of rows."""
        return f"DONE {(await self._ask(sql, values)).affected}"

    async def fetch(self, sql: str, *values: Any) -> list[Any]:
        """Return the rows of a result."""
        return (await self._ask(sql, values)).rows

    async def fetchrow(self, sql: str, *values: Any) -> Any:
        """Return the first row of a result."""
        rows = (await self._ask(sql, values)).rows
        return rows[0] if rows else None

    # ── below ───────────────────────────────────────────────────────────────────────────

    async def _ask(self, sql: str, values: Sequence[Any]) -> Result:
        if self._is_closed:
            raise asyncpg.InterfaceError("connection is closed")
        network = self._network
        self._waiting = waiting = network.loop.create_future()
        batch = getattr(self.writer, "committing", None)
        request = Request(sql, values, lambda answer: self._reply(sql, waiting, answer), batch)
        if network.fails("request lost"):
            self.break_off(self._long())
        else:
            late = self._long() if network.fails("request late") else self._lag()
            self._there.carry(lambda: self._session.receive(request), late)
        with anyio.fail_after(self._limit):
            answer = await waiting
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _reply(self, sql: str, waiting: asyncio.Future[Answer], answer: Answer) -> None:
        """Send an answer back; called by the server."""
        network = self._network
        if network.fails("reply lost" if sql != "COMMIT" else "acknowledgement lost"):
            self._back.carry(self.break_off, self._lag())
            return
        is_late = network.fails("reply late" if sql != "COMMIT" else "acknowledgement late")
        late = self._long() if is_late else self._lag()
        self._back.carry(lambda: _settle(waiting, answer), late)

    def break_off(self, server_seconds: float = 0.0) -> None:
        """Break the connection. The daemon sees it at once, the server after a delay."""
        if not self._is_closed:
            self._is_closed = True
            if self._waiting is not None:
                _settle(self._waiting, ConnectionResetError("connection was reset"))
        network = self._network
        network.loop.call_later(server_seconds, self._session.end, context=network.context)

    def _lag(self) -> float:
        return self._network.rng.choice(_LAGS)

    def _long(self) -> float:
        return self._network.rng.random() * self._network.longest_seconds


def _settle(waiting: asyncio.Future[Answer], answer: Answer) -> None:
    if not waiting.done():
        waiting.set_result(answer)
