"""Statistics of user code that blocks the event loop of a host, and when a class is isolated.

Blocks are counted per trigger class and per task, in memory only: a restart resets them.
"""

from __future__ import annotations

import msgspec

from aioflow.model.timestamps import Moment, Timestamp
from aioflow.protocol.inputs import LoopBlocked

__all__ = ("AT_ONCE_MS", "OFFENCES", "WITHIN_US", "LoopBlocker", "LoopBlockers")

OFFENCES = 3
WITHIN_US = 3_600_000_000
"""``OFFENCES`` blocks within this time are too many."""

AT_ONCE_MS = 5_000
"""A single block of this length is enough."""

NAMES_KEPT = 1_000
"""Maximum number of entries. Above it, the least recently reported entry is dropped."""

_SILENCE_US = 1_000_000


class LoopBlocker(msgspec.Struct, kw_only=True):
    """Blocks of the event loop caused by one trigger class or one task.

    Attributes:
        kind: ``trigger`` or ``task``.
        name: The class path, or the DAG and the task.
        count: Number of blocks.
        number: Trigger or task number of the last block.
        place: Source location of the last block.
        incident: Id of the last block, see ``protocol.inputs.LoopBlocked``.
        incident_ms: Duration of the last block.
        offences: When the most recent blocks that count towards isolation were reported.
        is_quarantined: Its triggers run in the quarantine host.
        told_at: When it was last logged.
    """

    kind: str
    name: str
    count: int = 0
    longest_ms: int = 0
    total_ms: int = 0
    number: int = -1
    run_id: str = ""
    task_id: str = ""
    place: str = ""
    last_at: Timestamp = 0
    incident: str = ""
    incident_ms: int = 0
    offences: tuple[Timestamp, ...] = ()
    is_quarantined: bool = False
    told_at: Timestamp = 0

    def is_offender(self, steady: Timestamp) -> bool:
        """Return whether it has blocked its loop too often or for too long in the last hour."""
        recent = [at for at in self.offences if steady - at <= WITHIN_US]
        return len(recent) >= OFFENCES

    def may_tell(self, steady: Timestamp) -> bool:
        """Return whether it may be logged again: at most once per second."""
        return abs(steady - self.told_at) >= _SILENCE_US


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
        """Return the entry of a trigger class, or ``None``."""
        return self._known.get(("trigger", class_path))

    def is_quarantined(self, class_path: str) -> bool:
        """Return whether triggers of this class run in the quarantine host."""
        known = self._known.get(("trigger", class_path))
        return known is not None and known.is_quarantined

    def find(self, kind: str, name: str) -> LoopBlocker:
        """Return the entry of this name, created if missing, and move it to the end."""
        known = self._known.pop((kind, name), None) or LoopBlocker(kind=kind, name=name)
        self._known[kind, name] = known  # moved to the end
        if len(self._known) > NAMES_KEPT:
            self._forget_one()
        return known

    def note(self, known: LoopBlocker, report: LoopBlocked, at: Moment) -> None:
        """Record a report. Further reports of the same block only update its duration."""
        if report.incident != known.incident:
            known.incident, known.incident_ms = report.incident, 0
            known.count += 1
            self._counts[known.kind] += 1
            if not report.is_loading:
                known.offences = (*known.offences[1 - OFFENCES :], at.steady)
        if report.milliseconds >= AT_ONCE_MS and not report.is_loading:
            known.offences = (at.steady,) * OFFENCES
        known.total_ms += max(0, report.milliseconds - known.incident_ms)
        known.incident_ms = max(known.incident_ms, report.milliseconds)
        known.longest_ms = max(known.longest_ms, report.milliseconds)
        known.number, known.place, known.last_at = report.culprit, report.place, at.now

    def _forget_one(self) -> None:
        free = (key for key, known in self._known.items() if not known.is_quarantined)
        del self._known[next(free, next(iter(self._known)))]
