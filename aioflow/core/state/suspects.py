"""Who was running when a shared host was killed: by chance, or by its own doing?

A segfault, an exit or memory that ran out is the doing of the code that ran. SIGKILL comes from
somebody else, as a rule, so whoever ran just then is not charged. Code may send it to itself,
though, and would take its host down for ever: who was running too often is charged.
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
    """Counts, in memory alone, in how many kills each task or trigger was running."""

    def __init__(self) -> None:
        self._kills: dict[TaskNo | TriggerNo, set[Timestamp]] = {}

    def failure(self, lost: HostLost, *known: Container[TaskNo | TriggerNo]) -> Failure | None:
        """Return what the culprit of a loss is charged with; ``None`` if with nothing.

        A loss that is told again, because its turn was taken back, counts once.

        Args:
            lost: A host that died, with whose code was running.
            known: Whoever is in none of these has ended, and is forgotten.
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
        """It has come further than where it was."""
        self._kills.pop(number, None)
