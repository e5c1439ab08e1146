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
        self._lanes: dict[str, deque[Job]] = {}
        self._burst = 0

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def put(self, job: Job) -> None:
        """Add a delivery behind those of its kind."""
        self._lanes.setdefault(job.effect.kind, deque()).append(job)

    def take(self, like: str = "") -> Job | None:
        """Return the next delivery, preferably of the same kind; ``None`` if there is none."""
        if ALERT in self._lanes:
            return self._pop(ALERT)
        if like in self._lanes and (self._burst < BURST or len(self._lanes) == 1):
            self._burst += 1
            return self._pop(like)
        self._burst = 1
        kind = next(iter(self._lanes), None)
        if kind is None:
            return None
        lane = self._lanes.pop(kind)
        self._lanes[kind] = lane  # moved to the end, behind the others
        return self._pop(kind)

    def _pop(self, kind: str) -> Job:
        lane = self._lanes[kind]
        job = lane.popleft()
        if not lane:
            del self._lanes[kind]
        return job
