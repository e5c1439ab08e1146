"""Packed memory: a byte string instead of objects for tasks, triggers and runs that only wait.

``Memory.runs``, ``active_tasks`` and ``waits`` look packed values up like others. ``Packing`` has
the operations that would be too slow if all of them were unpacked: it finds packed triggers by
their ``TaskShape``, the fields that many of them share, and assigns them as ``PackedTask``. Nothing
else outside of this package knows how values are packed.
"""

from __future__ import annotations

from aioflow.core.state.packed.runs import PackedRuns
from aioflow.core.state.packed.tasks import PackedCache, PackedTask, Packing, TaskShape

__all__ = ("PackedCache", "PackedRuns", "PackedTask", "Packing", "TaskShape")
