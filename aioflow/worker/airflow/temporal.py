"""``airflow.triggers.temporal``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

from aioflow.author.timetables import until
from aioflow.worker.airflow import timezone
from aioflow.worker.airflow.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

__all__ = ("DateTimeTrigger", "TimeDeltaTrigger")


class DateTimeTrigger(BaseTrigger):
    """Fires at ``moment``, which is its payload. With ``end_from_trigger`` it also ends the task.

    Raises:
        TypeError: If ``moment`` is not a ``datetime``.
        ValueError: If it has no time zone.
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
        await until(self.moment)
        kind = TaskSuccessEvent if self.end_from_trigger else TriggerEvent
        yield kind(self.moment)


class TimeDeltaTrigger(DateTimeTrigger):
    """Fires after a delay from its creation. It is stored as the resulting timestamp."""

    def __init__(self, delta: timedelta, *, end_from_trigger: bool = False) -> None:
        super().__init__(timezone.utcnow() + delta, end_from_trigger=end_from_trigger)
