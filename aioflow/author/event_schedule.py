"""Event schedules: a trigger, asset or timetable whose events start runs."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from aioflow.author.assets import Asset, AssetExpression, asset_condition, lists_assets
from aioflow.author.duration import Duration, microseconds
from aioflow.author.schedule import Schedule
from aioflow.author.timetables import is_timetable, timetable_trigger
from aioflow.author.trigger import Trigger, never_yields, serialize
from aioflow.errors import BadSchedule
from aioflow.model.dag_triggers import ASSETS, DagTriggerSpec, IfRunning
from aioflow.model.timestamps import Timestamp

__all__ = ("clock_schedule", "dag_trigger_spec")


def _is_event_schedule(schedule: object) -> bool:
    """Return whether events start the runs, rather than times."""
    is_one = isinstance(schedule, Trigger | Asset | AssetExpression)
    return is_one or lists_assets(schedule) or is_timetable(schedule)


def clock_schedule(schedule: Any) -> Schedule:
    """Return a schedule of times; ``None`` if events start the runs."""
    made: Schedule = None if _is_event_schedule(schedule) else schedule
    return made


def _checked_if_running(value: object) -> IfRunning:
    """Return a valid value of ``if_running``.

    Raises:
        BadSchedule: If it is not one of the allowed values.
    """
    for known in get_args(IfRunning):
        if value == known:
            word: IfRunning = known
            return word
    known_words = ", ".join(map(repr, get_args(IfRunning)))
    raise BadSchedule(f"if_running={value!r} is none of {known_words}")


def dag_trigger_spec(
    schedule: Any,
    *,
    if_running: object,
    debounce: Duration | None,
    catchup: bool,
    begin: Timestamp | None,
    end: Timestamp | None,
) -> DagTriggerSpec | None:
    """Return how events start runs; ``None`` for a schedule of times, or none.

    Args:
        schedule: The ``schedule`` of the DAG.
        if_running: See ``model.IfRunning``.
        debounce: How long there must be no event before the last one starts a run.
        catchup: For a custom timetable: whether every missed fire time is run.
        begin: The earliest fire time of a custom timetable.
        end: The latest fire time of a custom timetable.

    Raises:
        BadSchedule: If an option is invalid, or does not apply to this kind of schedule.
        Unserializable: If the trigger cannot be serialized.
    """
    word = _checked_if_running(if_running)
    quiet_us = None if debounce is None else microseconds(debounce, "debounce")
    if not _is_event_schedule(schedule):
        if word != "queue" or quiet_us is not None:
            raise BadSchedule("if_running and debounce go with schedule=<a trigger> alone")
        return None
    is_own = is_timetable(schedule)
    if quiet_us is not None and is_own:
        raise BadSchedule("debounce goes with a trigger; a timetable has slots")
    if quiet_us == 0:
        raise BadSchedule("debounce must be longer than nothing")
    condition = asset_condition(schedule)
    name = type(schedule).__name__
    if is_own:
        slots = timetable_trigger(schedule, catchup=catchup, begin=begin, end=end)
        path, kwargs = slots.timetable, serialize(slots)[1]  # named in reports by its own class
    elif condition is None:
        wrong = never_yields(type(schedule))
        if wrong:
            raise BadSchedule(f"the schedule's {wrong}")
        path, kwargs = serialize(schedule)
    elif quiet_us is not None:
        raise BadSchedule("debounce goes with a trigger; assets are not told of one by one")
    else:
        path, kwargs, name = ASSETS, msgspec.msgpack.encode(condition), ", ".join(condition.names())
    return DagTriggerSpec(
        class_path=path,
        kwargs=kwargs,
        name=name,
        if_running=word,
        debounce_us=quiet_us,
        is_timetable=is_own,
    )
