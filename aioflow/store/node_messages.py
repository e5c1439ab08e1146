"""The table for messages between the nodes of one database: queries and their answers.

PostgreSQL implements it. A SQLite file has only one daemon.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

__all__ = ("NodeMessage", "NodeMessages")


class NodeMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A query, or the answer to a query.

    Attributes:
        query_no: Number of the query. The answer has the same number.
        from_epoch: The term of the sender.
        body: The encrypted content.
    """

    query_no: int
    is_answer: bool
    from_epoch: int
    body: bytes


class NodeMessages(Protocol):
    """The messages between the nodes of a database.

    A message is delivered at most once. It may be lost, for example in a crash of the server.

    Raises:
        StoreUnavailable: From any method, if the database does not answer in time. A message that
            was being sent may arrive nevertheless.
    """

    async def send(self, message: NodeMessage, *, to_epoch: int, seconds: float) -> None:
        """Send a message to the node with a term. The message expires after ``seconds``."""

    async def take(self, epoch: int) -> list[NodeMessage]:
        """Remove and return the messages for the node with a term. Delete the expired ones."""

    async def wait(self, epoch: int, seconds: float) -> None:
        """Wait at most ``seconds`` for a message to the node with a term.

        It may also return early without a message.
        """
