"""The tasks that use a pool: running ones, and deferred ones that keep their slots."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import TaskInstance
from aioflow.model.states import TaskState
from aioflow.protocol.requests import Holder

__all__ = ("holders",)


def holders(pool: str, memory: Memory, slots: Slots, *, limit: int) -> list[Holder]:
    """Return the tasks that use a pool, running ones first; at most ``limit``."""
    return [_holder(task, memory) for task in islice(_having(pool, memory, slots), limit)]


def _having(pool: str, memory: Memory, slots: Slots) -> Iterator[TaskInstance]:
    for worker in slots.workers:
        if worker.current is not None and worker.pool == pool:
            yield worker.current
    for task in slots.at_work.values():
        if task.spec.pool == pool:
            yield task
    if not slots.used_by_deferred(pool):
        return
    for task_no, (where, _) in slots.pool_holds.items():
        pool_holds = memory.active_tasks.get(task_no) if where == pool else None
        if pool_holds is not None:
            yield pool_holds


def _holder(task: TaskInstance, memory: Memory) -> Holder:
    row = task.run.row
    is_waiting = task.state is TaskState.DEFERRED
    since = task.started_at if task.started_at is not None else task.queued_at
    if is_waiting and task.wait is not None:
        since = memory.on_wall(task.wait.row.since)
    return Holder(
        row.run_id, row.dag_id, task.position, task.map_index, task.spec.slots, since, is_waiting
    )
