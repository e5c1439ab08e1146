"""Packed memory: a byte string instead of objects for tasks, triggers and runs that only wait.

``Memory.runs``, ``active_tasks`` and ``waits`` look up packed values like all others. ``Packing``
provides the operations that would be too slow if they unpacked every value: it finds packed
triggers by their ``TaskShape``, the fields that many of them share, and assigns them as
``PackedTask``. No other code outside this package depends on how values are packed.
"""

from __future__ import annotations

from aioflow.core.state.packed.runs import PackedRuns
from aioflow.core.state.packed.tasks import PackedCache, PackedTask, Packing, TaskShape

__all__ = ("PackedCache", "PackedRuns", "PackedTask", "Packing", "TaskShape")
