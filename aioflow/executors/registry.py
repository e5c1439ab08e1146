"""The executors of the settings: loads their backends by entry point, and checks tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points

import anyio
from anyio.abc import TaskStatus
from msgspec.structs import replace

from aioflow.errors import BadExecutor
from aioflow.executors.backend import (
    ENTRY_POINTS,
    ExecutorBackend,
    ExecutorFactory,
    ExecutorLease,
    WorkerEvents,
)
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.workers import LOCAL, WorkerDemand, WorkerNo
from aioflow.protocol.reports import DagFailure, Parsed

__all__ = (
    "UnusableBackend",
    "check_executors",
    "open_backends",
)

_logger = logging.getLogger(__name__)


class UnusableBackend:
    """The backend of an unusable executor. The executor's tasks wait and show the reason."""

    max_workers = 1
    idle_seconds = 0.0
    patience_seconds = 0.0

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self.why = why
        self._events: WorkerEvents | None = None
        self._demands: Sequence[WorkerDemand] = ()

    async def run(
        self, lease: ExecutorLease, events: WorkerEvents, *, task_status: TaskStatus[None]
    ) -> None:
        """Report each demanded spec as unavailable, until cancelled."""
        self._events = events
        task_status.started()
        self.set_demand(self._demands)
        await anyio.sleep_forever()

    def set_demand(self, demands: Sequence[WorkerDemand]) -> None:
        """Report that no such workers are available."""
        self._demands = demands
        if self._events is not None:
            for demand in demands:
                self._events.unavailable(demand.spec, self.why)

    def kill(self, worker_no: WorkerNo) -> None:
        """Do nothing, because this backend has no workers."""

    def retire(self, worker_no: WorkerNo) -> None:
        """Do nothing, because this backend has no workers."""

    def check(self, task: TaskSpec) -> str:
        """Accept any task, because the package may be repaired before the task runs."""
        return ""


def open_backends(tables: Mapping[str, Mapping[str, object]]) -> dict[str, ExecutorBackend]:
    """Return the backend of each executor of the settings.

    A backend that cannot be created is logged and replaced by an ``UnusableBackend``.
    """
    return {name: _open(name, table) for name, table in tables.items()}


def _open(name: str, table: Mapping[str, object]) -> ExecutorBackend:
    kind = table.get("kind", name)
    rest = {key: value for key, value in table.items() if key != "kind"}
    found = [point for point in entry_points(group=ENTRY_POINTS) if point.name == kind]
    if not found:
        return _unusable(name, f"no installed package provides the kind {kind!r}")
    try:
        factory: ExecutorFactory = found[0].load()
        backend = factory(name, rest)
        if backend.max_workers < 1:
            raise ValueError(f"max_workers must be at least 1, not {backend.max_workers}")
        return backend
    except ValueError as exc:
        return _unusable(name, f"[executors.{name}] of the settings: {exc}")
    except Exception as exc:
        _logger.exception("the package of executor %s is broken", name)
        return _unusable(name, f"its package is broken: {type(exc).__name__}: {exc}")


def _unusable(name: str, why: str) -> UnusableBackend:
    _logger.error("executor %s cannot be used: %s", name, why)
    return UnusableBackend(name, f"executor {name!r} cannot be used: {why}"[:500])


def check_executors(parsed: Parsed, backends: Mapping[str, ExecutorBackend]) -> Parsed:
    """Return a parsed file without the DAGs whose tasks can never run.

    Add the failures of those.
    """
    refused = {
        dag.dag_id: failures for dag in parsed.dags if (failures := [*_misfits(dag, backends)])
    }
    if not refused:
        return parsed
    return replace(
        parsed,
        dags=tuple(dag for dag in parsed.dags if dag.dag_id not in refused),
        failures=(*parsed.failures, *(one for failures in refused.values() for one in failures)),
    )


def _misfits(dag: DagSpec, backends: Mapping[str, ExecutorBackend]) -> Iterator[DagFailure]:
    for task in dag.tasks:
        if task.executor == LOCAL:
            continue
        backend = backends.get(task.executor)
        if backend is None:
            why = _unknown(task.executor, backends)
        else:
            why = _checked(backend, task, dag.interpreter)
        if why:
            message = f"task {task.task_id!r} of {dag.dag_id}: {why}"
            yield DagFailure(BadExecutor.code, message, task.line)


def _lacking(backend: ExecutorBackend, name: str, interpreter: str) -> str:
    """Return why a backend has no workers for an interpreter; empty if it has some.

    A backend may have an attribute ``interpreters``: the names of the interpreters for which it
    knows a path. A backend without it is rejected for a file that specifies an interpreter, because
    the code would run in a different environment.
    """
    if not interpreter or interpreter in getattr(backend, "interpreters", ()):
        return ""
    return (
        f"executor {name!r} has no python {interpreter!r}, which the DAG file chooses; "
        f"use the executor {LOCAL!r}, or move the task to a file that chooses no interpreter"
    )


def _checked(backend: ExecutorBackend, task: TaskSpec, interpreter: str) -> str:
    try:
        return _lacking(backend, task.executor, interpreter) or backend.check(task)
    except Exception as exc:
        _logger.exception("executor %s cannot check a task", task.executor)
        return f"executor {task.executor!r} cannot check it: {type(exc).__name__}: {exc}"[:500]


def _unknown(name: str, known: Iterable[str]) -> str:
    names = ", ".join(sorted({LOCAL, *known}))
    return (
        f"there is no executor {name!r}, only {names}; "
        f"add a table [executors.{name}] to the settings of the daemon"
    )
