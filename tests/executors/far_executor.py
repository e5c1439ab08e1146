"""A backend on a simulated remote machine, with a link that cuts and delays data, and breaks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow.executors.backend import (
    ExecutorLease,
    WorkerChannel,
    WorkerDemand,
    WorkerEvents,
    WorkerInfo,
    WorkerNo,
    WorkerSpec,
)
from aioflow.executors.local_executor import LocalExecutor
from aioflow.model.dag import TaskSpec
from aioflow.model.states import Failure

PIECE = 700
PAGE = "http://far:8787/status"


class _FarChannel:
    def __init__(self, far: FarExecutor, worker_no: WorkerNo, near: WorkerChannel) -> None:
        self._far, self._worker_no, self._near = far, worker_no, near

    def send(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            self._far.pass_on(self._worker_no, self._near.send, data[start : start + PIECE])

    def close(self) -> None:
        self._far.pass_on(self._worker_no, self._near.close)


class FarExecutor:
    """Passes everything on through one link per worker. While a link is broken, its traffic waits.

    Attributes:
        muted: Workers whose reports are lost together with their machine.
    """

    name = "far"
    idle_seconds = 0.5

    def __init__(self, near: LocalExecutor, folder: Path, *, patience_seconds: float = 5.0) -> None:
        self.max_workers = near.max_workers
        self.patience_seconds = patience_seconds
        self.demands: list[Sequence[WorkerDemand]] = []
        self.lost: set[WorkerNo] = set()
        self.muted: set[WorkerNo] = set()
        self._near = near
        self._folder = folder
        self._rng = random.Random(7)
        self._waiting: dict[WorkerNo, list[tuple[Any, ...]]] = {}
        self._events: WorkerEvents

    async def run(
        self, lease: ExecutorLease, events: WorkerEvents, *, task_status: TaskStatus[None]
    ) -> None:
        self._events = events
        await self._near.run(lease, self, task_status=task_status)

    def set_demand(self, demands: Sequence[WorkerDemand]) -> None:
        self.demands.append(demands)
        self._near.set_demand(demands)

    def kill(self, worker_no: WorkerNo) -> None:
        self.pass_on(worker_no, self._near.kill, worker_no)

    def retire(self, worker_no: WorkerNo) -> None:
        self.pass_on(worker_no, self._near.retire, worker_no)

    def check(self, task: TaskSpec) -> str:
        return self._near.check(task)

    # ── the link ────────────────────────────────────────────────────────────────────────

    def pass_on(self, worker_no: WorkerNo, call: Any, *arguments: Any) -> None:
        if worker_no in self.lost:
            self._waiting.setdefault(worker_no, []).append((call, *arguments))
        else:
            call(*arguments)

    def lose(self, worker_no: WorkerNo) -> None:
        self.lost.add(worker_no)
        self._events.worker_lost(worker_no, "the link is broken")

    def find_again(self, worker_no: WorkerNo) -> None:
        self.lost.discard(worker_no)
        self._events.worker_lost(worker_no, "")
        for call, *arguments in self._waiting.pop(worker_no, []):
            call(*arguments)

    # ── WorkerEvents, between the two ───────────────────────────────────────────────────

    def next_worker_no(self) -> WorkerNo:
        return self._events.next_worker_no()

    def worker_up(
        self, worker_no: WorkerNo, spec: WorkerSpec, channel: WorkerChannel, info: WorkerInfo
    ) -> None:
        folder = str(self._folder / "far-code")
        far = msgspec.structs.replace(info, code_folder=folder, address="far", url=PAGE)
        self._events.worker_up(worker_no, spec, _FarChannel(self, worker_no, channel), far)

    def frame(self, worker_no: WorkerNo, data: bytes) -> None:
        while data and worker_no not in self.muted:
            size = self._rng.randint(1, PIECE)
            self.pass_on(worker_no, self._events.frame, worker_no, data[:size])
            data = data[size:]

    async def output(self, worker_no: WorkerNo, data: bytes) -> None:
        while worker_no in self.lost:
            await anyio.lowlevel.checkpoint()
        await self._events.output(worker_no, data)

    def worker_lost(self, worker_no: WorkerNo, why: str) -> None:
        self.pass_on(worker_no, self._events.worker_lost, worker_no, why)

    def worker_gone(self, worker_no: WorkerNo, failure: Failure) -> None:
        self.pass_on(worker_no, self._events.worker_gone, worker_no, failure)

    def unavailable(self, spec: WorkerSpec, why: str) -> None:
        self._events.unavailable(spec, why)
