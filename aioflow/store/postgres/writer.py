"""The writing connection to a PostgreSQL database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio
import asyncpg
import msgspec
from sqlalchemy import Executable

from aioflow.errors import StoreUnavailable
from aioflow.store import Durability
from aioflow.store.changes import POSTGRES, compiled
from aioflow.store.postgres.schema import CONNECT_SECONDS, translated_errors
from aioflow.store.rows import Values

__all__ = ("Limits", "Writer", "execute", "one_row", "row_count")


async def execute(
    connection: asyncpg.Connection, statement: Executable, values: Mapping[str, Any]
) -> int:
    """Execute a statement. Return the number of rows that it changed."""
    ready = compiled(statement, POSTGRES)
    return row_count(await connection.execute(ready.sql, *ready.placed(values)))


async def one_row(
    connection: asyncpg.Connection, statement: Executable, values: Mapping[str, Any]
) -> Values:
    """Return the only row of a result."""
    ready = compiled(statement, POSTGRES)
    row = await connection.fetchrow(ready.sql, *ready.placed(values))
    if row is None:
        raise StoreUnavailable("PostgreSQL returned no row")
    return tuple(row)


def row_count(status: str) -> int:
    """Return the number of rows from a command status such as ``UPDATE 3`` or ``INSERT 0 3``."""
    return int(status.rpartition(" ")[2])


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of the writing connection, in seconds.

    Attributes:
        connect: Limit for opening the connection.
        command: Limit for a statement.
        idle: Limit for an idle transaction, because its row locks block the next daemon.
        keepalive_idle: After how long the server probes a silent client.
        keepalive_count: After how many unanswered probes the server closes the connection.
        unacknowledged: After how long without an acknowledgement the server closes the connection;
            0 for the server's own limit.
    """

    connect: float = CONNECT_SECONDS
    command: float = 30.0
    idle: float = 3.0
    keepalive_idle: int = 5
    keepalive_count: int = 3
    unacknowledged: float = 0.0

    @classmethod
    def of_lease(cls, seconds: float) -> Self:
        """Return the limits of a node whose locks must not outlast a lease."""
        return cls(
            connect=min(CONNECT_SECONDS, max(seconds * 2 / 3, 1.0)),
            command=3 * seconds,
            idle=seconds,
            keepalive_idle=1,
            keepalive_count=2,
            unacknowledged=seconds,
        )


class Writer:
    """The writing connection. It is opened when needed, and reopened after it was lost."""

    def __init__(
        self, dsn: str, where: str, durability: Durability, limits: Limits | None = None
    ) -> None:
        self._dsn = dsn
        self._where = where
        self._limits = limits = limits or Limits()
        self._settings = {
            "application_name": "aioflow",
            "synchronous_commit": "on" if durability == "full" else "off",
            "statement_timeout": f"{round(1000 * limits.command)}ms",
            "idle_in_transaction_session_timeout": f"{round(1000 * limits.idle)}ms",
            "tcp_keepalives_idle": str(limits.keepalive_idle),
            "tcp_keepalives_interval": "2",
            "tcp_keepalives_count": str(limits.keepalive_count),
            "tcp_user_timeout": f"{round(1000 * limits.unacknowledged)}ms",
        }
        self._turn = anyio.Lock()
        self._connection: asyncpg.Connection | None = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection]:
        """Begin a transaction and yield its connection. Commit at the end of the block.

        Raises:
            StoreError: If PostgreSQL reports an error; translated by ``translated_errors``.
        """
        async with self._statement() as connection, connection.transaction():
            yield connection

    async def execute(self, statement: Executable, values: Mapping[str, Any]) -> int:
        """Execute a statement in a separate transaction; see ``execute``."""
        async with self._statement() as connection:
            return await execute(connection, statement, values)

    async def one_row(self, statement: Executable, values: Mapping[str, Any]) -> Values:
        """Return the only row of a statement, executed in a separate transaction."""
        async with self._statement() as connection:
            return await one_row(connection, statement, values)

    @asynccontextmanager
    async def _statement(self) -> AsyncIterator[asyncpg.Connection]:
        """Yield the connection.

        A statement without a transaction commits by itself, in one round trip.
        """
        async with self._turn:
            with translated_errors(self._where):
                connection = await self._connected()
                is_done = False
                try:
                    yield connection
                    is_done = True
                finally:
                    if not is_done:
                        self._connection = None
                        connection.terminate()

    def rename(self, name: str) -> None:
        """Name all sessions that are opened from now on; see ``claims.session_name``."""
        self._settings["application_name"] = name

    async def close(self) -> None:
        """Close the connection at once, because no transaction is open when the store closes."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(
                self._dsn,
                timeout=self._limits.connect,
                command_timeout=self._limits.command,
                server_settings=self._settings,
            )
        return self._connection
