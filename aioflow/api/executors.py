"""The executors of a node: their workers, how many have work, and why there are no more."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aioflow.core.scheduling.slots import Slots
from aioflow.core.scheduling.worker import Worker
from aioflow.model.workers import LOCAL, WorkerLocation

__all__ = ("ExecutorView", "WorkerView", "executor_views")

_SHOWN_WORKERS = 1_000


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of an executor.

    Attributes:
        worker_no: Its number in the life of the daemon.
        state: ``busy``, ``idle``, ``lost`` while it cannot be reached, or ``ending``.
        host, worker, worker_url: As of a try.
        tries: Number of its tries, including those that wait for the one that runs.
    """

    worker_no: int
    state: str
    host: str | None
    worker: str | None
    worker_url: str | None
    tries: int


class ExecutorView(msgspec.Struct, frozen=True, kw_only=True):
    """An executor.

    Attributes:
        name: ``local``, or the name of its table in the settings.
        max_workers: The most workers at a time.
        up, busy, lost: Number of workers that are up, that have tries, and that cannot be reached.
        wanted: Number of workers that have work, or would have.
        unavailable: What the executor says about workers that cannot be had now.
        workers: At most 1,000 of them; empty for ``local``.
    """

    name: str
    max_workers: int
    up: int
    busy: int
    lost: int
    wanted: int
    unavailable: list[str]
    workers: list[WorkerView]


def executor_views(
    slots: Slots, pages: Mapping[tuple[str, WorkerLocation], str]
) -> list[ExecutorView]:
    """Return all executors, the local one first.

    Args:
        pages: Addresses of pages about workers.
    """
    remote = slots.remote
    wanted = remote.demanded
    named = {demand.spec.executor for demand in wanted}
    names = sorted({*remote.limits, *named, *(worker.spec.executor for worker in remote)})
    views = [_local(slots)]
    for name in names:
        workers = [worker for worker in remote if worker.spec.executor == name]
        views.append(
            ExecutorView(
                name=name,
                max_workers=remote.limit(name),
                up=len(workers),
                busy=sum(not worker.is_idle for worker in workers),
                lost=sum(worker.is_lost for worker in workers),
                wanted=sum(one.count for one in wanted if one.spec.executor == name),
                unavailable=sorted(
                    {why for spec, why in remote.unavailable.items() if spec.executor == name}
                ),
                workers=[_worker(one, pages) for one in workers[:_SHOWN_WORKERS]],
            )
        )
    return views


def _local(slots: Slots) -> ExecutorView:
    busy = sum(not worker.is_idle for worker in slots.workers)
    return ExecutorView(
        name=LOCAL,
        max_workers=len(slots.workers),
        up=len(slots.workers),
        busy=busy,
        lost=0,
        wanted=busy,
        unavailable=[],
        workers=[],
    )


def _worker(worker: Worker, pages: Mapping[tuple[str, WorkerLocation], str]) -> WorkerView:
    location = worker.location
    return WorkerView(
        worker_no=worker.number,
        state=_state(worker),
        host=location.host or None,
        worker=location.worker or None,
        worker_url=pages.get((worker.spec.executor, location)),
        tries=len(worker.claims) + (worker.current is not None),
    )


def _state(worker: Worker) -> str:
    if worker.is_lost:
        return "lost"
    if worker.is_leaving:
        return "ending"
    return "idle" if worker.is_idle else "busy"
