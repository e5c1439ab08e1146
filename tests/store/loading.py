"""Loading everything that is unfinished in a small database at once."""

from __future__ import annotations

from msgspec.structs import replace

from aioflow.model.rows import TriggerRow
from aioflow.protocol.inputs import RecoverySnapshot
from aioflow.store import Store

__all__ = ("load",)


async def load(store: Store) -> RecoverySnapshot:
    """Return the pieces of ``store.unfinished``, joined."""
    snapshot: RecoverySnapshot | None = None
    async with store.unfinished() as parts:
        async for part in parts:
            if isinstance(part, RecoverySnapshot):
                snapshot = part
                continue
            assert snapshot is not None, "it comes first"
            if isinstance(part, TriggerRow):
                snapshot.stray_triggers.append(part)
            elif snapshot.runs and snapshot.runs[-1].run.run_no == part.run.run_no:
                snapshot.runs[-1].tasks.extend(part.tasks)
                snapshot.runs[-1].triggers.extend(part.triggers)
            else:
                snapshot.runs.append(replace(part, is_whole=True))
    assert snapshot is not None
    return snapshot
