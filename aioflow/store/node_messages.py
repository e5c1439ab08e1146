"""The table by which the nodes of one database ask each other: queries, and their answers.

PostgreSQL implements it. A SQLite file has one daemon.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

__all__ = ("NodeMessage", "NodeMessages")


class NodeMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A query, or the answer to one.

    Attributes:
        query_no: Number of the query, which its answer has, too.
        from_epoch: The term of its sender.
        body: Encrypted.
    """

    query_no: int
    is_answer: bool
    from_epoch: int
    body: bytes


class NodeMessages(Protocol):
    """The messages between the nodes of a database.

    A message is taken at most once. It may be lost, for example with a crash of the server.

    Raises:
        StoreUnavailable: From any method, if the database does not answer in time. A message that
            was sent may then arrive nevertheless.
    """

    async def send(self, message: NodeMessage, *, to_epoch: int, seconds: float) -> None:
        """Send a message to the node of a term. It expires after ``seconds``."""

    async def take(self, epoch: int) -> list[NodeMessage]:
        """Remove the messages for the node of a term, and return them. Expired ones are deleted."""

    async def wait(self, epoch: int, seconds: float) -> None:
        """Wait at most ``seconds`` until a message for the node of a term may be there."""
