"""``airflow.triggers.base``."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Hashable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

from aioflow.author import start
from aioflow.author.duration import Duration
from aioflow.author.trigger import Trigger, TriggerEvent
from aioflow.model.ids import TriggerNo

__all__ = (
    "BaseEventTrigger",
    "BaseTrigger",
    "StartTriggerArgs",
    "TaskFailedEvent",
    "TaskSkippedEvent",
    "TaskSuccessEvent",
    "TriggerEvent",
)


class BaseTrigger(Trigger[Any]):
    """A trigger with an ``__init__`` and a ``serialize()`` of its own.

    It may set whatever it likes on itself, as it may in Airflow; so ``since`` and ``last`` of
    our own triggers are nothing here.

    Attributes:
        task_instance: ``None``: the daemon's rows are out of reach.
        timeout_after: ``None``: the daemon watches the deadline.
        trigger_id: Its number once it is hosted.
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
        """Writes into the log of the waiting task."""
        return logging.getLogger(f"aioflow.trigger.{type(self).__name__}")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that make an equal one."""
        raise NotImplementedError(f"{type(self).__name__} needs a method serialize()")

    async def cleanup(self) -> None:  # type: ignore[override]
        """Let go of what ``run`` holds."""


class BaseEventTrigger(BaseTrigger):
    """One that may see many events. Each is hosted by itself: no stream is shared.

    Attributes:
        asset_state_store: ``None``: there is none here.
    """

    asset_state_store: Any = None

    def shared_stream_key(self) -> Hashable | None:
        """Return ``None``; where it is not, ``run`` is called all the same."""
        return None

    async def open_shared_stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("aioflow hosts each trigger by its run()")
        yield

    async def filter_shared_stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("aioflow hosts each trigger by its run()")
        yield


class _TaskEndEvent(start.EndEvent):
    """Ends its task. The payload is the state of the task, as in Airflow.

    Attributes:
        task_instance_state: That state.
        xcoms: What it was made with; see ``aioflow.TaskSuccessEvent``.
    """

    def __init__(
        self, result: object = None, /, *, xcoms: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if "payload" in kwargs:
            raise ValueError("Param 'payload' not supported for this class.")
        super().__init__(self.ends, **kwargs)
        vars(self).update(
            task_instance_state=self.ends, xcoms=xcoms, _result=start.end_result(result, xcoms)
        )

    @property
    def result(self) -> Any:
        return vars(self)["_result"]


class TaskSuccessEvent(_TaskEndEvent, start.TaskSuccessEvent):
    """The task has succeeded."""


class TaskFailedEvent(_TaskEndEvent, start.TaskFailedEvent):
    """The try has failed, and is retried as its policy says."""


class TaskSkippedEvent(_TaskEndEvent, start.TaskSkippedEvent):
    """The task is skipped, and so is what depends on it."""


class StartTriggerArgs(start.StartTriggerArgs):
    """As ours, but also by position."""

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
