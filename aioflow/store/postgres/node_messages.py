"""The messages between the nodes of a PostgreSQL database; see ``store.node_messages``.

They go through a connection of their own, which is opened when needed and discarded after any
error. A notification only wakes the receiver: a message is also found without one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import asyncpg

from aioflow.errors import StoreUnavailable
from aioflow.store.node_messages import NodeMessage
from aioflow.store.postgres.schema import translated_errors

__all__ = ("PostgresNodeMessages",)

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

_SEND = f"""
WITH sent AS (
    INSERT INTO node_message (query_no, is_answer, to_epoch, from_epoch, deadline_at, body)
    VALUES ($1, $2, $3, $4, {_NOW} + $5, $6) RETURNING to_epoch
)
SELECT pg_notify('aioflow_node_' || to_epoch, '') FROM sent
"""

_TAKE = f"""
DELETE FROM node_message WHERE to_epoch = $1 OR deadline_at <= {_NOW}
RETURNING query_no, is_answer, from_epoch, body, to_epoch = $1 AND deadline_at > {_NOW}
"""


def _channel(epoch: int) -> str:
    return f"aioflow_node_{epoch}"


class PostgresNodeMessages:
    """See ``NodeMessages``.

    Args:
        where: The database, for messages.
        limit_seconds: Time limit of each statement.
    """

    def __init__(self, dsn: str, where: str, *, limit_seconds: float) -> None:
        self._dsn = dsn
        self._where = where
        self._limit_seconds = limit_seconds
        self._connection: asyncpg.Connection | None = None
        self._turn = anyio.Lock()
        self._listens_to: int | None = None
        self._arrived = anyio.Event()

    async def send(self, message: NodeMessage, *, to_epoch: int, seconds: float) -> None:
        """See ``NodeMessages``."""
        async with self._statement() as connection:
            await connection.execute(
                _SEND,
                message.query_no,
                int(message.is_answer),
                to_epoch,
                message.from_epoch,
                round(seconds * 1e6),
                message.body,
            )

    async def take(self, epoch: int) -> list[NodeMessage]:
        """See ``NodeMessages``."""
        self._arrived = anyio.Event()
        async with self._statement() as connection:
            if self._listens_to != epoch:
                await connection.add_listener(_channel(epoch), self._on_notification)
                self._listens_to = epoch
            rows = await connection.fetch(_TAKE, epoch)
        return [
            NodeMessage(
                query_no=query_no, is_answer=bool(is_answer), from_epoch=from_epoch, body=body
            )
            for query_no, is_answer, from_epoch, body, is_current in rows
            if is_current
        ]

    async def wait(self, epoch: int, seconds: float) -> None:
        """See ``NodeMessages``."""
        with anyio.move_on_after(seconds):
            await self._arrived.wait()

    async def close(self) -> None:
        """Close the connection at once."""
        self._discard()

    def _on_notification(self, *_: object) -> None:
        self._arrived.set()

    def _discard(self) -> None:
        connection, self._connection, self._listens_to = self._connection, None, None
        if connection is not None:
            connection.terminate()

    @asynccontextmanager
    async def _statement(self) -> AsyncIterator[asyncpg.Connection]:
        """Yield the connection for one statement, within the time limit."""
        async with self._turn:
            is_done = False
            try:
                with translated_errors(self._where), anyio.fail_after(self._limit_seconds):
                    if self._connection is None or self._connection.is_closed():
                        self._listens_to = None
                        self._connection = await self._open()
                    yield self._connection
                is_done = True
            except TimeoutError as exc:
                raise StoreUnavailable(f"{self._where} does not answer in time") from exc
            finally:
                if not is_done:
                    self._discard()

    async def _open(self) -> asyncpg.Connection:
        return await asyncpg.connect(
            self._dsn,
            timeout=self._limit_seconds,
            server_settings={
                "application_name": "aioflow messages",
                "synchronous_commit": "off",
                "statement_timeout": f"{round(1000 * self._limit_seconds)}ms",
            },
        )
