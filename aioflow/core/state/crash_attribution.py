"""Attribution of crashed hosts and blocked event loops to the user code that caused them.

Blocks of an event loop are counted per trigger class and per task, to decide when a class is
isolated. If a host crashes by a segfault, an exit or an out-of-memory error, the task whose code
was running is charged a try. If the host is killed by SIGKILL, usually no try is charged, because
the signal usually comes from outside. However, code that sends SIGKILL to its own process would
kill its host again and again, so code that was running during too many kills is charged.

All counts are in memory only, so a restart resets them.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from aioflow.core.tasks.retry import INTERRUPTION_LIMIT_OWN
from aioflow.model.ids import TaskNo, TriggerNo
from aioflow.model.states import Failure
from aioflow.model.timestamps import Moment, Timestamp
from aioflow.protocol.inputs import HostLost, LoopBlocked

__all__ = (
    "BLOCK_LIMIT",
    "BLOCK_WINDOW_US",
    "LONG_BLOCK_MS",
    "CrashSuspects",
    "LoopBlocker",
    "LoopBlockers",
)

BLOCK_LIMIT = 3
BLOCK_WINDOW_US = 3_600_000_000
"""Time within which ``BLOCK_LIMIT`` blocks are too many."""

LONG_BLOCK_MS = 5_000
"""Duration of a single block that is enough to isolate a class."""

BLOCKER_LIMIT = 1_000
"""Maximum number of known loop blockers. Above it, the least recently reported is dropped."""

_SILENCE_US = 1_000_000


class LoopBlocker(msgspec.Struct, kw_only=True):
    """Blocks of the event loop caused by one trigger class or one task.

    Attributes:
        kind: ``trigger`` or ``task``.
        name: The class path of the trigger, or the DAG and the task.
        count: Number of blocks.
        number: Trigger or task number of the last block.
        source_location: Source location of the last block.
        incident: Id of the last block, see ``protocol.inputs.LoopBlocked``.
        incident_ms: Duration of the last block.
        offences: Report times of the most recent blocks that count towards isolation.
        is_quarantined: Whether triggers of this class run in the quarantine host.
        logged_at: When a block was last logged.
    """

    kind: str
    name: str
    count: int = 0
    longest_ms: int = 0
    total_ms: int = 0
    number: int = -1
    run_id: str = ""
    task_id: str = ""
    source_location: str = ""
    last_at: Timestamp = 0
    incident: str = ""
    incident_ms: int = 0
    offences: tuple[Timestamp, ...] = ()
    is_quarantined: bool = False
    logged_at: Timestamp = 0

    def is_offender(self, steady: Timestamp) -> bool:
        """Return whether this code blocked its loop too often or for too long in the last hour."""
        recent = [at for at in self.offences if steady - at <= BLOCK_WINDOW_US]
        return len(recent) >= BLOCK_LIMIT

    def may_log(self, steady: Timestamp) -> bool:
        """Return whether a block may be logged now. Blocks are logged at most once per second."""
        return abs(steady - self.logged_at) >= _SILENCE_US


class LoopBlockers:
    """All known loop blockers, least recently reported first."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], LoopBlocker] = {}
        self._counts = {"trigger": 0, "task": 0}

    def all(self) -> list[LoopBlocker]:
        """Return all entries, longest total duration first."""
        return sorted(self._known.values(), key=lambda known: (-known.total_ms, known.name))

    def counts(self) -> dict[str, int]:
        """Return the number of blocks by kind, including those of dropped entries."""
        return dict(self._counts)

    def of_class(self, class_path: str) -> LoopBlocker | None:
        """Return the entry of a trigger class; ``None`` if it has none."""
        return self._known.get(("trigger", class_path))

    def is_quarantined(self, class_path: str) -> bool:
        """Return whether triggers of this class run in the quarantine host."""
        known = self._known.get(("trigger", class_path))
        return known is not None and known.is_quarantined

    def find(self, kind: str, name: str) -> LoopBlocker:
        """Return the entry of this name, created if missing, and move it to the end."""
        known = self._known.pop((kind, name), None) or LoopBlocker(kind=kind, name=name)
        self._known[kind, name] = known  # moved to the end
        if len(self._known) > BLOCKER_LIMIT:
            self._forget_one()
        return known

    def note(self, known: LoopBlocker, report: LoopBlocked, at: Moment) -> None:
        """Record a report.

        If it is about the same block as the last report, only the duration is updated.
        """
        if report.incident != known.incident:
            known.incident, known.incident_ms = report.incident, 0
            known.count += 1
            self._counts[known.kind] += 1
            if not report.is_loading:
                known.offences = (*known.offences[1 - BLOCK_LIMIT :], at.steady)
        if report.milliseconds >= LONG_BLOCK_MS and not report.is_loading:
            known.offences = (at.steady,) * BLOCK_LIMIT
        known.total_ms += max(0, report.milliseconds - known.incident_ms)
        known.incident_ms = max(known.incident_ms, report.milliseconds)
        known.longest_ms = max(known.longest_ms, report.milliseconds)
        known.number, known.source_location, known.last_at = (
            report.culprit,
            report.source_location,
            at.now,
        )

    def _forget_one(self) -> None:
        free = (key for key, known in self._known.items() if not known.is_quarantined)
        del self._known[next(free, next(iter(self._known)))]


_KILLED = "killed"


class CrashSuspects:
    """For each task or trigger, the kills of its host that happened while its code was running."""

    def __init__(self) -> None:
        self._kills: dict[TaskNo | TriggerNo, set[Timestamp]] = {}

    def failure(self, lost: HostLost, *known: Container[TaskNo | TriggerNo]) -> Failure | None:
        """Return the failure to charge to the culprit of a lost host.

        Return ``None`` if the host was killed, unless the culprit's code was running during more
        than ``INTERRUPTION_LIMIT_OWN`` kills.

        If the same loss is reported twice because its turn was rolled back, it counts once.

        Args:
            lost: Report of the host's death, with the code that was running.
            known: Numbers of the tasks and triggers that still exist; all other counts are dropped.
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
