"""A second connection to a PostgreSQL database, not for batches, with a limit per statement."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio
import asyncpg

from aioflow.errors import StoreUnavailable
from aioflow.store.postgres.schema import translated_errors

__all__ = ("SideConnection",)


class SideConnection:
    """A connection that is opened when needed, and discarded after any error.

    Args:
        where: The database, for messages.
        limit_seconds: Time limit of each statement, and of opening the connection.
        settings: Settings of the session.
    """

    def __init__(
        self, dsn: str, where: str, *, limit_seconds: float, settings: Mapping[str, str]
    ) -> None:
        self._dsn = dsn
        self._where = where
        self._limit_seconds = limit_seconds
        self._settings = {"statement_timeout": f"{round(1000 * limit_seconds)}ms", **settings}
        self._connection: asyncpg.Connection | None = None
        self._turn = anyio.Lock()

    @asynccontextmanager
    async def statement(self) -> AsyncIterator[asyncpg.Connection]:
        """Yield the connection for one statement, within the time limit.

        Raises:
            StoreUnavailable: If the database does not answer in time.
            StoreError: If PostgreSQL reports an error; translated by ``translated_errors``.
        """
        async with self._turn:
            is_done = False
            try:
                with translated_errors(self._where), anyio.fail_after(self._limit_seconds):
                    if self._connection is None or self._connection.is_closed():
                        self._connection = await self.open()
                    yield self._connection
                is_done = True
            except TimeoutError as exc:
                raise StoreUnavailable(f"{self._where} does not answer in time") from exc
            finally:
                if not is_done:
                    self.discard()

    async def open(self) -> asyncpg.Connection:
        """Open another connection with the same settings. The caller closes it."""
        return await asyncpg.connect(
            self._dsn, timeout=self._limit_seconds, server_settings=self._settings
        )

    def discard(self) -> None:
        """Close the connection at once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
