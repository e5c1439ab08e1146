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
    """Fires at an instant; its payload. With ``end_from_trigger`` the task ends with that.

    Raises:
        TypeError: If ``moment`` is no instant.
        ValueError: If it has no zone.
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
        """Say how an equal one is made."""
        kwargs = {"moment": self.moment, "end_from_trigger": self.end_from_trigger}
        return (f"{DateTimeTrigger.__module__}.DateTimeTrigger", kwargs)

    async def run(self) -> AsyncIterator[TriggerEvent[Any]]:
        """Sleep until then."""
        await until(self.moment)
        kind = TaskSuccessEvent if self.end_from_trigger else TriggerEvent
        yield kind(self.moment)


class TimeDeltaTrigger(DateTimeTrigger):
    """Fires when that long has passed since it was made. It is stored as the instant."""

    def __init__(self, delta: timedelta, *, end_from_trigger: bool = False) -> None:
        super().__init__(timezone.utcnow() + delta, end_from_trigger=end_from_trigger)
