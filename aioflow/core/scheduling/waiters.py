"""The tasks that wait for slots of a pool, in the order in which they are examined for them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from aioflow.core.scheduling.ready import Queue, Ready, still_waits
from aioflow.core.state.task_instance import MappedTask, TaskInstance
from aioflow.protocol.requests import Waiter

__all__ = ("EXAMINED", "pool_waiters")

EXAMINED = 2_000
"""Maximum number of queue entries that are examined for one answer."""


def pool_waiters(pool: str, ready: Ready, *, limit: int) -> list[Waiter]:
    """Return the entries that wait for slots of a pool, the next one first; at most ``limit``.

    A mapped task is one entry for all children that have not been queued. Entries that a limit of
    their run or DAG holds back are left out. The order may still change: a resumed task, or one of
    a DAG that had fewer turns, may come first.
    """
    found: list[Waiter] = []
    for entry in _in_order(ready.queues_of(pool)):
        if len(found) == limit:
            break
        if still_waits(entry):
            found.append(_waiter(entry))
    return found


def _in_order(queues: Iterable[Queue]) -> Iterable[TaskInstance | MappedTask]:
    """Yield the entries of heaps by rank, without changing the heaps."""
    heaps = [queue for queue in queues if queue]
    next_ones = [(heap[0][:3], at, 0) for at, heap in enumerate(heaps)]
    heapq.heapify(next_ones)
    for _ in range(EXAMINED):
        if not next_ones:
            return
        _, at, place = heapq.heappop(next_ones)
        heap = heaps[at]
        yield heap[place][3]
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heapq.heappush(next_ones, (heap[child][:3], at, child))


def _waiter(entry: TaskInstance | MappedTask) -> Waiter:
    row = entry.run.row
    mapped = entry if isinstance(entry, MappedTask) else None
    return Waiter(
        run_id=row.run_id,
        dag_id=row.dag_id,
        task_index=entry.task_index,
        map_index=-1 if isinstance(entry, MappedTask) else entry.map_index,
        children=0 if mapped is None else mapped.fresh,
        weight=entry.spec.slots,
        priority=entry.spec.priority,
        since=None if isinstance(entry, MappedTask) else entry.queued_at,
    )
