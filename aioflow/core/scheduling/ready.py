"""The ready queues: tasks that wait for a slot, and their order.

Ready entries wait in one heap per kind of body, pool and required host. An entry is a queued task,
or a whole mapped task whose pending children are drawn from it one by one, so a fan-out of a
million costs as much as one task. The order is: resumed before new tasks, then priority, then the
turn of the DAG, see ``fairness``. New tasks of backfill runs come after all others. Tasks that keep
their slots in a pool while deferred come first, because no other task can use these slots.

An entry that the limits of its run exclude is set aside with the run, in the same order. For each
task that leaves its slot one entry returns, so a limit costs no more with ten thousand tasks behind
it than with ten.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container
from typing import TypeAlias

from aioflow.core.scheduling.fairness import Fairness, age_of
from aioflow.core.scheduling.task_concurrency import Across, Item, Queue
from aioflow.core.state.child_roles import is_own
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance
from aioflow.core.tasks.readiness import fresh
from aioflow.model.dag import Body, TaskSpec
from aioflow.model.ids import TaskNo
from aioflow.model.rows import PoolRow
from aioflow.model.states import TaskState

__all__ = (
    "SENSOR_QUEUE",
    "START_QUEUE",
    "Ready",
    "Room",
    "head",
    "is_hosted_sensor",
    "is_start",
    "still_waits",
)

Room: TypeAlias = Callable[[TaskInstance | MappedTask], bool]
"""Whether the pool has capacity for the entry, and its host is up."""

_Line: TypeAlias = tuple[str, str]
_Key: TypeAlias = tuple[_Line, str]
"""The key of a queue: executor and pool, and the role of the host if one is required."""

SENSOR_QUEUE = "sensor"
"""Hosted sensors wait only for their host. They hold no slot, so no limit applies to them."""

START_QUEUE = "start"
"""Tasks that are deferred from the start hold no slot either. Only their window limits them, and
their pool if it counts deferred tasks."""

_HOSTLESS = frozenset({START_QUEUE, Body.FUNCTION.value})
"""Tasks of these executors need no async host."""

_WORTH_SWEEPING = 64


class Ready:
    """The ready queues.

    Args:
        pool_holds: Tasks that keep their slots in a pool while they wait, as ``Slots`` has them.

    Attributes:
        came_back: Whether an entry that was set aside is in a queue again, possibly in one that was
            already examined.
        across: Limits over all runs of a DAG, and the entries set aside for them.
    """

    def __init__(self, pool_holds: Container[TaskNo]) -> None:
        self.came_back = False
        self.across = Across(still_waits)
        self._pool_holds = pool_holds
        self._queues: dict[_Key, Queue] = {}
        self._swept: dict[_Key, int] = {}
        self._too_wide: list[Item] = []
        self._fairness = Fairness()

    def offer(self, entry: TaskInstance | MappedTask) -> None:
        """Queue a task, or a mapped task with pending children, for its slots."""
        self._enqueue(self._placed(entry, self._fairness.age()))

    def _placed(self, entry: TaskInstance | MappedTask, age: int) -> Item:
        """Assign the entry its rank, priority and turn."""
        rank, priority, _, _ = self._ranked((0, -entry.spec.priority, 0, entry))
        dag_id, cost_us = entry.run.row.dag_id, _expected(entry)
        turn = self._fairness.turn(_line(entry), rank, priority, dag_id, cost_us, age)
        return rank, priority, turn, entry

    def _ranked(self, item: Item) -> Item:
        _, priority, age, entry = item
        if isinstance(entry, TaskInstance) and entry.task_no in self._pool_holds:
            return 0, priority, age, entry
        begins = isinstance(entry, MappedTask) or not (entry.resumed or entry.recorded)
        if not begins:
            return 1, priority, age, entry
        return 2 if entry.run.row.backfill is None else 3, priority, age, entry

    def unblock(self, task: TaskInstance) -> None:
        """Bring back entries that the limits of a run admit, now that a task has left its slot."""
        self._bring_back(task.run.blocked_at.get(task.position))
        self._bring_back(task.run.blocked_at.get(_of_starts(task.position)))
        self._bring_back(task.run.blocked)

    def admit_more(self, task: TaskInstance) -> None:
        """Bring back the next entry of a run if its limits admit it, after a task got its slot."""
        run = task.run
        if run.blocked and not _is_full(run):
            self._bring_back(run.blocked)
        aside = run.blocked_at.get(task.position)
        if aside and not _is_full_at(aside[0][3]):
            self._bring_back(aside)
        self.readmit()

    def readmit(self) -> None:
        """Bring back entries that the limits over all runs of their DAG now admit."""
        for item in self.across.come_back():
            self._push(item)
            self.came_back = True

    def _pass_on(self, entry: TaskInstance | MappedTask) -> None:
        """Bring back another entry of its task, because this one is blocked for another reason."""
        self.across.passed(entry)
        self.readmit()

    def _bring_back(self, aside: Queue | None) -> None:
        """Bring back the best entry that is still waiting."""
        while aside:
            item = heapq.heappop(aside)
            if still_waits(item[3]):
                self._push(item)
                self.came_back = True
                return

    def repool(self) -> None:
        """Queue entries again that were too large for their pool, after pools were resized."""
        items, self._too_wide = self._too_wide, []
        for item in items:
            self._push(item)

    def rerank(self, pool: str) -> None:
        """Reorder the queues of a pool after the tasks that keep slots in it have changed."""
        for ((_, name), _), queue in self._queues.items():
            if name == pool:
                queue[:] = [self._ranked(item) for item in queue]
                heapq.heapify(queue)
        self.across.rerank(pool, self._ranked)

    def best(self, kind: str, room: Room, pools: dict[str, PoolRow]) -> Queue | None:
        """Return the executor's queue with the best head that may start, if there is one."""
        while (found := self._look(kind, room, pools)) is not None:
            queue, item = found
            if queue[0] is item:
                return queue
            # Setting an entry aside in a later queue brought another one back to the head of this
            # one.
        return None

    def _look(self, kind: str, room: Room, pools: dict[str, PoolRow]) -> tuple[Queue, Item] | None:
        best: tuple[Queue, Item] | None = None
        first: tuple[int, int, int, int] | None = None
        for (queue_key, _), queue in self._queues.items():
            if queue_key[0] != kind or not self._clean(queue, kind, pools.get(queue_key[1])):
                continue
            if not room(head(queue)):
                continue
            rank, priority, turn, _ = item = queue[0]
            order = (rank, priority, self._fairness.line_turn(queue_key), turn)
            if first is None or order < first:
                first, best = order, (queue, item)
        return best

    def missing_hosts(self, hosts_up: Container[str]) -> set[str]:
        """Return the roles of own hosts of DAGs that tasks wait for and that are not up."""
        return {
            role
            for (_, role), queue in self._queues.items()
            if queue and is_own(role) and role not in hosts_up
            if any(still_waits(item[3]) for item in queue)
        }

    def draw(self, queue: Queue) -> TaskInstance:
        """Remove one task from the head. A mapped task stays until no pending child is left."""
        rank, priority, turn, entry = queue[0]
        queue_key, cost_us = _line(entry), _expected(entry)
        self._fairness.served(queue_key, rank, priority, turn, cost_us)
        self.across.passed(entry)
        if isinstance(entry, TaskInstance):
            heapq.heappop(queue)
            return entry
        task = fresh(entry.run, entry.position, entry.take_fresh())
        if entry.has_fresh:  # its next child has the same rank and a turn of its own
            dag_id, age = entry.run.row.dag_id, age_of(turn)
            turn = self._fairness.turn(queue_key, rank, priority, dag_id, cost_us, age)
            heapq.heapreplace(queue, (rank, priority, turn, entry))
        else:
            heapq.heappop(queue)
        return task

    def _push(self, item: Item) -> None:
        """Queue a set-aside entry again. Whether it keeps slots may have changed since."""
        self._enqueue(self._ranked(item))

    def _enqueue(self, item: Item) -> None:
        key = _key(item[3])
        queue = self._queues.setdefault(key, [])
        heapq.heappush(queue, item)
        self._sweep(key, queue)

    def _sweep(self, key: _Key, queue: Queue) -> None:
        """Drop stale entries once they may outnumber the others."""
        if len(queue) > max(_WORTH_SWEEPING, 2 * self._swept.get(key, 0)):
            queue[:] = [item for item in queue if still_waits(item[3])]
            heapq.heapify(queue)
            self._swept[key] = len(queue)

    def _clean(self, queue: Queue, kind: str, pool: PoolRow | None) -> bool:
        """Set aside blocked entries from the head on. Return whether an entry is left."""
        while queue:
            entry = queue[0][3]
            run = entry.run
            if not still_waits(entry):
                heapq.heappop(queue)
            elif kind == SENSOR_QUEUE:
                return True
            elif self._is_too_wide(entry, kind, pool):
                self._too_wide.append(heapq.heappop(queue))
                self._bring_back(run.blocked_at.get(entry.position))
                self._bring_back(run.blocked)
                self._pass_on(entry)
            elif kind == START_QUEUE and not _is_past_window(entry):
                return True
            elif kind == START_QUEUE:
                # It needs no slot, so it does not queue behind entries that wait for one.
                aside = run.blocked_at.setdefault(_of_starts(entry.position), [])
                heapq.heappush(aside, heapq.heappop(queue))
            elif _is_full(run):
                heapq.heappush(run.blocked, heapq.heappop(queue))
                self._pass_on(entry)
            elif _is_full_at(entry):
                self._put_aside(heapq.heappop(queue))
                self._bring_back(run.blocked)  # it gives way to another entry of its run
                self._pass_on(entry)
            elif self.across.is_full(entry):
                self.across.put_aside(heapq.heappop(queue))
                self._bring_back(run.blocked)
            else:
                return True
        return False

    def is_within_limits(self, task: TaskInstance) -> bool:
        """Return whether the limits of its run, and of its task over all runs, admit one more."""
        return not (_is_full(task.run) or _is_full_at(task) or self.across.is_full(task))

    def _is_too_wide(
        self, entry: TaskInstance | MappedTask, kind: str, pool: PoolRow | None
    ) -> bool:
        """Return whether its pool is too small for it. A task with kept slots needs no capacity."""
        if pool is None or entry.spec.slots <= pool.slots:
            return False
        if kind == START_QUEUE:
            return pool.include_deferred and not is_hosted_sensor(entry.spec)
        return not (isinstance(entry, TaskInstance) and entry.task_no in self._pool_holds)

    def _put_aside(self, item: Item) -> None:
        """Set it aside with its run. If only its window blocks it, one past its window returns."""
        entry = item[3]
        aside = entry.run.blocked_at.setdefault(entry.position, [])
        if aside and aside[0][3] is entry:
            return  # it is set aside already
        if aside and not _is_at_limit(entry):
            self._push(heapq.heapreplace(aside, item))
            self.came_back = True
        else:
            heapq.heappush(aside, item)


def _expected(entry: TaskInstance | MappedTask) -> float:
    return entry.run.durations[entry.position]


def _key(entry: TaskInstance | MappedTask) -> _Key:
    queue_key = _line(entry)
    return queue_key, "" if queue_key[0] in _HOSTLESS else entry.run.async_role


def _line(entry: TaskInstance | MappedTask) -> _Line:
    return _queue_kind(entry), entry.spec.pool


def _queue_kind(entry: TaskInstance | MappedTask) -> str:
    spec = entry.spec
    if is_start(entry):
        return START_QUEUE
    return SENSOR_QUEUE if is_hosted_sensor(spec) else spec.body.value


def _of_starts(position: int) -> int:
    """Return the key for set-aside entries of a task that are deferred from the start."""
    return ~position


def is_start(entry: TaskInstance | MappedTask) -> bool:
    """Return whether the entry starts with a wait of its own, without a worker."""
    if isinstance(entry, TaskInstance) and entry.resumed is not None:
        return entry.waits_again
    return entry.spec.start_trigger is not None


def is_hosted_sensor(spec: TaskSpec) -> bool:
    """Return whether a task is a sensor that pokes in the async host; it holds no slot."""
    return spec.sensor is not None and spec.body is Body.COROUTINE


def head(queue: Queue) -> TaskInstance | MappedTask:
    """Return the head of a queue that is not empty."""
    return queue[0][3]


def still_waits(entry: TaskInstance | MappedTask) -> bool:
    """Return whether a task, or a pending child of a mapped task, is waiting for its slot now."""
    run = entry.run
    if run.is_forgotten or run.clearing is not None or not run.state.is_live:
        return False
    if run.row.quarantine is not None:
        return False
    if isinstance(entry, MappedTask):  # a cleared one waits for its trigger rule first
        return entry.has_fresh and run.states[entry.position] == TaskState.RUNNING
    if entry.worker >= 0 or entry.is_hosted:
        return False
    return entry.waits_for_host or entry.state is TaskState.QUEUED


def _is_full(run: Run) -> bool:
    at_once = run.spec.max_active_tasks
    return at_once is not None and run.running >= at_once


def _is_full_at(entry: TaskInstance | MappedTask) -> bool:
    """Return whether its own limit or its window is exhausted. A resumed task has no window."""
    return _is_past_window(entry) or _is_at_limit(entry)


def _is_past_window(entry: TaskInstance | MappedTask) -> bool:
    window = entry.spec.window
    return isinstance(entry, MappedTask) and window is not None and entry.unfinished >= window


def _is_at_limit(entry: TaskInstance | MappedTask) -> bool:
    at_once = entry.spec.max_active_tis_per_dagrun
    return at_once is not None and entry.run.running_at.get(entry.position, 0) >= at_once
