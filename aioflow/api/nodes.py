"""The nodes of a database."""

from __future__ import annotations

from aioflow.api.page_schemas import NodeView
from aioflow.api.schemas import iso
from aioflow.api.triggers import NODE_NO
from aioflow.engine.loop import Engine
from aioflow.model.rows import NodeRow
from aioflow.model.timestamps import Timestamp

__all__ = ("node_view",)


def node_view(row: NodeRow, engine: Engine | None, now: Timestamp) -> NodeView:
    """Return a node as JSON shows it.

    Args:
        engine: The engine of the responding node; ``None`` without a daemon.
    """
    is_here = engine is not None and row.node_no == NODE_NO and row.epoch == engine.memory.epoch
    state = "away" if not is_here else "drained" if row.is_drained else "up"
    slots = triggers = None
    if engine is not None and is_here:
        slots = len(engine.slots.workers) + engine.slots.coroutines
        triggers = len(engine.memory.waits)
    return NodeView(
        node=row.node_no,
        epoch=row.epoch,
        state=state,
        started_at=iso(row.started_at),
        seen_at=iso(now if is_here else row.seen_at),
        version=row.version,
        pid=row.pid,
        host=row.host,
        slots=slots,
        triggers=triggers,
        is_here=is_here,
    )
