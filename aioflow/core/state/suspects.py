"""Crash attribution: which task or trigger is charged when a shared host was killed.

A segfault, an exit or an out-of-memory error is charged to the code that was running. A SIGKILL
usually comes from outside, so that code is not charged. Code may send it to itself, though, and
would crash its host for ever; so it is charged if it was running at too many kills.
"""

from __future__ import annotations

from collections.abc import Container

from aioflow.core.tasks.retry import INTERRUPTION_LIMIT_OWN
from aioflow.model.ids import TaskNo, TriggerNo
from aioflow.model.states import Failure
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.inputs import HostLost

__all__ = ("CrashSuspects",)

_KILLED = "killed"


class CrashSuspects:
    """Counts of kills during which each task or trigger was running, in memory only."""

    def __init__(self) -> None:
        self._kills: dict[TaskNo | TriggerNo, set[Timestamp]] = {}

    def failure(self, lost: HostLost, *known: Container[TaskNo | TriggerNo]) -> Failure | None:
        """Return the failure to charge to the culprit of a lost host, or ``None``.

        A loss that is reported again because its turn was rolled back counts once.

        Args:
            lost: Report of the host's death, with the code that was running.
            known: Numbers that still exist; the counts of all others are dropped.
        """
        if lost.failure.reason != _KILLED:
            return lost.failure
        kills = self._kills.setdefault(lost.culprit, set())
        kills.add(lost.at)
        self._kills = {
            number: kills
            for number, kills in self._kills.items()
            if any(number in some for some in known)
        }
        if len(kills) <= INTERRUPTION_LIMIT_OWN:
            return None
        message = f"it was running {len(kills)} times when its host was killed"
        return Failure(type="Killed", message=message, reason="interrupted")

    def clear(self, number: TaskNo | TriggerNo) -> None:
        """Reset the count of a task or trigger that has made progress."""
        self._kills.pop(number, None)
