"""When runs start, as data; and what becomes of slots that were missed."""

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
"""What an author may write instead of five fields. ``@once`` and ``@continuous`` are no cron."""

Missed: TypeAlias = Literal["skip", "latest", "all"]
IntervalKind: TypeAlias = Literal["slot", "previous"]


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """When runs start: exactly one of ``cron`` to ``parts``.

    Attributes:
        cron: Five fields, or six, of which the first is the second.
        every_us: A fixed interval of elapsed time.
        anchor: An instant that is a slot of the interval; the others are whole intervals away.
        dates: ints, ascending.
        once: One run, as soon as the DAG is known, or at its ``start_date``.
        gap_us: A run as soon as the last has ended, but this long after that began at least.
        parts: Schedules whose slots are joined; none of these is ``once`` or has a ``gap_us``.
        jitter_us: How much later than its slot a run may start.
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
        """Whether it names instants: one run, or one after the other, goes by what has been."""
        return not self.once and self.gap_us is None
