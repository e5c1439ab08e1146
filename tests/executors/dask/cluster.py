"""A minimal daemon that uses a backend on a Dask cluster of real processes."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec

from aioflow.executors.backend import ExecutorLease, WorkerChannel, WorkerInfo
from aioflow.executors.dask.backend import DaskBackend
from aioflow.executors.dask.options import DaskOptions
from aioflow.model.states import Failure
from aioflow.model.workers import WorkerDemand, WorkerSpec
from aioflow.protocol.commands import Hello
from aioflow.protocol.reports import Report
from aioflow.worker.link import complete_frames, frames
from benchmarks.dask_cluster import DaskCluster
from tests.worker.peer import run_info, start, write_version

_epochs = itertools.count(10)

SPEC = WorkerSpec(executor="dask")
Kind = TypeVar("Kind")
_decoder = msgspec.msgpack.Decoder(list[Report])


def one_task(body: str) -> str:
    """Return a DAG file with one task, ``work``."""
    lines = "\n    ".join(body.strip().splitlines())
    return f"""
import os, signal, subprocess, sys, time
from aioflow import dag, task

@task
def work():
    {lines}

@dag
def pipeline():
    work()

pipeline()
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Worker:
    """A worker as the minimal daemon sees it."""

    def __init__(self, worker_no: int, channel: WorkerChannel, info: WorkerInfo) -> None:
        self.no = worker_no
        self.channel = channel
        self.info = info
        self.reports: list[Any] = []
        self.output = bytearray()
        self.lost = ""
        self.failure: Failure | None = None
        self._received = bytearray()

    def send(self, *commands: object) -> None:
        for frame in frames(commands):
            self.channel.send(bytes(frame))

    def prepare(self, home: Path, body: str) -> None:
        """Send everything that precedes the first try of a task with this body."""
        write_version(home, flow=one_task(body))
        self.send(Hello("slot", str(home / "code"), str(home / "results")), run_info())

    def start(self, start_no: int = 1) -> None:
        self.send(start(0, start_no=start_no))

    def receive(self, data: bytes) -> None:
        self._received += data
        for frame in complete_frames(self._received):
            self.reports += _decoder.decode(frame)

    def found(self, kind: type[Kind]) -> list[Kind]:
        return [report for report in self.reports if isinstance(report, kind)]


class Events:
    """Records the reports of a backend. ``until`` waits for a condition on them."""

    PATIENCE = 120.0
    """How many seconds to wait. On a busy machine, a Dask worker takes half a minute to start."""

    def __init__(self, first: int = 0) -> None:
        self.workers: dict[int, Worker] = {}
        self.reasons: dict[WorkerSpec, str] = {}
        self.told: list[str] = []
        self.consumes = True
        self._next = first
        self._changed = anyio.Event()

    def next_worker_no(self) -> int:
        self._next += 1
        return self._next

    def worker_up(
        self, worker_no: int, spec: WorkerSpec, channel: WorkerChannel, info: WorkerInfo
    ) -> None:
        assert worker_no not in self.workers
        self.workers[worker_no] = Worker(worker_no, channel, info)
        self._change()

    def frame(self, worker_no: int, data: bytes) -> None:
        self.workers[worker_no].receive(data)
        self._change()

    async def output(self, worker_no: int, data: bytes) -> None:
        while not self.consumes:
            await self.until(lambda: self.consumes)
        assert self.workers[worker_no].failure is None
        self.workers[worker_no].output += data
        self._change()

    def worker_lost(self, worker_no: int, why: str) -> None:
        self.workers[worker_no].lost = why
        self._change()

    def worker_gone(self, worker_no: int, failure: Failure) -> None:
        assert self.workers[worker_no].failure is None
        self.workers[worker_no].failure = failure
        self._change()

    def unavailable(self, spec: WorkerSpec, why: str) -> None:
        self.reasons[spec] = why
        self.told.append(why)
        self._change()

    def resume(self) -> None:
        """Consume output from now on."""
        self.consumes = True
        self._change()

    def _change(self) -> None:
        event, self._changed = self._changed, anyio.Event()
        event.set()

    async def until(self, found: Callable[[], Kind]) -> Kind:
        with anyio.fail_after(self.PATIENCE):
            while not (result := found()):
                await self._changed.wait()
            return result

    async def up(self, count: int = 1) -> list[Worker]:
        """Wait until this many workers are up and have not ended."""

        def found() -> list[Worker]:
            alive = [worker for worker in self.workers.values() if worker.failure is None]
            return alive if len(alive) >= count else []

        return await self.until(found)


@asynccontextmanager
async def running(
    cluster: DaskCluster, *, epoch: int = 0, events: Events | None = None, **options: Any
) -> AsyncIterator[tuple[DaskBackend, Events]]:
    """Run a backend, by default as the newest daemon of its node."""
    epoch = epoch or next(_epochs)
    patience_seconds = options.pop("patience_seconds", None)
    backend = DaskBackend("dask", DaskOptions(address=cluster.address, shared_home=True, **options))
    backend.patience_seconds = patience_seconds or backend.patience_seconds
    lease = ExecutorLease(home_id="h0me", node_no=0, epoch=epoch, secret=f"secret {epoch}")
    events = events or Events()
    async with anyio.create_task_group() as group:
        await group.start(backend.run, lease, events)
        yield backend, events
        group.cancel_scope.cancel()


def demand(count: int, spec: WorkerSpec = SPEC) -> list[WorkerDemand]:
    return [WorkerDemand(spec, count)] if count else []
