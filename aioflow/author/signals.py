"""What a task raises to say how it goes on. Flow control, not errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aioflow.author.duration import Duration, microseconds
from aioflow.author.trigger import Trigger

__all__ = (
    "Fail",
    "NotReady",
    "PokeReturnValue",
    "RetryAfter",
    "Skip",
    "TaskDeferred",
    "sensor_saw",
)

T_co = TypeVar("T_co", covariant=True)


class TaskDeferred(BaseException):
    """The task waits for a trigger; it resumes in a method of a new instance.

    No ``Exception``, so that a broad ``except`` in a task does not swallow the wait.

    Attributes:
        method_name: Called with ``context``, ``event`` and ``kwargs``; of an operator that takes
            its events in batches when there are no more, and ``None`` to call nothing then. Of
            any other ``None`` means that the trigger ends the task.
        timeout_us: How long it may wait; ``None`` for no limit.
        on_timeout: Called instead of failing then; ``None`` to fail.
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
    """A sensor found nothing yet.

    Attributes:
        recheck_in_us: When to look again instead of after the sensor's interval.
    """

    def __init__(self, recheck_in: Duration | None = None) -> None:
        super().__init__("not ready yet")
        self.recheck_in_us = None if recheck_in is None else microseconds(recheck_in, "recheck_in")


class Skip(Exception):
    """The task ends as skipped, and so does what depends on it."""


class Fail(Exception):
    """The task fails now, whatever tries are left."""


class RetryAfter(Exception):
    """The try failed; the next one, if one is left, begins after this delay.

    Attributes:
        delay_us: Instead of the delay of the task's retry policy.
    """

    def __init__(self, delay: Duration, message: str = "") -> None:
        super().__init__(message or f"asked to be tried again after {delay}")
        self.delay_us = microseconds(delay, "delay")


@dataclass(frozen=True)
class PokeReturnValue(Generic[T_co]):
    """What a sensor saw. ``xcom_value`` is its result once ``is_done``."""

    is_done: bool
    xcom_value: T_co | None = None

    def __bool__(self) -> bool:
        return self.is_done


def sensor_saw(value: object) -> tuple[bool, Any]:
    """Return whether a check was the last one, and the sensor's result if it was."""
    if isinstance(value, PokeReturnValue):
        return bool(value.is_done), value.xcom_value
    return bool(value), None
