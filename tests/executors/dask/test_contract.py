"""The backend passes the published contract, including fetched code and a stopped machine."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aioflow.executors.backend import ExecutorBackend, WorkerNo, WorkerSpec
from aioflow.executors.dask import agent_link
from aioflow.executors.dask.backend import create
from aioflow.model.dag import TaskSpec
from aioflow.testing.executors import ExecutorContract
from benchmarks.dask_cluster import DaskCluster

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("dask")]


class TestDask(ExecutorContract):
    spec = WorkerSpec("dask")
    impossible = TaskSpec(task_id="t", resources=(("GPU", 9.0),))
    cluster: DaskCluster

    @pytest.fixture(autouse=True)
    def _on(self, cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(agent_link, "BEAT_SECONDS", 0.2)
        monkeypatch.setattr(agent_link, "DIAL_SECONDS", 0.5)
        self.cluster = cluster

    @asynccontextmanager
    async def backend(self, folder: Path) -> AsyncIterator[ExecutorBackend]:
        table: dict[str, object] = {"address": self.cluster.address, "resources": {"GPU": 1}}
        yield create("dask", table)

    async def lose(self, backend: ExecutorBackend, worker_no: WorkerNo) -> bool:
        for process in self.cluster.workers:
            os.kill(process.pid, signal.SIGSTOP)
        return True

    async def find_again(self, backend: ExecutorBackend, worker_no: WorkerNo) -> None:
        for process in self.cluster.workers:
            os.kill(process.pid, signal.SIGCONT)

    @pytest.mark.nightly
    def test_a_retired_worker_ends(self) -> None:
        super().test_a_retired_worker_ends()

    @pytest.mark.nightly
    def test_a_lost_worker_is_found_again_or_gone(self) -> None:
        super().test_a_lost_worker_is_found_again_or_gone()

    @pytest.mark.nightly
    def test_a_slow_daemon_slows_the_program_and_loses_nothing(self) -> None:
        super().test_a_slow_daemon_slows_the_program_and_loses_nothing()
