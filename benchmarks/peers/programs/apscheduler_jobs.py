"""The jobs for APScheduler."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import serving

late_ms: list[float] = []
scheduler: Any = None


async def noop(number: int) -> None:
    return None


def noop_def(number: int) -> None:
    return None


async def hop(left: int) -> None:
    if left > 1:
        await scheduler.add_job(hop, args=[left - 1])


async def due(instant: float) -> None:
    late_ms.append((time.time() - instant) * 1000)


async def in_flight(number: int, ledger: str) -> None:
    serving.mark(ledger, f"start {number}")
    await asyncio.sleep(serving.task_seconds(number))
    serving.mark(ledger, f"end {number}")
