"""Who has held up a loop, how often and for how long, and when that is too much.

Counted by the class of a trigger and by task, in memory alone: a restart begins anew.
"""

from __future__ import annotations

import msgspec

from aioflow.model.timestamps import Moment, Timestamp
from aioflow.protocol.inputs import LoopBlocked

__all__ = ("AT_ONCE_MS", "OFFENCES", "WITHIN_US", "LoopBlocker", "LoopBlockers")

OFFENCES = 3
WITHIN_US = 3_600_000_000
"""So many stalls within an hour are too many."""

AT_ONCE_MS = 5_000
"""One that lasts so long is too much at once."""

NAMES_KEPT = 1_000
"""Beyond these the one that was heard of least lately is forgotten."""

_SILENCE_US = 1_000_000


class LoopBlocker(msgspec.Struct, kw_only=True):
    """What one trigger class, or one task, has done to the loops it was on.

    Attributes:
        kind: ``trigger`` or ``task``.
        name: The class path, or the DAG and the task.
        count: Its stalls.
        number: The trigger or task that was the last.
        place: Where that stood.
        incident: Of the last stall, see ``protocol.inputs.Stalled``.
        incident_ms: How long that was.
        offences: When the last ones that count against it began.
        is_quarantined: Its triggers live in a host of their own.
        told_at: When the log was told last.
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
        """Whether it has held up its loop too often, or for too long."""
        recent = [at for at in self.offences if steady - at <= WITHIN_US]
        return len(recent) >= OFFENCES

    def may_tell(self, steady: Timestamp) -> bool:
        """Whether the log can take another line of it: one in a second."""
        return abs(steady - self.told_at) >= _SILENCE_US


class LoopBlockers:
    """What is known of everyone who has held up a loop."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], LoopBlocker] = {}
        self._counts = {"trigger": 0, "task": 0}

    def all(self) -> list[LoopBlocker]:
        """Return what is known, those that stalled longest in all first."""
        return sorted(self._known.values(), key=lambda known: (-known.total_ms, known.name))

    def counts(self) -> dict[str, int]:
        """Return how many stalls there were in all, also of those forgotten, by kind."""
        return dict(self._counts)

    def of_class(self, class_path: str) -> LoopBlocker | None:
        """Return what is known of a trigger class."""
        return self._known.get(("trigger", class_path))

    def is_quarantined(self, class_path: str) -> bool:
        """Whether triggers of this class live apart."""
        known = self._known.get(("trigger", class_path))
        return known is not None and known.is_quarantined

    def find(self, kind: str, name: str) -> LoopBlocker:
        """Return what is known of one; nothing yet, perhaps."""
        known = self._known.pop((kind, name), None) or LoopBlocker(kind=kind, name=name)
        self._known[kind, name] = known  # the last now
        if len(self._known) > NAMES_KEPT:
            self._forget_one()
        return known

    def note(self, known: LoopBlocker, report: LoopBlocked, at: Moment) -> None:
        """Count what is reported; what is said again of the same stall is not another one."""
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
