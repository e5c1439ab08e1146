"""Exceptions with which a task controls what happens next. Flow control, not errors."""

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
    """Defers the task until a trigger fires; it resumes in a method of a new instance.

    Not an ``Exception``, so that a broad ``except`` in a task does not swallow it.

    Attributes:
        method_name: Called with ``context``, ``event`` and ``kwargs``. ``None`` means that the
            trigger ends the task. An operator that handles its events in batches calls the
            method after the last event; ``None`` calls nothing then.
        timeout_us: How long to wait; ``None`` for no limit.
        on_timeout: Called after the timeout instead of failing; ``None`` to fail.
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
        recheck_in_us: When to check again, instead of after the sensor's interval.
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


def sensor_saw(value: object) -> tuple[bool, Any]:
    """Return whether the condition is met, and the sensor's result if it is."""
    if isinstance(value, PokeReturnValue):
        return bool(value.is_done), value.xcom_value
    return bool(value), None
