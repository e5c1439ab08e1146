"""Local processes pass the published contract of backends, and so does a remote backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from aioflow.executors.backend import ExecutorBackend, WorkerNo, WorkerSpec
from aioflow.executors.local_executor import LocalExecutor
from aioflow.model.dag import TaskSpec
from aioflow.processes import Children
from aioflow.testing.executors import ExecutorContract
from tests.executors.far_executor import FarExecutor

pytestmark = pytest.mark.process


@asynccontextmanager
async def processes(folder: Path) -> AsyncIterator[LocalExecutor]:
    children = Children(folder / "home")
    async with anyio.create_task_group() as group:
        await group.start(children.run)
        yield LocalExecutor(children, max_workers=3)
        group.cancel_scope.cancel()


class TestLocalExecutor(ExecutorContract):
    spec = WorkerSpec("processes")
    impossible = TaskSpec(task_id="t", resources=(("GPU", 1.0),))

    @asynccontextmanager
    async def backend(self, folder: Path) -> AsyncIterator[ExecutorBackend]:
        async with processes(folder) as near:
            yield near


class TestFarExecutor(ExecutorContract):
    spec = WorkerSpec("far")

    @asynccontextmanager
    async def backend(self, folder: Path) -> AsyncIterator[ExecutorBackend]:
        async with processes(folder) as near:
            yield FarExecutor(near, folder)

    async def lose(self, backend: ExecutorBackend, worker_no: WorkerNo) -> bool:
        assert isinstance(backend, FarExecutor)
        backend.lose(worker_no)
        return True

    async def find_again(self, backend: ExecutorBackend, worker_no: WorkerNo) -> None:
        assert isinstance(backend, FarExecutor)
        backend.find_again(worker_no)
