"""The part of a store that lets several daemons share a database.

It lets a daemon join as a standby, and watch the active daemon. PostgreSQL implements it. A SQLite
file has only one daemon.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from aioflow.model.rows import NodeFacts, NodeMark
from aioflow.model.timestamps import Timestamp

__all__ = ("ActiveNode", "Joined", "Membership")


class ActiveNode(msgspec.Struct, frozen=True, kw_only=True):
    """The active node of a database.

    Attributes:
        home: The identity of its home; empty if unknown.
        heartbeat_ms: The interval of its heartbeats; 0 for a daemon that expects no standby.
        has_sessions: Whether the server has a session in which the node writes.
        is_working: Whether the server is executing a statement for such a session.
    """

    mark: NodeMark
    home: str
    name: str
    heartbeat_ms: int
    has_sessions: bool
    is_working: bool


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """A standby as recorded in the database."""

    node_no: int
    epoch: int


class Membership(Protocol):
    """The operations of several daemons on one database.

    Raises:
        StoreUnavailable: From any method, if the database does not answer within a lease. The
            caller may repeat the call.
    """

    async def check_connection(self) -> None:
        """Check that the connections lead directly to the server.

        Raises:
            SettingsError: If there is a connection pooler in between, which would hide the sessions
                that a node has.
        """

    async def join(self, about: NodeFacts) -> Joined:
        """Make this node a standby under a new term."""

    async def heartbeat(self, at: Timestamp) -> None:
        """Record a heartbeat of this standby.

        Raises:
            Fenced: If another daemon has the same identity, or the node was removed.
        """

    async def leave(self) -> None:
        """Record that this standby has shut down."""

    async def has_standby(self) -> bool:
        """Return whether another node is a standby that is alive and not drained."""

    async def is_drained(self) -> bool:
        """Return whether this standby is drained."""

    async def forget(self, node_no: int) -> None:
        """Free the row of a node that has left or is dead, for use by the next new node.

        The row is not deleted, because the next node continues its commit numbers.
        """

    async def find_active(self) -> ActiveNode | None:
        """Return the active node; ``None`` if there is none."""

    async def end_idle_session(self, mark: NodeMark) -> bool:
        """End the sessions of a dead node that are idle in a transaction.

        Return whether there were any.

        The transaction locks the row of the node, so the node could not be declared dead.
        """

    async def end_own_session(self) -> None:
        """Close the connection in which this node writes. The next statement opens another."""
