"""Tasks that wait straight from their start, and triggers that end them."""

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
"""Whether a task waits before anything of it runs: of its class, its instance, or ``partial``."""

START_KWARGS = "trigger_kwargs"
"""What a mapped task that starts from a trigger expands over."""


@dataclass(kw_only=True)
class StartTriggerArgs:
    """What a task waits for before anything of it runs.

    Attributes:
        trigger_cls: A trigger class, or its path: ``module:Class`` or ``module.Class``.
        trigger_kwargs: Its fields.
        next_method: Where the task resumes with the event; ``None`` if the trigger ends the
            task itself, with ``TaskSuccessEvent`` and the like. Of an operator that takes many
            events in batches it is called at their end, if there is one.
        next_kwargs: Handed to ``next_method``.
        timeout: How long to wait before the try fails.
    """

    trigger_cls: type[Trigger[Any]] | str
    trigger_kwargs: Mapping[str, Any] | None = None
    next_method: str | None = None
    next_kwargs: Mapping[str, Any] | None = None
    timeout: Duration | None = None

    @property
    def class_path(self) -> str:
        """``module:Qualname`` of the trigger."""
        if not isinstance(self.trigger_cls, str):
            return class_path(self.trigger_cls)
        if ":" in self.trigger_cls:
            return self.trigger_cls
        return ":".join(self.trigger_cls.rpartition(".")[::2])


def end_result(payload: object, xcoms: Mapping[str, Any] | None) -> Any:
    """Return what a task ends with: of several XComs the one that is its result, or all."""
    return payload if xcoms is None else xcoms.get("return_value", dict(xcoms))


class EndEvent(TriggerEvent[Any]):
    """Ends the task; nothing of it is resumed.

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
        """What the task ends with: its result, or why it failed."""
        return self.payload


class TaskSuccessEvent(EndEvent):
    """The task has succeeded. Its result is ``xcoms["return_value"]``, or all of ``xcoms``."""

    ends = "success"


class TaskFailedEvent(EndEvent):
    """The try has failed, and is retried as its policy says. The payload says why."""

    ends = "failed"


class TaskSkippedEvent(EndEvent):
    """The task is skipped, and so is what depends on it."""

    ends = "skipped"


def start_spec(owner: Any) -> StartTriggerSpec:
    """Return how a task waits from its start.

    Args:
        owner: Its instance, or its class where it is mapped.

    Raises:
        DagError: If it does not say for what, or that can never have an event.
        Unserializable: If an argument cannot travel.
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
        if inspect.isroutine(value):  # what else cannot travel may yet be made of a reference
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
    """Refuse what is no trigger, or can never have an event; a path is only known where it runs.

    Raises:
        DagError: If it is one.
    """
    if isinstance(trigger_cls, str):
        return
    if not (isinstance(trigger_cls, type) and issubclass(trigger_cls, Trigger)):
        raise DagError(f"the trigger_cls of {name} is no class of triggers, but {trigger_cls!r}")
    wrong = never_yields(trigger_cls)
    if wrong:
        raise DagError(f"the trigger_cls of {name}: {wrong}")
