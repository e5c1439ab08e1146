"""Slot workers: a bounded number of busy processes, with idle ones beside them."""

from __future__ import annotations

import anyio
from anyio.abc import TaskStatus

from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.heartbeat import FROZEN_SECONDS
from aioflow.executors.processes import Processes
from aioflow.executors.worker import Worker
from aioflow.model.ids import RunNo
from aioflow.processes import memory_limit_bytes
from aioflow.protocol.effects import RecallTries, StartTry, StopTry

__all__ = ("IDLE_SECONDS", "MEMORY_SHARE", "SlotExecutor")

IDLE_SECONDS = 600.0
"""An idle process beyond the number of slots is dismissed after this long without use."""
MEMORY_SHARE = 4
"""Idle processes may together use 1/``MEMORY_SHARE`` of the memory while more than slots."""


class SlotExecutor:
    """Runs ``def`` bodies in ``slots`` slots, numbered from 0.

    The commands never block and never fail: outcomes are reported. A worker that dies is replaced;
    a try that had begun in it is reported ``Failed``, a claimed one ``Recalled``.

    Args:
        idle_seconds: Lifetime of an unused process beyond the number of slots.
        frozen_seconds: How long a busy process may neither answer nor compute.
    """

    def __init__(
        self,
        context: ExecutorContext,
        slots: int,
        *,
        idle_seconds: float = IDLE_SECONDS,
        frozen_seconds: float = FROZEN_SECONDS,
    ) -> None:
        self._processes = Processes(
            context,
            slots,
            idle_seconds=idle_seconds,
            frozen_seconds=frozen_seconds,
            memory_bytes=memory_limit_bytes() / MEMORY_SHARE,
        )
        self._workers = tuple(Worker(n, context, self._processes) for n in range(slots))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep processes for the slots until cancelled; then kill all of them."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._processes.run)
            task_status.started()

    def start_try(self, effect: StartTry) -> None:
        """Run a try in its worker, after those the worker already has."""
        self._workers[effect.worker].start(effect)

    def stop_try(self, effect: StopTry) -> None:
        """End a try at once. The tries claimed behind it are reported ``Recalled``."""
        self._workers[effect.worker].stop((effect.task_no, effect.start_no))

    def recall(self, effect: RecallTries) -> None:
        """Recall claimed tries. Those that have begun meanwhile stay."""
        self._workers[effect.worker].recall(effect.tries)

    def forget(self, run_no: RunNo) -> None:
        """Drop a run that has ended, in all processes."""
        self._processes.forget(run_no)
