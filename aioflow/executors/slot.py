"""Slot workers: a bounded number of processes for bodies that compute."""

from __future__ import annotations

import anyio
from anyio.abc import TaskStatus

from aioflow.effects import RecallTries, StartTry, StopTry
from aioflow.executors.wiring import Wiring
from aioflow.executors.worker import Worker
from aioflow.model import RunNo

__all__ = ("SlotExecutor",)


class SlotExecutor:
    """Runs ``def`` bodies in ``slots`` processes, numbered from 0.

    The verbs never block and never fail: what becomes of a try is reported. A worker that
    dies is replaced; a try that had begun in it is reported ``Failed``, a claimed one
    ``Recalled``.
    """

    def __init__(self, wiring: Wiring, slots: int) -> None:
        self._workers = tuple(Worker(number, wiring) for number in range(slots))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep a process for each slot until cancelled; then all are killed."""
        async with anyio.create_task_group() as group:
            for worker in self._workers:
                group.start_soon(worker.run)
            task_status.started()

    def start(self, effect: StartTry) -> None:
        """Run a try in its worker, behind what that holds already."""
        self._workers[effect.worker].start(effect)

    def stop(self, effect: StopTry) -> None:
        """End a try at once. What stands claimed behind it comes back ``Recalled``."""
        self._workers[effect.worker].stop((effect.task_no, effect.start_no))

    def recall(self, effect: RecallTries) -> None:
        """Ask for claimed tries back; those that have begun meanwhile stay."""
        self._workers[effect.worker].recall(effect.tries)

    def forget(self, run_no: RunNo) -> None:
        """A run has ended: its processes may forget it."""
        for worker in self._workers:
            worker.forget(run_no)
