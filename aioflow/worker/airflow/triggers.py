"""``airflow.triggers.base`` and ``airflow.triggers.temporal``: base classes and two triggers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Hashable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from aioflow.author import deferral
from aioflow.author.duration import Duration
from aioflow.author.schedule import sleep_until
from aioflow.author.trigger import Trigger, TriggerEvent
from aioflow.model.ids import TriggerNo
from aioflow.worker.airflow import timezone

__all__ = (
    "BaseEventTrigger",
    "BaseTrigger",
    "DateTimeTrigger",
    "StartTriggerArgs",
    "TaskFailedEvent",
    "TaskSkippedEvent",
    "TaskSuccessEvent",
    "TimeDeltaTrigger",
    "TriggerEvent",
)


class BaseTrigger(Trigger[Any]):
    """A trigger with its own ``__init__`` and ``serialize()``.

    As in Airflow, a subclass may set any attribute on itself. Therefore the attributes ``since``
    and ``last`` of aioflow's triggers are disabled.

    Attributes:
        task_instance: ``None``, because the daemon's rows are not accessible.
        timeout_after: ``None``, because the daemon enforces the timeout.
        trigger_id: The number of the trigger; ``None`` until it runs in the triggerer.
    """

    task_instance: Any = None
    timeout_after: datetime | None = None
    since = None  # type: ignore[assignment]
    last = None

    def __init__(self, **kwargs: Any) -> None:
        self.trigger_id = None

    @property
    def trigger_id(self) -> TriggerNo | None:
        own: TriggerNo | None = self.__dict__.get("trigger_id")
        return own if own is not None else self.__dict__.get("_hosted_number")

    @trigger_id.setter
    def trigger_id(self, number: TriggerNo | None) -> None:
        self.__dict__["trigger_id"] = number

    @cached_property
    def log(self) -> logging.Logger:
        """The logger that writes to the log of the deferred task."""
        return logging.getLogger(f"aioflow.trigger.{type(self).__name__}")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that create an equal trigger."""
        raise NotImplementedError(f"{type(self).__name__} needs a method serialize()")

    async def cleanup(self) -> None:  # type: ignore[override]
        """Release the resources of ``run``."""


class BaseEventTrigger(BaseTrigger):
    """A trigger for events. Each instance runs by itself, without a shared stream.

    Attributes:
        asset_state_store: ``None``, because aioflow has no such store.
    """

    asset_state_store: Any = None

    def shared_stream_key(self) -> Hashable | None:
        """Return ``None``. An override has no effect: ``run`` is always called."""
        return None

    async def open_shared_stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("aioflow hosts each trigger by its run()")
        yield

    async def filter_shared_stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("aioflow hosts each trigger by its run()")
        yield


class _TaskEndEvent(deferral.EndEvent):
    """An event that ends its task. The payload is the state of the task, as in Airflow.

    Attributes:
        task_instance_state: The state of the task.
        xcoms: The ``xcoms`` argument; see ``aioflow.TaskSuccessEvent``.
    """

    def __init__(
        self, result: object = None, /, *, xcoms: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if "payload" in kwargs:
            raise ValueError("Param 'payload' not supported for this class.")
        super().__init__(self.ends, **kwargs)
        vars(self).update(
            task_instance_state=self.ends, xcoms=xcoms, _result=deferral.end_result(result, xcoms)
        )

    @property
    def result(self) -> Any:
        return vars(self)["_result"]


class TaskSuccessEvent(_TaskEndEvent, deferral.TaskSuccessEvent):
    """Marks the task as successful."""


class TaskFailedEvent(_TaskEndEvent, deferral.TaskFailedEvent):
    """Fails the try, which is retried according to its policy."""


class TaskSkippedEvent(_TaskEndEvent, deferral.TaskSkippedEvent):
    """Skips the task, and so the tasks that depend on it."""


class StartTriggerArgs(deferral.StartTriggerArgs):
    """Like aioflow's class, but also accepts positional arguments."""

    def __init__(
        self,
        trigger_cls: type[Trigger[Any]] | str,
        next_method: str | None = None,
        trigger_kwargs: Mapping[str, Any] | None = None,
        next_kwargs: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
    ) -> None:
        super().__init__(
            trigger_cls=trigger_cls,
            trigger_kwargs=trigger_kwargs,
            next_method=next_method,
            next_kwargs=next_kwargs,
            timeout=timeout,
        )


class DateTimeTrigger(BaseTrigger):
    """Fires at ``moment``, which is its payload. With ``end_from_trigger`` it also ends the task.

    Raises:
        TypeError: If ``moment`` is not a ``datetime``.
        ValueError: If ``moment`` has no time zone.
    """

    def __init__(self, moment: datetime, *, end_from_trigger: bool = False) -> None:
        super().__init__()
        if not isinstance(moment, datetime):
            raise TypeError(f"Expected datetime.datetime type for moment. Got {type(moment)}")
        if timezone.is_naive(moment):
            raise ValueError("You cannot pass naive datetimes")
        self.moment = moment.astimezone(timezone.utc)
        self.end_from_trigger = end_from_trigger

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that create an equal trigger."""
        kwargs = {"moment": self.moment, "end_from_trigger": self.end_from_trigger}
        return (f"{DateTimeTrigger.__module__}.DateTimeTrigger", kwargs)

    async def run(self) -> AsyncIterator[TriggerEvent[Any]]:
        """Sleep until ``moment``."""
        await sleep_until(self.moment)
        kind = TaskSuccessEvent if self.end_from_trigger else TriggerEvent
        yield kind(self.moment)


class TimeDeltaTrigger(DateTimeTrigger):
    """Fires after a delay from its creation. It is stored as the resulting timestamp."""

    def __init__(self, delta: timedelta, *, end_from_trigger: bool = False) -> None:
        super().__init__(timezone.utcnow() + delta, end_from_trigger=end_from_trigger)
