"""Workers: processes that run one try at a time, on any machine, and what tasks require of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from aioflow.model.timestamps import Timestamp

__all__ = (
    "LOCAL",
    "WorkerDemand",
    "WorkerLocation",
    "WorkerNo",
    "WorkerPages",
    "WorkerSpec",
)

WorkerNo: TypeAlias = int
"""Number of a worker, unique in the life of a daemon. Local workers are numbered from 0."""

LOCAL = "local"
"""The executor of the daemon's own machine: as many workers as the setting ``cpu_slots``."""


class WorkerSpec(msgspec.Struct, frozen=True):
    """The requirements that tries share if they run in the same worker, one after the other.

    It is hashable. Two tasks with equal specs share workers.

    Attributes:
        executor: Name of the executor: ``local``, or a table ``[executors.NAME]`` of the settings.
        interpreter: Name of the interpreter; empty for the daemon's own.
        resources: Sorted by name, each amount above 0, sizes in bytes: ``(("GPU", 1.0),
            ("memory", 4294967296.0))``. The worker holds them all as long as it lives.
        options: What else the task tells this executor, as a msgpack map with sorted keys; empty if
            nothing.
    """

    executor: str = LOCAL
    interpreter: str = ""
    resources: tuple[tuple[str, float], ...] = ()
    options: bytes = b""


class WorkerLocation(msgspec.Struct, frozen=True):
    """Where a remote worker runs, for display. Empty texts are unknown.

    Attributes:
        host: Name of the machine.
        worker: Its process on that machine, and its address in the engine of the executor.
    """

    host: str = ""
    worker: str = ""


WorkerPages: TypeAlias = Callable[[], Mapping[tuple[str, WorkerLocation], str]]
"""Returns the address of a page about each remote worker that is up and has one.

The keys are the name of the executor and the location of the worker. An empty location is that of
the engine itself.
"""


class WorkerDemand(msgspec.Struct, frozen=True):
    """How many workers of a spec have work: running tries and ready tries that limits admit.

    Attributes:
        count: Number of workers that could be at work now, at least 1.
        priority: The highest priority of the tasks that wait for such a worker; higher is earlier.
        oldest_since: When the longest of these waits began; ``None`` if all have a worker.
    """

    spec: WorkerSpec
    count: int
    priority: int = 0
    oldest_since: Timestamp | None = None
