"""The role and status of a node among the nodes of its database."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

import msgspec

__all__ = ("ActiveCommit", "ActiveState", "NodeRole", "NodeStatus", "ReadNodeStatus", "is_alone")


class NodeRole(StrEnum):
    """The role of a node."""

    JOINING = "joining"
    """It does not answer requests yet, or has claimed the database and reads unfinished work."""
    STANDBY = "standby"
    ACTIVE = "active"
    DRAINING = "draining"
    """It is active but starts no more work, and waits until its running tasks have ended."""
    DRAINED = "drained"
    """It is active but starts no more work, and no task runs."""


class ActiveState(StrEnum):
    """The state of the active node, as far as this node knows. It may itself be the active node."""

    ALIVE = "alive"
    SILENT = "silent"
    """It gives no sign of life. If that continues, a standby takes over."""
    MISSING = "missing"
    """No node is active. A standby takes over."""
    UNKNOWN = "unknown"
    """The database does not answer."""


class ActiveCommit(msgspec.Struct, frozen=True, kw_only=True):
    """The last commit of the active node, according to a poll.

    Attributes:
        epoch: The term of the node.
        commit_no: The number of the commit.
        asked_at: When the poll began, in microseconds of the monotonic clock.
    """

    epoch: int
    commit_no: int
    asked_at: int


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a node.

    Attributes:
        term: The term under which it is active or stands by; 0 before it has one.
        active: The state of the active node.
        active_commit: The last commit of the active node at the last poll of a standby; ``None`` if
            no node was active, or the database did not answer.
        silent_seconds: For how long it has seen no sign of life from the active node.
        takeovers: How often its daemon has taken over from a silent node.
        fenced: How often its daemon found that another node had taken over.
    """

    role: NodeRole = NodeRole.ACTIVE
    term: int = 0
    active: ActiveState = ActiveState.ALIVE
    active_commit: ActiveCommit | None = None
    silent_seconds: float = 0.0
    takeovers: int = 0
    fenced: int = 0


ReadNodeStatus: TypeAlias = Callable[[], NodeStatus]


def is_alone() -> NodeStatus:
    """Return the status of a node that is alone on its database."""
    return NodeStatus()
