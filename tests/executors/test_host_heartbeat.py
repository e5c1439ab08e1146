"""The heartbeat of shared hosts: which hosts count as silent for too long, and which do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import pytest

from aioflow.clock import SystemClock
from aioflow.executors.shared_host import HostHeartbeat

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


async def seconds_until_stopped(pulse: HostHeartbeat, ask: Callable[[], None]) -> float:
    began = asyncio.get_running_loop().time()
    await pulse.stopped(ask)
    return asyncio.get_running_loop().time() - began


async def test_silence_for_the_limit_is_noticed():
    asked = []

    seconds = await seconds_until_stopped(
        HostHeartbeat(SystemClock(), 30.0), lambda: asked.append(1)
    )

    assert seconds == pytest.approx(31)
    assert len(asked) == 31


async def test_a_host_that_answers_late_is_not_killed():
    pulse = HostHeartbeat(SystemClock(), 30.0)

    async def answer_late() -> None:
        for _ in range(10):
            await anyio.sleep(29.5)
            pulse.reset()

    async with anyio.create_task_group() as group:
        group.start_soon(answer_late)
        seconds = await seconds_until_stopped(pulse, lambda: None)

    assert seconds >= 10 * 29.5 + 30


async def test_a_short_limit_has_several_beats():
    asked = []

    seconds = await seconds_until_stopped(
        HostHeartbeat(SystemClock(), 0.4), lambda: asked.append(1)
    )

    assert seconds == pytest.approx(0.5)
    assert len(asked) == 5
