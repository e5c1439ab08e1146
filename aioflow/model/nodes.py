"""What a node is among those of its database, as it knows itself."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

import msgspec

__all__ = ("ActiveState", "NodeRole", "NodeStatus", "ReadNodeStatus", "is_alone")


class NodeRole(StrEnum):
    """What a node does."""

    JOINING = "joining"
    """It does not answer requests yet, or has claimed the database and reads unfinished work."""
    STANDBY = "standby"
    ACTIVE = "active"
    DRAINING = "draining"
    """It is active, starts nothing more, and waits for the end of what runs."""
    DRAINED = "drained"
    """It is active, starts nothing more, and nothing runs."""


class ActiveState(StrEnum):
    """What a node knows about the active node, which may be itself."""

    ALIVE = "alive"
    SILENT = "silent"
    """It gives no sign of life. If that continues, a standby takes over."""
    MISSING = "missing"
    """No node is active. A standby takes over."""
    UNKNOWN = "unknown"
    """The database does not answer."""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a node.

    Attributes:
        term: The term under which it is active or stands by; 0 before it has one.
        active: What it knows about the active node.
        silent_seconds: How long it has seen no sign of life of the active node.
        takeovers: How often its daemon has taken over from a node that was silent.
        fenced: How often its daemon found that another node had taken over.
    """

    role: NodeRole = NodeRole.ACTIVE
    term: int = 0
    active: ActiveState = ActiveState.ALIVE
    silent_seconds: float = 0.0
    takeovers: int = 0
    fenced: int = 0


ReadNodeStatus: TypeAlias = Callable[[], NodeStatus]


def is_alone() -> NodeStatus:
    """Return the status of a node without others."""
    return NodeStatus()
