"""Deferral of tasks to triggers, and other exceptions and events that end a try early.

A task defers itself with ``TaskDeferred``, or starts deferred with ``StartTriggerArgs``. A trigger
can end the task with an event. An operator can handle every event of its trigger, in batches,
instead of resuming at the first. The exceptions are flow control, not errors.

The default of ``deferrable`` comes from the daemon's setting `[operators] default_deferrable`,
which is the first message that a worker process receives.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aioflow.author import codec
from aioflow.author.duration import Duration, microseconds
from aioflow.author.source_location import dag_error
from aioflow.author.trigger import FIELDS_LIMIT, Trigger, TriggerEvent, class_path, never_yields
from aioflow.errors import DagError
from aioflow.model.dag import EventsSpec, StartTriggerSpec
from aioflow.model.decisions import PERSON

__all__ = (
    "BATCH_HANDLER",
    "START_FROM_TRIGGER",
    "TRIGGER_KWARGS",
    "EndEvent",
    "Fail",
    "NotReady",
    "PokeReturnValue",
    "RetryAfter",
    "Skip",
    "StartTriggerArgs",
    "TaskDeferred",
    "TaskFailedEvent",
    "TaskSkippedEvent",
    "TaskSuccessEvent",
    "default_deferrable",
    "end_result",
    "events_spec",
    "poke_result",
    "set_default_deferrable",
    "start_spec",
)

T_co = TypeVar("T_co", covariant=True)


class TaskDeferred(BaseException):
    """Defers the task until a trigger fires; it resumes in a method of a new instance.

    Not an ``Exception``, so that a broad ``except`` in a task does not swallow it.

    Attributes:
        method_name: The method to call with ``context``, ``event`` and ``kwargs``. If ``None``, the
            trigger itself ends the task. An operator that handles its events in batches calls the
            method once, after the last event; if ``None``, the task then ends without such a call.
        timeout_us: How long to wait; ``None`` for no limit.
        on_timeout: The method to call after the timeout; ``None`` if the try fails then.
    """

    def __init__(
        self,
        *,
        trigger: Trigger[Any],
        method_name: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        on_timeout: str | None = None,
    ) -> None:
        where = "" if method_name is None else f", resumes in {method_name}"
        super().__init__(f"waits for {type(trigger).__name__}{where}")
        if not isinstance(trigger, Trigger):
            raise TypeError(f"a task waits for a Trigger, not for {type(trigger).__name__}")
        self.trigger = trigger
        self.method_name = method_name
        self.kwargs: dict[str, Any] = dict(kwargs or {})
        self.timeout_us = None if timeout is None else microseconds(timeout, "timeout")
        self.on_timeout = on_timeout


class NotReady(Exception):
    """The condition of a sensor is not met yet.

    Attributes:
        recheck_in_us: The time until the next check, instead of the sensor's interval.
    """

    def __init__(self, recheck_in: Duration | None = None) -> None:
        super().__init__("not ready yet")
        self.recheck_in_us = None if recheck_in is None else microseconds(recheck_in, "recheck_in")


class Skip(Exception):
    """Ends the task as skipped; the tasks that depend on it are skipped too."""


class Fail(Exception):
    """Fails the task immediately, without using its remaining tries."""


class RetryAfter(Exception):
    """Fails the try; the next try, if one is left, starts after this delay.

    Attributes:
        delay_us: Replaces the delay of the task's retry policy.
    """

    def __init__(self, delay: Duration, message: str = "") -> None:
        super().__init__(message or f"asked to be tried again after {delay}")
        self.delay_us = microseconds(delay, "delay")


@dataclass(frozen=True)
class PokeReturnValue(Generic[T_co]):
    """The result of a sensor's check. ``xcom_value`` is the sensor's result once ``is_done``."""

    is_done: bool
    xcom_value: T_co | None = None

    def __bool__(self) -> bool:
        return self.is_done


def poke_result(value: object) -> tuple[bool, Any]:
    """Return whether the condition is met, and the sensor's result if it is."""
    if isinstance(value, PokeReturnValue):
        return bool(value.is_done), value.xcom_value
    return bool(value), None


BATCH_HANDLER = "handle_trigger_events"
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
    handler = getattr(cls, BATCH_HANDLER, None)
    many = getattr(cls, "many_events", False)
    if handler is None and not many:
        return None
    name = cls.__name__
    if is_sensor:
        raise dag_error(f"{name} is a sensor; only an operator takes many events")
    window = _count_attribute(cls, "event_window", WINDOW_LIMIT)
    if handler is None:
        return EventsSpec(method="", window=window)
    _check_handler(cls, handler, has_execute=has_execute)
    return EventsSpec(
        method=BATCH_HANDLER,
        batch=_count_attribute(cls, "event_batch", BATCH_LIMIT),
        delay_us=microseconds(cls.event_delay, f"{name}.event_delay"),
        window=window,
    )


def _check_handler(cls: type[Any], handler: Any, *, has_execute: bool) -> None:
    name = f"{cls.__name__}.{BATCH_HANDLER}"
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
            f"{cls.__name__}: execute and {BATCH_HANDLER} run in one place; write both `def` or "
            "both `async def`"
        )


def _count_attribute(cls: type[Any], name: str, most: int) -> int:
    value = getattr(cls, name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise dag_error(
            f"{cls.__name__}.{name} must be a whole number from 1 to {most}, got {value!r}"
        )
    return value


START_FROM_TRIGGER = "start_from_trigger"
"""The attribute that says whether a task starts deferred. It is set on the class or the instance,
or passed to ``partial``."""

TRIGGER_KWARGS = "trigger_kwargs"
"""The argument of a mapped, initially deferred task that holds the fields of its trigger."""


@dataclass(kw_only=True)
class StartTriggerArgs:
    """The trigger for a task that starts deferred, and how the task resumes.

    Attributes:
        trigger_cls: A trigger class, or its path: ``module:Class`` or ``module.Class``.
        trigger_kwargs: The fields of the trigger.
        next_method: The method that is called with the event; ``None`` if the trigger ends the
            task itself, with ``TaskSuccessEvent`` and the like. For an operator that handles its
            events in batches, the method, if any, is called after the last event.
        next_kwargs: Arguments for ``next_method``.
        timeout: How long to wait before the try fails.
    """

    trigger_cls: type[Trigger[Any]] | str
    trigger_kwargs: Mapping[str, Any] | None = None
    next_method: str | None = None
    next_kwargs: Mapping[str, Any] | None = None
    timeout: Duration | None = None

    @property
    def class_path(self) -> str:
        """``module:Qualname`` of the trigger class."""
        if not isinstance(self.trigger_cls, str):
            return class_path(self.trigger_cls)
        if ":" in self.trigger_cls:
            return self.trigger_cls
        return ":".join(self.trigger_cls.rpartition(".")[::2])


def end_result(payload: object, xcoms: Mapping[str, Any] | None) -> Any:
    """Return the result of a task: its XCom ``return_value`` if there is one, else all XComs."""
    return payload if xcoms is None else xcoms.get("return_value", dict(xcoms))


class EndEvent(TriggerEvent[Any]):
    """An event that ends the task without resuming it.

    Attributes:
        ends: ``success``, ``failed`` or ``skipped``.
    """

    ends = ""

    def __init__(
        self, payload: object = None, *, xcoms: Mapping[str, Any] | None = None, key: str = ""
    ) -> None:
        super().__init__(end_result(payload, xcoms), key or None)

    @property
    def result(self) -> Any:
        """The result of the task, or the reason for its failure."""
        return self.payload


class TaskSuccessEvent(EndEvent):
    """Ends the task as successful. Its result is ``xcoms["return_value"]``, or all of ``xcoms``."""

    ends = "success"


class TaskFailedEvent(EndEvent):
    """Fails the try, which is retried by the task's policy. The payload gives the reason."""

    ends = "failed"


class TaskSkippedEvent(EndEvent):
    """Ends the task as skipped; the tasks that depend on it are skipped too."""

    ends = "skipped"


def start_spec(owner: Any) -> StartTriggerSpec:
    """Return how a task starts deferred.

    Args:
        owner: The instance of the operator, or its class if the task is mapped.

    Raises:
        DagError: If the owner has no ``start_trigger_args``, or they are invalid.
        Unserializable: If an argument cannot be serialized.
    """
    said = getattr(owner, "start_trigger_args", None)
    name = owner.__name__ if isinstance(owner, type) else type(owner).__name__
    if not isinstance(said, StartTriggerArgs):
        raise DagError(
            f"{name} has start_from_trigger = True, so it needs "
            "start_trigger_args = StartTriggerArgs(...)"
        )
    method = said.next_method or ""
    if method and not callable(getattr(owner, method, None)):
        raise DagError(f"{name} has no method {method!r} to resume in")
    if getattr(owner, "many_events", False) and not method and not hasattr(owner, BATCH_HANDLER):
        raise DagError(f"{name} has many_events = True, so it needs a next_method that takes each")
    for field, value in (said.trigger_kwargs or {}).items():
        if inspect.isroutine(value):  # other unserializable values may come from a reference
            codec.encode(value, f"{field!r} in trigger_kwargs of {name}", FIELDS_LIMIT)
    _check_trigger_class(said.trigger_cls, name)
    if said.class_path == PERSON:
        raise DagError(f"{name} cannot start deferred to a PersonTrigger; call defer() in execute")
    more = None
    if said.next_kwargs:
        more = codec.encode(dict(said.next_kwargs), f"next_kwargs of {name}", FIELDS_LIMIT)
    return StartTriggerSpec(
        class_path=said.class_path,
        next_method=method,
        next_kwargs=more,
        timeout_us=None if said.timeout is None else microseconds(said.timeout, "timeout"),
    )


def _check_trigger_class(trigger_cls: object, name: str) -> None:
    """Check the class of a trigger. A path cannot be checked here, only where it is imported.

    Raises:
        DagError: If it is not a trigger class, or its triggers can never yield an event.
    """
    if isinstance(trigger_cls, str):
        return
    if not (isinstance(trigger_cls, type) and issubclass(trigger_cls, Trigger)):
        raise DagError(f"the trigger_cls of {name} is not a trigger class, but {trigger_cls!r}")
    wrong = never_yields(trigger_cls)
    if wrong:
        raise DagError(f"the trigger_cls of {name}: {wrong}")


_default_deferrable: bool | None = None


def default_deferrable(*, unless_set: bool = False) -> bool:
    """Return the meaning of an operator's ``deferrable=None`` under this daemon's settings.

    The value is the same while the DAG file is imported and when the task runs.

    Args:
        unless_set: The value if the setting is missing, as outside of a daemon's processes. The
            built-in sensors pass ``True``, so they defer in that case.
    """
    return unless_set if _default_deferrable is None else _default_deferrable


def set_default_deferrable(*, value: bool | None) -> None:
    """Set the daemon's setting in this process; ``None`` if it has none."""
    global _default_deferrable  # noqa: PLW0603 - a setting of the process, set before any user code
    _default_deferrable = value
