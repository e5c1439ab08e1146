"""Workers on this machine behind the interface of backends, each a child process of the daemon.

The daemon does not use this backend for its local slots, because several processes share one local
slot, see ``worker_pool``. It is the reference for authors of backends, and they test against it.
"""

from __future__ import annotations

import logging
import platform
import socket
from collections.abc import Sequence

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from aioflow.clock import Clock, SystemClock
from aioflow.executors.backend import (
    ExecutorLease,
    WorkerDemand,
    WorkerEvents,
    WorkerInfo,
    WorkerNo,
    WorkerSpec,
)
from aioflow.executors.worker_process import NO_PROCESS
from aioflow.model.dag import TaskSpec
from aioflow.processes import Child, Children, NoHeadroom
from aioflow.protocol.commands import Command
from aioflow.protocol.reports import Report
from aioflow.worker.link import complete_frames, frames

__all__ = ("LocalExecutor",)

AGAIN_SECONDS = 1.0
"""Delay before a retry after a process could not be started."""

_logger = logging.getLogger(__name__)


class _Channel:
    """Passes frames on to a child."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._buffer = bytearray()
        self._decoder = msgspec.msgpack.Decoder(list[Command])

    def send(self, data: bytes) -> None:
        """See ``WorkerChannel``."""
        self._buffer += data
        for frame in complete_frames(self._buffer):
            self._child.send(self._decoder.decode(frame))

    def close(self) -> None:
        """See ``WorkerChannel``."""
        self._child.dismiss()


class LocalExecutor:
    """Starts as many processes as are demanded. See ``backend.ExecutorBackend``.

    Args:
        children: Starts the processes. Its ``run`` must be running. When it starts, it ends the
            processes of earlier daemons.
        max_workers: Maximum number of processes at the same time.
        idle_seconds: How long a process without work is retained.
    """

    patience_seconds = 0.0

    def __init__(
        self,
        children: Children,
        *,
        name: str = "processes",
        max_workers: int = 1,
        idle_seconds: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.max_workers = max_workers
        self.idle_seconds = idle_seconds
        self._children = children
        self._clock = clock or SystemClock()
        self._events: WorkerEvents | None = None
        self._group: TaskGroup | None = None
        self._demands: Sequence[WorkerDemand] = ()
        self._specs: dict[WorkerNo, WorkerSpec] = {}
        self._up: dict[WorkerNo, Child] = {}
        self._retired: set[WorkerNo] = set()
        self._is_held_up = False

    async def run(
        self,
        lease: ExecutorLease,
        events: WorkerEvents,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """See ``ExecutorBackend``."""
        self._events = events
        try:
            async with anyio.create_task_group() as self._group:
                task_status.started()
                self._fill()
                await anyio.sleep_forever()
        finally:
            self._group = None
            for gone in (self._specs, self._up, self._retired):  # ``run`` may be called again
                gone.clear()

    def set_demand(self, demands: Sequence[WorkerDemand]) -> None:
        """See ``ExecutorBackend``."""
        self._demands = sorted(demands, key=lambda demand: -demand.priority)
        self._fill()

    def kill(self, worker_no: WorkerNo) -> None:
        """See ``ExecutorBackend``."""
        if worker_no in self._up:
            self._up[worker_no].kill()

    def retire(self, worker_no: WorkerNo) -> None:
        """See ``ExecutorBackend``."""
        if worker_no in self._up:
            self._retired.add(worker_no)
            self._up[worker_no].dismiss()

    def check(self, task: TaskSpec) -> str:
        """See ``ExecutorBackend``."""
        return f"executor {self.name!r} offers no resources" if task.resources else ""

    def _fill(self) -> None:
        """Start the missing processes."""
        if self._group is None or self._events is None or self._is_held_up:
            return
        for demand in self._demands:
            there = [
                number
                for number, spec in self._specs.items()
                if spec == demand.spec and number not in self._retired
            ]
            missing = min(demand.count - len(there), self.max_workers - len(self._specs))
            for _ in range(missing):
                number = self._events.next_worker_no()
                self._specs[number] = demand.spec
                self._group.start_soon(self._serve, number, demand.spec, self._events)

    async def _serve(self, number: WorkerNo, spec: WorkerSpec, events: WorkerEvents) -> None:
        """Run one process until it is dead."""
        failure, why = NO_PROCESS, ""

        def on_reports(reports: list[Report]) -> None:
            events.frame(number, b"".join(frames(reports)))

        async def on_output(data: bytes) -> None:
            await events.output(number, data)

        try:
            async with self._children.child(
                "slot", on_reports=on_reports, on_output=on_output
            ) as child:
                self._up[number] = child
                events.worker_up(number, spec, _Channel(child), self._info(child))
                failure = await child.ended()
        except* NoHeadroom:
            why = "this machine has no memory for another process now"
        except* OSError as exc:
            why = f"no process can be started: {exc.exceptions[0]}"
        del self._specs[number]
        self._retired.discard(number)
        if self._up.pop(number, None) is not None:
            events.worker_gone(number, failure)
        if not why:
            self._fill()
        elif not self._is_held_up:
            self._is_held_up = True
            events.unavailable(spec, why)
            await self._clock.sleep(AGAIN_SECONDS)
            self._is_held_up = False
            self._fill()

    def _info(self, child: Child) -> WorkerInfo:
        return WorkerInfo(
            host=socket.gethostname(),
            pid=child.pid,
            python=platform.python_version(),
            started_at=self._clock.now(),
            log_nonce=child.log_nonce,
        )
