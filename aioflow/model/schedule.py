"""Schedules as data, and policies for missed slots."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = ("CRON_NAMES", "IntervalKind", "Missed", "ScheduleSpec")

CRON_NAMES = {
    "@annually": "0 0 1 1 *",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
    "@midnight": "0 0 * * *",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@weekly": "0 0 * * 0",
    "@yearly": "0 0 1 1 *",
}
"""Names that may replace the five fields. ``@once`` and ``@continuous`` are no cron expressions."""

Missed: TypeAlias = Literal["skip", "latest", "all"]
IntervalKind: TypeAlias = Literal["slot", "previous"]


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The start times of runs: exactly one of ``cron`` to ``parts``.

    Attributes:
        cron: Five fields, or six, of which the first is the second.
        every_us: A fixed interval of elapsed time.
        anchor: A timestamp that is a slot of the interval. The others are whole intervals away.
        dates: Timestamps, ascending.
        once: One run, as soon as the DAG is known, or at its ``start_date``.
        gap_us: A run as soon as the last one has ended, but at least this long after that one
            started.
        parts: Schedules whose slots are joined. None of these is ``once`` or has a ``gap_us``.
        jitter_us: Maximum delay of a run after its slot.
    """

    cron: str | None = None
    every_us: int | None = None
    anchor: int = 0
    dates: tuple[int, ...] | None = None
    once: bool = False
    gap_us: int | None = None
    parts: tuple[ScheduleSpec, ...] = ()
    jitter_us: int = 0

    @property
    def has_slots(self) -> bool:
        """Whether it has timestamps. ``once`` and ``gap_us`` depend on earlier runs instead."""
        return not self.once and self.gap_us is None
