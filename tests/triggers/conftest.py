"""Fixtures of the catalogue's tests, such as a wall clock that follows the loop's time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aioflow import Trigger, TriggerEvent
from aioflow.author.trigger import prepare

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def stream(
    trigger: Trigger[Any], since: datetime = NOON, last: TriggerEvent[Any] | None = None
) -> Any:
    """Return the events of a trigger as if it were hosted. Close them with ``async with``."""
    return aclosing(as_hosted(trigger, since, last).run())


def as_hosted(
    trigger: Trigger[Any], since: datetime = NOON, last: TriggerEvent[Any] | None = None
) -> Any:
    """Return a trigger that believes it is hosted, at the time ``NOON``."""
    try:
        noon = asyncio.get_running_loop().time()
    except RuntimeError:
        noon = 0.0  # nothing waits
    since_us = round((noon - (NOON - since).total_seconds()) * 1e6)
    return prepare(trigger, since=since, since_us=since_us, last=last)


@pytest.fixture
def hosted():
    """Return a function that makes a trigger believe it has been hosted since ``NOON``."""

    return as_hosted


@pytest.fixture
def wall_clock(monkeypatch):
    """Let the wall clock of time triggers begin at ``NOON`` and follow the loop's clock.

    Returns a list of corrections. Adding a correction steps the clock.
    """
    corrections: list[timedelta] = []
    began: list[float] = []

    def now() -> datetime:
        time = asyncio.get_running_loop().time()
        began.append(time)
        return NOON + timedelta(seconds=time - began[0]) + sum(corrections, timedelta())

    monkeypatch.setattr("aioflow_triggers.temporal._now", now)
    return corrections


@pytest.fixture
def pauses(monkeypatch):
    """Let web triggers return from sleeps at once. Return the seconds they would have slept."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("aioflow_triggers.http._sleep", pause)
    monkeypatch.setattr("aioflow_triggers.pages._sleep", pause)
    monkeypatch.setattr("aioflow_triggers.http._now", lambda: NOON)
    return pauses
