"""The role of an active node: starting, working, or being drained."""

from __future__ import annotations

from aioflow.engine.loop import Engine
from aioflow.model.nodes import NodeRole

__all__ = ("active_role",)


def active_role(engine: Engine) -> NodeRole:
    """Return the role of a node that has claimed its database."""
    if not engine.turns:
        return NodeRole.JOINING
    if engine.slots.is_open and not engine.memory.is_drained:
        return NodeRole.ACTIVE
    return NodeRole.DRAINING if engine.slots.has_running else NodeRole.DRAINED
