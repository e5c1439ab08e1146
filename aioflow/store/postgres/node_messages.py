"""The messages between the nodes of a PostgreSQL database; see ``store.node_messages``.

They use a separate connection, see ``side_connection``. A notification only wakes the receiver,
which finds a message even if its notification is lost.
"""

from __future__ import annotations

import anyio
import asyncpg

from aioflow.store.node_messages import NodeMessage
from aioflow.store.postgres.side_connection import SideConnection

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
        self._side = SideConnection(
            dsn,
            where,
            limit_seconds=limit_seconds,
            settings={"application_name": "aioflow messages", "synchronous_commit": "off"},
        )
        self._listens: tuple[asyncpg.Connection, int] | None = None
        self._arrived = anyio.Event()

    async def send(self, message: NodeMessage, *, to_epoch: int, seconds: float) -> None:
        """See ``NodeMessages``."""
        async with self._side.statement() as connection:
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
        async with self._side.statement() as connection:
            if self._listens != (connection, epoch):
                await connection.add_listener(_channel(epoch), self._on_notification)
                self._listens = connection, epoch
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
        self._side.discard()

    def _on_notification(self, *_: object) -> None:
        self._arrived.set()
