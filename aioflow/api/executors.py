"""The executors of a node: their workers, the tries in them, and the demand for workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from aioflow.api.schemas import iso
from aioflow.core.scheduling.slots import Slots
from aioflow.core.scheduling.worker import NOWHERE, Worker
from aioflow.core.state.task_instance import TaskInstance
from aioflow.model.workers import LOCAL, WorkerDemand, WorkerLocation

__all__ = ("DemandView", "ExecutorView", "RunningView", "WorkerView", "executor_views")

_SHOWN_WORKERS = 1_000


class RunningView(msgspec.Struct, frozen=True, kw_only=True):
    """The try that is running in a worker."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    started_at: str | None


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of an executor.

    Attributes:
        worker_no: Its number, unique until the daemon is restarted.
        state: ``busy``, ``idle``, ``lost`` while it cannot be reached, or ``ending``.
        host, worker, worker_url: As in a try; ``None`` for ``local``.
        resources: Resources that the worker holds while it is up.
        tries: Number of its tries: the running one, and those that wait for it to end.
        running: The running try.
    """

    worker_no: int
    state: str
    host: str | None
    worker: str | None
    worker_url: str | None
    resources: dict[str, float]
    tries: int
    running: RunningView | None


class DemandView(msgspec.Struct, frozen=True, kw_only=True):
    """The demand for workers with the same resources and interpreter.

    Attributes:
        interpreter: Name of the interpreter; ``None`` for the daemon's own.
        priority: The highest priority of the waiting tasks.
        since: When the task that has waited longest began to wait; ``None`` if all have a worker.
        unavailable: Why no such worker is available now.
    """

    resources: dict[str, float]
    interpreter: str | None
    count: int
    priority: int
    since: str | None
    unavailable: str | None


class ExecutorView(msgspec.Struct, frozen=True, kw_only=True):
    """An executor.

    Attributes:
        name: ``local``, or the name of its table in the settings.
        url: The URL of its own page, such as the dashboard of Dask.
        max_workers: The maximum number of workers at a time.
        up, busy, lost: Number of workers that are up, that have tries, and that cannot be reached.
        wanted: Number of workers that have work, or would have work if they were up.
        hosts: Number of machines with workers of this executor.
        tries: Number of tries in its workers, both running and waiting.
        unavailable: Why the executor cannot provide workers now.
        demand: The parts of ``wanted``; empty for ``local``.
        workers: Its workers, at most 1,000.
    """

    name: str
    url: str | None
    max_workers: int
    up: int
    busy: int
    lost: int
    wanted: int
    hosts: int
    tries: int
    unavailable: list[str]
    demand: list[DemandView]
    workers: list[WorkerView]


def executor_views(
    slots: Slots, pages: Mapping[tuple[str, WorkerLocation], str]
) -> list[ExecutorView]:
    """Return all executors, the local one first.

    Args:
        pages: URLs of pages by executor and worker location. The page of an executor itself has no
            location.
    """
    remote = slots.remote
    of_executor: dict[str, list[Worker]] = {name: [] for name in remote.limits}
    wanted: dict[str, list[WorkerDemand]] = {}
    for demand in remote.demanded:
        wanted.setdefault(demand.spec.executor, []).append(demand)
    for worker in remote:
        of_executor.setdefault(worker.spec.executor, []).append(worker)
    return [
        _local(slots, pages),
        *(
            _remote(name, slots, of_executor.get(name, []), wanted.get(name, []), pages)
            for name in sorted(of_executor.keys() | wanted.keys())
        ),
    ]


def _remote(
    name: str,
    slots: Slots,
    workers: list[Worker],
    wanted: list[WorkerDemand],
    pages: Mapping[tuple[str, WorkerLocation], str],
) -> ExecutorView:
    unavailable = {
        spec: why for spec, why in slots.remote.unavailable.items() if spec.executor == name
    }
    return ExecutorView(
        name=name,
        url=pages.get((name, NOWHERE)),
        max_workers=slots.remote.limit(name),
        up=len(workers),
        busy=_count_busy(workers),
        lost=sum(worker.is_lost for worker in workers),
        wanted=sum(one.count for one in wanted),
        hosts=len({worker.location.host for worker in workers if worker.location.host}),
        tries=_count_tries(workers),
        unavailable=sorted(set(unavailable.values())),
        demand=[
            DemandView(
                resources=dict(one.spec.resources),
                interpreter=one.spec.interpreter or None,
                count=one.count,
                priority=one.priority,
                since=iso(one.oldest_since),
                unavailable=unavailable.get(one.spec),
            )
            for one in wanted
        ],
        workers=[_worker(one, pages) for one in workers[:_SHOWN_WORKERS]],
    )


def _local(slots: Slots, pages: Mapping[tuple[str, WorkerLocation], str]) -> ExecutorView:
    busy = _count_busy(slots.workers)
    return ExecutorView(
        name=LOCAL,
        url=None,
        max_workers=len(slots.workers),
        up=len(slots.workers),
        busy=busy,
        lost=0,
        wanted=busy,
        hosts=1,
        tries=_count_tries(slots.workers),
        unavailable=[],
        demand=[],
        workers=[_worker(one, pages) for one in slots.workers[:_SHOWN_WORKERS]],
    )


def _count_busy(workers: Iterable[Worker]) -> int:
    return sum(not worker.is_idle for worker in workers)


def _count_tries(workers: Iterable[Worker]) -> int:
    return sum(map(_tries, workers))


def _tries(worker: Worker) -> int:
    return len(worker.claims) + (worker.current is not None)


def _worker(worker: Worker, pages: Mapping[tuple[str, WorkerLocation], str]) -> WorkerView:
    location = worker.location
    is_known = location != NOWHERE
    return WorkerView(
        worker_no=worker.number,
        state=_state(worker),
        host=location.host or None,
        worker=location.worker or None,
        worker_url=pages.get((worker.spec.executor, location)) if is_known else None,
        resources=dict(worker.spec.resources),
        tries=_tries(worker),
        running=None if worker.current is None else _running(worker.current),
    )


def _running(task: TaskInstance) -> RunningView:
    row = task.run.row
    return RunningView(
        dag_id=row.dag_id,
        run_id=row.run_id,
        task_id=task.spec.task_id,
        map_index=task.map_index,
        try_number=task.try_number,
        started_at=iso(task.started_at),
    )


def _state(worker: Worker) -> str:
    if worker.is_lost:
        return "lost"
    if worker.is_leaving:
        return "ending"
    return "idle" if worker.is_idle else "busy"
