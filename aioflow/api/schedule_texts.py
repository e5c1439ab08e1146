"""The schedule of a DAG as a line of text, close to how its author wrote it."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from aioflow.api.trigger_details import PublicFields
from aioflow.model.dag import DagSpec, ScheduleSpec
from aioflow.model.triggers import ASSETS, AssetCondition, DagTriggerRow, DagTriggerSpec

__all__ = ("condition_text", "schedule_text")

_LENGTH = 500
"""Maximum length of the text; longer texts are cut."""


def schedule_text(
    spec: DagSpec, own: DagTriggerRow | None = None, shown: PublicFields | None = None
) -> str | None:
    """Return the schedule of a DAG as text; ``None`` if the DAG has no schedule.

    A trigger is shown with its most significant public fields, assets with their operators.

    Args:
        own: The trigger that starts the runs. Without it, only the name in the spec is shown.
        shown: The public fields of triggers.
    """
    if spec.trigger is not None:
        return f"each {_trigger_text(spec.trigger, own, shown)}"[:_LENGTH]
    return None if spec.schedule is None else _clock_text(spec.schedule)


def _trigger_text(
    spec: DagTriggerSpec, own: DagTriggerRow | None, shown: PublicFields | None
) -> str:
    if own is None or own.kwargs is None or own.class_path != spec.class_path or spec.is_timetable:
        return spec.name
    if own.class_path == ASSETS:
        return _decoded_text(own.kwargs) or spec.name
    return spec.name if shown is None else shown.brief(spec.name, own.class_path, own.kwargs)


def _decoded_text(packed: bytes) -> str | None:
    """Return a condition over assets as an expression; ``None`` if it cannot be decoded."""
    try:
        return condition_text(msgspec.msgpack.decode(packed, type=AssetCondition))
    except (msgspec.DecodeError, RecursionError):
        return None


def condition_text(condition: AssetCondition) -> str:
    """Return a condition over assets as an expression, in the notation of its author."""
    parts = (
        part if isinstance(part, str) else _operand(part, condition) for part in condition.parts
    )
    return (" & " if condition.is_all else " | ").join(parts)


def _operand(part: AssetCondition, of: AssetCondition) -> str:
    is_plain = part.is_all == of.is_all or len(part.parts) == 1 or len(of.parts) == 1
    text = condition_text(part)
    return text if is_plain else f"({text})"


def _clock_text(schedule: ScheduleSpec) -> str | None:
    if schedule.parts:
        return ", ".join(_clock_text(part) or "" for part in schedule.parts)
    if not schedule.has_fire_times:
        return "@once" if schedule.once else "@continuous"
    if schedule.every_us is not None:
        return f"every {timedelta(microseconds=schedule.every_us)}"
    if schedule.dates is not None:
        return "1 date" if len(schedule.dates) == 1 else f"{len(schedule.dates)} dates"
    return schedule.cron
