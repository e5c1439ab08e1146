"""Operators that handle every event of their triggers, not only the first."""

from __future__ import annotations

import inspect
from typing import Any

from aioflow.author.duration import microseconds
from aioflow.author.source_location import dag_error
from aioflow.model.dag import EventsSpec

__all__ = ("HANDLER", "events_spec")

HANDLER = "handle_trigger_events"
"""The method that handles batches of events: ``handle_trigger_events(events, context)``."""

BATCH_LIMIT = 10_000
WINDOW_LIMIT = 1_000


def events_spec(cls: type[Any], *, is_sensor: bool, has_execute: bool) -> EventsSpec | None:
    """Return how a class handles many events; ``None`` if it resumes at the first.

    Args:
        cls: An operator class.
        is_sensor: Whether it is a sensor.
        has_execute: Whether it defines its own ``execute``.

    Raises:
        DagError: If its attributes for this are invalid.
    """
    handler = getattr(cls, HANDLER, None)
    many = getattr(cls, "many_events", False)
    if handler is None and not many:
        return None
    name = cls.__name__
    if is_sensor:
        raise dag_error(f"{name} is a sensor; only an operator takes many events")
    window = _count(cls, "event_window", WINDOW_LIMIT)
    if handler is None:
        return EventsSpec(method="", window=window)
    _check(cls, handler, has_execute=has_execute)
    return EventsSpec(
        method=HANDLER,
        batch=_count(cls, "event_batch", BATCH_LIMIT),
        delay_us=microseconds(cls.event_delay, f"{name}.event_delay"),
        window=window,
    )


def _check(cls: type[Any], handler: Any, *, has_execute: bool) -> None:
    name = f"{cls.__name__}.{HANDLER}"
    if not inspect.isfunction(handler):
        raise dag_error(f"{name} must be a method")
    if inspect.isasyncgenfunction(handler):
        raise dag_error(f"{name} is an async generator; let it return a list")
    try:
        inspect.signature(handler).bind(None, [], {})
    except TypeError:
        raise dag_error(f"{name} is called with (events, context)") from None
    is_mixed = inspect.iscoroutinefunction(cls.execute) != inspect.iscoroutinefunction(handler)
    if has_execute and is_mixed:
        raise dag_error(
            f"{cls.__name__}: execute and {HANDLER} run in one place; write both `def` or both "
            "`async def`"
        )


def _count(cls: type[Any], name: str, most: int) -> int:
    value = getattr(cls, name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise dag_error(
            f"{cls.__name__}.{name} must be a whole number from 1 to {most}, got {value!r}"
        )
    return value
