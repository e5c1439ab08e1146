"""Requests to clear tasks of a run, so that they run again. A run that had ended resumes.

The selection of tasks is made from memory and stored in one small batch, which also suspends the
run. The tasks are then cleared in slices, see ``execution``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from aioflow.core.repair import execution, mark, selection
from aioflow.core.repair.preview import preview
from aioflow.core.runs import version_upgrade
from aioflow.core.state.graph import DagVersion
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import Run
from aioflow.core.transaction import Transaction
from aioflow.errors import RequestError, UnknownRun, VersionDiffers
from aioflow.model.ids import TaskNo
from aioflow.model.states import RunState
from aioflow.protocol.inputs import ContinueRun, Input, RequestReceived
from aioflow.protocol.outbox import Clearing
from aioflow.protocol.requests import ClearTasks, DeleteRun, Mark, Preview

__all__ = ("asks", "clear", "has_to_wait", "key_of", "needed", "portion")


def asks(inputs: Iterable[Input]) -> Iterator[ClearTasks | Mark]:
    """Yield the clear and mark requests among these inputs.

    A request can be executed only if its run is live or in ``memory.loaded``.
    """
    for entry in inputs:
        match entry:
            case RequestReceived(request=ClearTasks() as request):
                yield request
            case RequestReceived(request=Mark() as request) if request.tasks:
                yield request


def key_of(request: ClearTasks | Mark) -> str | None:
    """Return the idempotency key of a request, if it has one."""
    return request.key if isinstance(request, ClearTasks) else None


def needed(inputs: Iterable[Input], memory: Memory) -> Sequence[TaskNo]:
    """Return the tasks whose rows must be in ``memory.prefetched_tasks`` for these inputs.

    Runs that have become live again are removed from ``memory.loaded``.
    """
    for key in [key for key in memory.loaded if memory.find_run(key[0]) is not None]:
        del memory.loaded[key]
    numbers: list[TaskNo] = []
    for entry in inputs:
        if isinstance(entry, ContinueRun):
            task = memory.runs.get(entry.run_no)
            if task is not None and task.clearing is not None:
                numbers += execution.needed(task)
        for request in asks([entry]):
            at = request.run_id, key_of(request)
            run = memory.find_run(request.run_id) or memory.loaded.get(at)
            if isinstance(run, Run) and run.clearing is None:
                numbers += _needed(request, run)
    return numbers


def _needed(request: ClearTasks | Mark, run: Run) -> Iterable[TaskNo]:
    return mark.needed(request, run) if isinstance(request, Mark) else execution.undecided(run)


def portion(inbox: Iterable[Input], limit: int, memory: Memory) -> int:
    """Return how many inputs the next turn processes.

    An input that may need rows of a run is processed in a separate turn.
    """
    count = 0
    for count, entry in enumerate(islice(inbox, limit), 1):
        if isinstance(entry, RequestReceived | ContinueRun) and _is_taken_alone(entry, memory):
            return max(1, count - 1)
    return count


def _is_taken_alone(entry: RequestReceived | ContinueRun, memory: Memory) -> bool:
    if isinstance(entry, ContinueRun):
        return entry.run_no in memory.clearings
    return isinstance(entry.request, ClearTasks | Mark | DeleteRun)


def has_to_wait(request: ClearTasks | Mark, memory: Memory) -> bool:
    """Return whether the request must wait for an earlier clear or mark of its run."""
    run = memory.find_run(request.run_id)
    if run is None or (isinstance(request, Mark) and not request.tasks and run.state.is_live):
        return False
    if isinstance(request, ClearTasks) and (request.run_id, request.key or "") in memory.answered:
        return False
    return run.clearing is not None and run.row.quarantine is None


def clear(request: ClearTasks, tx: Transaction) -> tuple[int, RunState] | Preview:
    """Clear tasks. Return how many were cleared, and the state of their run.

    A dry run changes nothing, and returns the tasks that would be cleared.

    Raises:
        RequestError: If there is no such run or task, if the run is being cancelled, or if it
            cannot be moved to the newest version as requested.
    """
    memory = tx.memory
    loaded = memory.loaded.pop((request.run_id, request.key), UnknownRun(request.run_id))
    if request.key is not None and (request.run_id, request.key) in memory.answered:
        return memory.answered[request.run_id, request.key]
    run = memory.find_run(request.run_id) or loaded
    if not isinstance(run, Run):
        raise run
    for task_id in request.tasks or run.graph.index_of:
        selection.named(run, task_id, request.map_index)
        for map_index in request.map_indexes:
            selection.named(run, task_id, map_index)
    if not run.state.is_live and run.row.ended_at is None:
        raise RequestError(f"run {request.run_id!r} is being ended; clear it after it has ended")
    if run.clearing is not None:
        raise RequestError(f"run {request.run_id!r} is held still while it is being cleared")
    chosen = selection.choose(request, run, memory.prefetched_tasks)
    dag_version = _newest(run, chosen, memory) if request.latest else None
    if request.dry_run:
        return preview(run, chosen, None if request.downstream else request.tasks)
    count = execution.count(run, chosen)
    if request.key is not None:
        tx.batch.new_clears.append((run.run_no, request.key, count))
    if count or chosen.reexpanded:
        execution.suspend(run, chosen, tx)
        execution.begin(run, tx, dag_version=dag_version)
    return count, run.state


def _newest(run: Run, chosen: Clearing, memory: Memory) -> DagVersion | None:
    """Return the version to which a run is moved; ``None`` if it already has the newest version.

    Raises:
        RequestError: If the run cannot be moved.
    """
    dag_version = version_upgrade.newest(run, memory)
    if dag_version is not None:
        stopped = execution.under_way(run, chosen)
        if len(stopped) > execution.SLICE_TASKS:
            most = f"more than {execution.SLICE_TASKS} tasks are under way"
            raise VersionDiffers(
                run.row.run_id, dag_version.version, most, hint="cancel the run first"
            )
        version_upgrade.check_idle(run, dag_version, {target.task_no for target in stopped})
    return dag_version
