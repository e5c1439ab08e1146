"""Workers: processes on any machine that run one try at a time, and what tasks require of them."""

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
"""Number of a worker, unique during the life of a daemon. Local workers are numbered from 0."""

LOCAL = "local"
"""The executor of the daemon's own machine. It has as many workers as the setting ``cpu_slots``."""


class WorkerSpec(msgspec.Struct, frozen=True):
    """The requirements of tries on their worker. Tries with equal specs may share a worker.

    They run in the worker one after the other. The spec is hashable.

    Attributes:
        executor: Name of the executor: ``local``, or a table ``[executors.NAME]`` of the settings.
        interpreter: Name of the interpreter; empty for the daemon's own.
        resources: Sorted by name, each amount above 0, sizes in bytes: ``(("GPU", 1.0),
            ("memory", 4294967296.0))``. The worker holds them all as long as it lives.
        options: Further options for this executor, as a msgpack map with sorted keys; empty if
            there are none.
    """

    executor: str = LOCAL
    interpreter: str = ""
    resources: tuple[tuple[str, float], ...] = ()
    options: bytes = b""


class WorkerLocation(msgspec.Struct, frozen=True):
    """Where a remote worker runs, for display. A text is empty if it is unknown.

    Attributes:
        host: Name of the machine.
        worker: Its process on that machine, and its address in the engine of the executor.
    """

    host: str = ""
    worker: str = ""


WorkerPages: TypeAlias = Callable[[], Mapping[tuple[str, WorkerLocation], str]]
"""Function that returns the addresses of web pages about the remote workers that are up.

The keys are the name of the executor and the location of the worker. An empty location stands for
the engine of the executor itself.
"""


class WorkerDemand(msgspec.Struct, frozen=True):
    """How many workers of a spec have work: running tries and ready tries that limits admit.

    Attributes:
        count: Number of workers that could be working now, at least 1.
        priority: The highest priority of the tasks that wait for such a worker. A higher priority
            comes first.
        oldest_since: Since when the longest-waiting of these tasks has waited; ``None`` if none
            waits.
    """

    spec: WorkerSpec
    count: int
    priority: int = 0
    oldest_since: Timestamp | None = None
