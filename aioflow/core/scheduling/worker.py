"""A worker as the scheduler sees it: its tries, and the code that its process has loaded."""

from __future__ import annotations

from aioflow.core.state.task_instance import MappedTask, TaskInstance
from aioflow.model.dag import DEFAULT_POOL
from aioflow.model.workers import WorkerLocation, WorkerNo, WorkerSpec
from aioflow.protocol.inputs import WorkerUnresponsive

__all__ = (
    "LOCAL_SPEC",
    "NOWHERE",
    "Worker",
    "best_idle",
    "expected_us",
    "learn_duration",
)

LOCAL_SPEC = WorkerSpec()
NOWHERE = WorkerLocation()
"""The location of a local worker, and of a remote one that has not reported its own."""

_UNKNOWN_US = 1e12
_SHORTEST_US = 20.0
"""Minimum expected duration of a try in a worker, even if it does nothing."""

_OUTLIER = 10
"""A measured duration is capped at this many times the expected duration."""

_RECENT = 0.2
"""Weight of the newest measurement in the expected duration of a task."""


class Worker:
    """One worker.

    Attributes:
        spec: Its specification. All its tasks require exactly this one.
        location: Where it runs, for display.
        current: The running try.
        claims: Prefetched tries, in the order in which they will start after ``current``.
        pool: The pool whose slots it uses, as long as it has any try or is held.
        silence: Time since which its process neither responds nor uses CPU.
        slow: A try that took so long that the claims after it were recalled.
        is_leaving: Whether it gets no further try, because its process is ending or dead.
        is_lost: Whether nothing is known about its process now.
    """

    __slots__ = (
        "claims",
        "current",
        "is_leaving",
        "is_lost",
        "location",
        "number",
        "pool",
        "silence",
        "slow",
        "spec",
        "version",
        "weight",
    )

    def __init__(
        self,
        number: WorkerNo,
        spec: WorkerSpec = LOCAL_SPEC,
        location: WorkerLocation = NOWHERE,
    ) -> None:
        self.number = number
        self.spec = spec
        self.location = location
        self.version = ""
        self.current: TaskInstance | None = None
        self.claims: list[TaskInstance] = []
        self.slow: TaskInstance | None = None
        self.silence: WorkerUnresponsive | None = None
        self.pool = DEFAULT_POOL
        self.weight = 0
        self.is_leaving = self.is_lost = False

    @property
    def is_idle(self) -> bool:
        """Whether this worker has no running or claimed try."""
        return self.current is None and not self.claims

    @property
    def is_held(self) -> bool:
        """Whether its last try ended while the worker was lost, so that the body may still run.

        It keeps the slots of the pool until its process has certainly ended, or is connected again.
        In the latter case the process has already received the command that ends the body, because
        commands arrive in order.
        """
        return self.is_idle and self.weight > 0

    def expected_us(self) -> float:
        """Return how long all tries of this worker are expected to take."""
        total = 0.0 if self.current is None else expected_us(self.current)
        return total + sum(expected_us(task) for task in self.claims)

    def is_like(self, entry: TaskInstance | MappedTask) -> bool:
        """Return whether this worker could claim a task that takes over its slot unchanged."""
        spec = entry.spec
        return (
            entry.run.row.version == self.version
            and spec.pool == self.pool
            and spec.slots == self.weight
        )


def expected_us(entry: TaskInstance | MappedTask) -> float:
    """Return how long a try of a task is expected to take, in microseconds."""
    return max(entry.run.durations[entry.task_index] or _UNKNOWN_US, _SHORTEST_US)


def learn_duration(task: TaskInstance, took_us: int) -> None:
    """Update the expected duration of a task with a measured try."""
    durations, task_index = task.run.durations, task.task_index
    known = durations[task_index]
    took = max(0, took_us)  # the timestamps are wall time, and the clock may have been set back
    if known == 0:
        durations[task_index] = took
    else:
        durations[task_index] = known + _RECENT * (min(took, _OUTLIER * known) - known)


def best_idle(idle: list[Worker], version: str) -> Worker:
    """Return the idle worker that has to load the least code to run a version."""
    for worker in idle:
        if worker.version == version:
            return worker
    return next((worker for worker in idle if not worker.version), idle[0])
