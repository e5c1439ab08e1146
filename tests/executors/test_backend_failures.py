"""Backends that raise: tasks show the error, calls are repeated, and the daemon continues."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from aioflow.executors.backend import ExecutorLease
from aioflow.executors.registry import UnusableBackend
from aioflow.executors.remote_executor import LONGEST_DELAY_SECONDS, RemoteExecutors
from aioflow.model.workers import WorkerDemand, WorkerSpec
from aioflow.protocol.effects import SetWorkerDemand
from tests.loop_clock import LoopClock

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

LEASE = ExecutorLease(home_id="home", node_no=1, epoch=1, secret="s")
FAR = WorkerSpec("far")


class Failing(UnusableBackend):
    """Fails its first ``refusals`` requests, and its runs after the seconds in ``lives``."""

    def __init__(self, *, refusals: int = 0, lives: tuple[float, ...] = ()) -> None:
        super().__init__("far", "")
        self.refusals = refusals
        self.began: list[float] = []
        self.demands: list[int] = []
        self._lives = list(lives)

    async def run(self, lease: ExecutorLease, events: Any, *, task_status: Any) -> None:
        task_status.started()
        self.began.append(anyio.current_time())
        if not self._lives:
            await anyio.sleep_forever()
        await anyio.sleep(self._lives.pop(0))
        raise RuntimeError("the engine is gone")

    def set_demand(self, demands: Any) -> None:
        if self.refusals:
            self.refusals -= 1
            raise RuntimeError("half installed")
        self.demands.append(len(demands))


@asynccontextmanager
async def running(backend: Failing):
    reports: list[Any] = []
    context: Any = SimpleNamespace(report=reports.extend, clock=LoopClock())
    executors = RemoteExecutors(context, {"far": backend}, 2)
    async with anyio.create_task_group() as group:
        await group.start(executors.run, LEASE)
        yield executors, reports
        group.cancel_scope.cancel()


async def test_a_backend_that_raises_when_it_is_asked_for_workers_is_asked_again():
    backend = Failing()
    async with running(backend) as (executors, reports):
        backend.refusals = 3
        executors.set_demand(SetWorkerDemand((WorkerDemand(FAR, 2),)))
        (told,) = reports
        assert (told.spec, "executor 'far' has failed" in told.why) == (FAR, True)
        await anyio.sleep(LONGEST_DELAY_SECONDS)
        assert backend.demands[-1] == 1
        assert (reports[-1].spec, reports[-1].why) == (FAR, "")
        count = len(backend.demands)
        await anyio.sleep(LONGEST_DELAY_SECONDS)
        assert len(backend.demands) == count


async def test_a_backend_that_fails_again_and_again_is_started_more_and_more_slowly():
    backend = Failing(lives=(0.0, 0.0, 0.0))
    async with running(backend):
        await anyio.sleep(20)
    delays = [later - one for one, later in zip(backend.began, backend.began[1:], strict=False)]
    assert delays == pytest.approx([1.0, 2.0, 4.0], abs=0.01)


async def test_a_backend_that_has_run_for_long_is_started_again_soon():
    backend = Failing(lives=(*[0.0] * 5, LONGEST_DELAY_SECONDS, 0.0))
    async with running(backend):
        await anyio.sleep(300)
    *_, ended_after, soon = [
        later - one for one, later in zip(backend.began, backend.began[1:], strict=False)
    ]
    assert ended_after == pytest.approx(LONGEST_DELAY_SECONDS + 1.0, abs=0.01)
    assert soon == pytest.approx(2.0, abs=0.01)
