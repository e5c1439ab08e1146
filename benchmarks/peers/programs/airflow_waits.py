"""The trigger and the operators that wait. All services can import this module."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import serving
from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent


class AtInstant(BaseTrigger):
    """Fires at a given time, after one precise sleep."""

    def __init__(self, moment: float) -> None:
        super().__init__()
        self.moment = moment

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_waits.AtInstant", {"moment": self.moment}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(max(0.0, self.moment - time.time()))
        yield TriggerEvent(None)


class Late(BaseOperator):
    """Waits until a time; notes how many milliseconds after it the next line runs."""

    def __init__(self, *, due: float, file: str, **options: Any) -> None:
        super().__init__(**options)
        self.due = due
        self.file = file

    def execute(self, context: Any) -> None:
        self.defer(trigger=AtInstant(self.due), method_name="resumed")

    def resumed(self, context: Any, event: Any = None) -> None:
        serving.mark(self.file, str((time.time() - self.due) * 1000))
