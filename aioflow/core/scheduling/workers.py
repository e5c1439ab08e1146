"""Worker slots for ``def`` bodies with their tries, and the grant of a slot to a try."""

from __future__ import annotations

from aioflow.core.state.task_instance import MappedTask, TaskInstance
from aioflow.model.dag import DEFAULT_POOL
from aioflow.protocol.inputs import WorkerUnresponsive

__all__ = ("Grant", "Worker", "best_idle", "expected_us", "learn_duration")

_UNKNOWN_US = 1e12
_SHORTEST_US = 20.0
"""Minimum cost of a try in a worker, even if it does nothing."""

_OUTLIER = 10
"""A measurement counts for at most this many times the expected duration."""

_RECENT = 0.2
"""Weight of the newest measurement in a task's expected duration."""


class Worker:
    """One worker slot.

    Attributes:
        current: The running try.
        claims: Prefetched tries behind it, in the order in which they will start.
        pool: The pool whose slots it uses, as long as it has any try.
        silence: Since when its process neither answers nor computes.
        slow: A try that took so long that the claims behind it were recalled.
    """

    __slots__ = ("claims", "current", "number", "pool", "silence", "slow", "version", "weight")

    def __init__(self, number: int) -> None:
        self.number = number
        self.version = ""
        self.current: TaskInstance | None = None
        self.claims: list[TaskInstance] = []
        self.slow: TaskInstance | None = None
        self.silence: WorkerUnresponsive | None = None
        self.pool = DEFAULT_POOL
        self.weight = 0

    @property
    def is_idle(self) -> bool:
        """Whether it could start another try now."""
        return self.current is None and not self.claims

    def expected_us(self) -> float:
        """Return how long its tries are expected to take."""
        total = 0.0 if self.current is None else expected_us(self.current)
        return total + sum(expected_us(task) for task in self.claims)

    def is_like(self, entry: TaskInstance | MappedTask) -> bool:
        """Return whether the task could follow in this worker without changing its slot."""
        spec = entry.spec
        return (
            entry.run.row.version == self.version
            and spec.pool == self.pool
            and spec.slots == self.weight
        )


class Grant:
    """A try that may start now.

    Attributes:
        is_waiting: It starts with a wait, and needs no slot for that.
    """

    __slots__ = ("is_claimed", "is_waiting", "task", "worker")

    def __init__(
        self,
        task: TaskInstance,
        worker: int = -1,
        *,
        is_claimed: bool = False,
        is_waiting: bool = False,
    ) -> None:
        self.task = task
        self.worker = worker
        self.is_claimed = is_claimed
        self.is_waiting = is_waiting


def expected_us(entry: TaskInstance | MappedTask) -> float:
    """Return how long a try of a task is expected to take, in microseconds."""
    return max(entry.run.durations[entry.position] or _UNKNOWN_US, _SHORTEST_US)


def learn_duration(task: TaskInstance, took_us: int) -> None:
    """Update the expected duration of a task with a measured try."""
    durations, position = task.run.durations, task.position
    known = durations[position]
    took = max(0, took_us)  # these are wall times, and the clock may have been set back
    if known == 0:
        durations[position] = took
    else:
        durations[position] = known + _RECENT * (min(took, _OUTLIER * known) - known)


def best_idle(idle: list[Worker], version: str) -> Worker:
    """Return the idle worker with the least to load for a version."""
    for worker in idle:
        if worker.version == version:
            return worker
    return next((worker for worker in idle if not worker.version), idle[0])
