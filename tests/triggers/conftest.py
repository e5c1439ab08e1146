"""What tests of the catalogue share: a clock on the wall that follows the loop's."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aioflow import Trigger
from aioflow.author.trigger import prepare

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def hosted():
    """Return a function that makes a trigger believe it is hosted, since ``NOON``."""

    def hosted(trigger: Trigger[Any], since: datetime = NOON) -> Trigger[Any]:
        return prepare(trigger, since=since)

    return hosted


@pytest.fixture
def wall_clock(monkeypatch):
    """Set the wall clock of time triggers: ``NOON`` now, and going with the loop's clock.

    Returns a list of corrections: adding to it sets the clock.
    """
    corrections: list[timedelta] = []
    began: list[float] = []

    def now() -> datetime:
        time = asyncio.get_running_loop().time()
        began.append(time)
        return NOON + timedelta(seconds=time - began[0]) + sum(corrections, timedelta())

    monkeypatch.setattr("aioflow_triggers.temporal._now", now)
    return corrections
