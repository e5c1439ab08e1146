"""The queue of deliveries: alerts first, then one DAG after another."""

from __future__ import annotations

from collections import deque

import msgspec

from aioflow.protocol.effects import DeliverOutbox
from aioflow.protocol.outbox import ALERT

__all__ = ("Job", "Queue")

BURST = 50
"""Consecutive deliveries of one DAG while others wait. They share a process with loaded code."""


class Job(msgspec.Struct, frozen=True):
    """A delivery that waits.

    Attributes:
        attempts: Number of failed tries so far.
    """

    effect: DeliverOutbox
    attempts: int = 0


class Queue:
    """Deliveries that wait, by kind; see the module."""

    def __init__(self) -> None:
        self._by_kind: dict[str, deque[Job]] = {}
        self._burst = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_kind.values()))

    def put(self, job: Job) -> None:
        """Add a delivery behind those of its kind."""
        self._by_kind.setdefault(job.effect.kind, deque()).append(job)

    def take(self, like: str = "") -> Job | None:
        """Return the next delivery, preferably of the same kind; ``None`` if there is none."""
        if ALERT in self._by_kind:
            return self._pop(ALERT)
        if like in self._by_kind and (self._burst < BURST or len(self._by_kind) == 1):
            self._burst += 1
            return self._pop(like)
        self._burst = 1
        kind = next(iter(self._by_kind), None)
        if kind is None:
            return None
        jobs = self._by_kind.pop(kind)
        self._by_kind[kind] = jobs  # moved to the end, behind the others
        return self._pop(kind)

    def _pop(self, kind: str) -> Job:
        jobs = self._by_kind[kind]
        job = jobs.popleft()
        if not jobs:
            del self._by_kind[kind]
        return job
