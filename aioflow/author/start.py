"""Tasks that start deferred, and events with which a trigger ends a task."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aioflow.author import codec
from aioflow.author.batch_operators import HANDLER
from aioflow.author.duration import Duration, microseconds
from aioflow.author.trigger import (
    FIELDS_LIMIT,
    Trigger,
    TriggerEvent,
    class_path,
    never_yields,
)
from aioflow.errors import DagError
from aioflow.model.dag import StartTriggerSpec

__all__ = (
    "START",
    "START_KWARGS",
    "EndEvent",
    "StartTriggerArgs",
    "TaskFailedEvent",
    "TaskSkippedEvent",
    "TaskSuccessEvent",
    "end_result",
    "start_spec",
)

START = "start_from_trigger"
"""Whether a task starts deferred; set on the class or the instance, or given to ``partial``."""

START_KWARGS = "trigger_kwargs"
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
    """Return the result of a task: ``return_value`` among its XComs if there, else all of them."""
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
        """The result of the task, or the reason of its failure."""
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
        owner: Its instance, or its class if it is mapped.

    Raises:
        DagError: If it has no ``start_trigger_args``, or they are invalid.
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
    if getattr(owner, "many_events", False) and not method and not hasattr(owner, HANDLER):
        raise DagError(f"{name} has many_events = True, so it needs a next_method that takes each")
    for field, value in (said.trigger_kwargs or {}).items():
        if inspect.isroutine(value):  # other unserializable values may come from a reference
            codec.encode(value, f"{field!r} in trigger_kwargs of {name}", FIELDS_LIMIT)
    _check_class(said.trigger_cls, name)
    more = None
    if said.next_kwargs:
        more = codec.encode(dict(said.next_kwargs), f"next_kwargs of {name}", FIELDS_LIMIT)
    return StartTriggerSpec(
        class_path=said.class_path,
        next_method=method,
        next_kwargs=more,
        timeout_us=None if said.timeout is None else microseconds(said.timeout, "timeout"),
    )


def _check_class(trigger_cls: object, name: str) -> None:
    """Check the class of a trigger. A path cannot be checked here, only where it is imported.

    Raises:
        DagError: If it is no trigger class, or its triggers can never yield an event.
    """
    if isinstance(trigger_cls, str):
        return
    if not (isinstance(trigger_cls, type) and issubclass(trigger_cls, Trigger)):
        raise DagError(f"the trigger_cls of {name} is no class of triggers, but {trigger_cls!r}")
    wrong = never_yields(trigger_cls)
    if wrong:
        raise DagError(f"the trigger_cls of {name}: {wrong}")
