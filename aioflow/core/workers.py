"""Reports about workers of other executors than the local one, and the demand for such workers."""

from __future__ import annotations

from aioflow.core.transaction import Transaction
from aioflow.protocol.effects import RetireWorker, SetWorkerDemand
from aioflow.protocol.inputs import ExecutorUnavailable, WorkerGone, WorkerIdle, WorkerUp

__all__ = (
    "demand_workers",
    "executor_unavailable",
    "worker_gone",
    "worker_idle",
    "worker_up",
)


def worker_up(report: WorkerUp, tx: Transaction) -> None:
    """Grant tries to a worker from now on."""
    tx.slots.remote.add(report.worker, report.spec)


def worker_gone(report: WorkerGone, tx: Transaction) -> None:
    """Grant no more tries to a worker.

    A try that was granted before this report, and sent after the end of the process, is returned by
    the executor. Until then the worker is known, and its try holds its pool slots.
    """
    tx.slots.remote.remove(report.worker)


def worker_idle(report: WorkerIdle, tx: Transaction) -> None:
    """Retire a worker that still has no try, or that is not known any more."""
    worker = tx.slots.remote.find(report.worker)
    if worker is None or worker.is_idle:
        tx.slots.remote.remove(report.worker)
        tx.effects.append(RetireWorker(report.worker))


def executor_unavailable(report: ExecutorUnavailable, tx: Transaction) -> None:
    """Record why tasks wait for workers of a spec, or that they no longer do."""
    if report.why:
        tx.slots.remote.unavailable[report.spec] = report.why[:1_000]
    else:
        tx.slots.remote.unavailable.pop(report.spec, None)


def demand_workers(tx: Transaction) -> None:
    """End the workers that this turn retired, and demand as many as have work, if that changed."""
    tx.effects.extend(RetireWorker(worker.number) for worker in tx.slots.take_retired())
    demands = tx.slots.demand(granting=not tx.memory.is_drained)
    if demands is not None:
        tx.effects.append(SetWorkerDemand(demands))
