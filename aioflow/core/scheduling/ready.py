"""The ready queues: tasks that wait for a slot, their order, and limits on concurrent instances.

Ready entries wait in one heap for each combination of ``Kind``, pool and required host. An
entry is a queued task, or a whole mapped task whose pending children are drawn from it one by one,
so a mapped task with a million children costs as much as one task. Entries are ordered by rank
(resumed tasks before new tasks), then by priority, then by the turn of the DAG, see below. New
tasks of backfill runs come after all others. Tasks that keep their slots in a pool while deferred
come first, because no other task can use these slots.

An entry whose start would exceed a limit of its run is set aside with the run, in the same order.
For each task that leaves its slot one entry returns, so a limit that blocks ten thousand tasks
costs no more than a limit that blocks ten.

Slots are shared fairly among DAGs of equal priority, however many tasks each of them has. In this
module a *turn* is not a pass of the engine loop but a position in this sharing: the amount of its
DAG's work that the same queue will have served when the entry is reached. It is at least the
current turn, which is the turn of the entry served last. So eight thousand tasks of one DAG get
consecutive turns, and the first task of another DAG gets the current turn, not a turn after the
last of them. A task that is expected to take less than 5 ms counts proportionally less. Among
entries with the same turn, the DAG whose first task in that turn is the oldest comes first, with
all its tasks of that turn. So short tasks of one DAG are claimed together and find its code loaded,
even if runs of many DAG files started in between. The cost is bounded: the newer tasks of each DAG
that overtake an older task of the same rank and priority are less than 5 ms of expected work plus
one task, and they overtake it only once. Pools that wait for the same slots share them in the same
way.

``TaskConcurrency`` limits how many instances of a task run at the same time in all runs of its DAG.
Entries beyond the limit are set aside and return one at a time. The next entry returns only when
the entry that returned last has started, was set aside for another reason, or no longer waits.
There is one exception: the next entry also returns if it precedes that entry in the order, because
that entry may wait for the very slots that the next one keeps.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Container, Iterator
from itertools import islice
from typing import TypeAlias

from aioflow.core.scheduling.remote_workers import Waiting
from aioflow.core.state.child_roles import is_on_demand, slot_role
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance
from aioflow.core.tasks.readiness import fresh
from aioflow.model.dag import Body, TaskSpec
from aioflow.model.ids import TaskNo
from aioflow.model.rows import PoolRow
from aioflow.model.states import TaskState
from aioflow.model.workers import LOCAL, WorkerSpec

__all__ = (
    "SENSOR_QUEUE",
    "START_QUEUE",
    "Admits",
    "Fairness",
    "Item",
    "Kind",
    "Queue",
    "Ready",
    "TaskConcurrency",
    "age_of",
    "body_kind",
    "count_waiting",
    "head",
    "is_hosted_sensor",
    "is_start",
    "still_waits",
    "worker_spec",
)

STEP_US = 5_000

_DAGS_WORTH_SWEEPING = 256
_AGE_BITS = 40
_TURN_BITS = 2 * _AGE_BITS

Kind: TypeAlias = str | WorkerSpec
"""What a queue's tasks wait for: a local worker, the async host, a remote worker, or nothing."""

_QueueKey: TypeAlias = tuple[Kind, str]
_Class: TypeAlias = tuple[_QueueKey, int, int]
_Next: TypeAlias = tuple[float, int, int]
"""Next and last turn of a DAG (see above), and the age of its first task in the last turn."""

_FIRST: _Next = (0.0, -1, 0)


class Fairness:
    """The turns of the DAGs in all queues.

    After a restart all entries get new turns, oldest first.
    """

    def __init__(self) -> None:
        self._age = 0
        self._now: dict[_Class, float] = {}
        self._next: dict[tuple[_Class, str], _Next] = {}
        self._swept = 0
        self._virtual_time: dict[Kind, float] = {}
        self._line_next: dict[_QueueKey, float] = {}

    def age(self) -> int:
        """Return a number that increases with each call."""
        self._age += 1
        return self._age

    def turn(
        self, queue_key: _QueueKey, rank: int, priority: int, dag_id: str, cost_us: float, age: int
    ) -> int:
        """Assign a turn to one more task of a DAG. A lower turn comes first.

        Args:
            queue_key: The executor and the pool that the task waits for.
            cost_us: Expected duration of the task; 0 if unknown.
            age: Age of the task. Within one turn, tasks are ordered by the age of their DAG's first
                task in the turn, then by their own age.
        """
        kind = (queue_key, rank, priority)
        following, last, first_age = self._next.get((kind, dag_id), _FIRST)
        at = max(self._now.get(kind, 0.0), following)
        number = int(at // STEP_US)
        if number != last:
            first_age = age
        self._next[kind, dag_id] = (at + _counted_cost(cost_us), number, first_age)
        self._sweep()
        return (number << _TURN_BITS) + (first_age << _AGE_BITS) + age

    def line_turn(self, queue_key: _QueueKey) -> int:
        """Return the turn of a pool among the pools of an executor."""
        at = max(self._virtual_time.get(queue_key[0], 0.0), self._line_next.get(queue_key, 0.0))
        return int(at // STEP_US)

    def served(
        self, queue_key: _QueueKey, rank: int, priority: int, turn: int, cost_us: float
    ) -> None:
        """Record that an entry got its slot."""
        kind = (queue_key, rank, priority)
        self._now[kind] = max(self._now.get(kind, 0.0), float((turn >> _TURN_BITS) * STEP_US))
        at = max(self._virtual_time.get(queue_key[0], 0.0), self._line_next.get(queue_key, 0.0))
        self._virtual_time[queue_key[0]] = at
        self._line_next[queue_key] = at + _counted_cost(cost_us)

    def _sweep(self) -> None:
        """Forget DAGs whose next turn is not after the current one."""
        if len(self._next) > max(_DAGS_WORTH_SWEEPING, 2 * self._swept):
            self._next = {
                key: of for key, of in self._next.items() if of[0] > self._now.get(key[0], 0.0)
            }
            self._swept = len(self._next)


def _counted_cost(cost_us: float) -> float:
    return min(cost_us or STEP_US, STEP_US)


def age_of(turn: int) -> int:
    """Return the age that was passed to ``Fairness.turn``."""
    return turn & ((1 << _AGE_BITS) - 1)


Item: TypeAlias = tuple[int, int, int, TaskInstance | MappedTask]
"""Rank (keeping its slots, resumed or new), priority, turn, and the entry."""

Queue: TypeAlias = list[Item]

_TaskKey: TypeAlias = tuple[str, str]
_BodyAndPool: TypeAlias = tuple[Kind, str]


class TaskConcurrency:
    """Number of running instances by DAG and task, over all versions of the DAG.

    Each entry is subject to the limit that its own version sets.

    Args:
        still_waits: Returns whether an entry still waits, which means that it was not started,
            ended or forgotten.
    """

    def __init__(self, still_waits: Callable[[TaskInstance | MappedTask], bool]) -> None:
        self._still_waits = still_waits
        self._running: dict[_TaskKey, int] = {}
        self._blocked: dict[_TaskKey, dict[_BodyAndPool, Queue]] = {}
        self._returned: dict[_TaskKey, dict[_BodyAndPool, Item]] = {}

    def running(self, entry: TaskInstance | MappedTask) -> int:
        """Return how many instances of a task hold a slot in runs whose version limits it."""
        return self._running.get(_task_key(entry), 0)

    def is_full(self, entry: TaskInstance | MappedTask) -> bool:
        """Return whether the limit of an entry's task is exhausted."""
        at_once = _task_limit(entry)
        return at_once is not None and self.running(entry) >= at_once

    def count(self, task: TaskInstance) -> None:
        """Count a task that gets a slot."""
        if _task_limit(task) is not None:
            key = _task_key(task)
            self._running[key] = self._running.get(key, 0) + 1

    def uncount(self, task: TaskInstance) -> None:
        """Stop counting a task that frees its slot."""
        if _task_limit(task) is not None:
            key = _task_key(task)
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def recount(self) -> None:
        """Reset all counts. The caller then counts each task that has a slot again."""
        self._running.clear()

    def block(self, item: Item) -> None:
        """Set aside an entry until an instance of its task frees its slot."""
        entry = item[3]
        lines = self._blocked.setdefault(_task_key(entry), {})
        heapq.heappush(lines.setdefault(_body_and_pool(entry), []), item)
        self.passed(entry)

    def passed(self, entry: TaskInstance | MappedTask) -> None:
        """Record that a requeued entry has started, or was set aside again."""
        if not self._returned or _task_limit(entry) is None:
            return
        returned = self._returned.get(_task_key(entry), {})
        item = returned.get(_body_and_pool(entry))
        if item is not None and item[3] is entry:
            del returned[_body_and_pool(entry)]

    def next_admitted(self) -> Iterator[Item]:
        """Yield the next entry of each queue if the limit admits it; see ``_may_call``."""
        for key in list(self._blocked):
            lines, returned = self._blocked[key], self._returned.setdefault(key, {})
            for queue_key in list(lines):
                if not self._may_call(lines[queue_key], returned.get(queue_key)):
                    continue
                item = self._next(lines[queue_key])
                if item is not None:
                    returned[queue_key] = item
                    yield item
                if not lines[queue_key]:
                    del lines[queue_key]
            if not lines:
                del self._blocked[key]
                self._returned.pop(key, None)

    def _may_call(self, blocked: Queue, before: Item | None) -> bool:
        """Return whether the next entry may return, given the entry that returned before it."""
        if before is None or not self._still_waits(before[3]):
            return True
        return bool(blocked) and blocked[0][:3] < before[:3]

    def rerank(self, pool: str, ranked: Callable[[Item], Item]) -> None:
        """Reorder the entries of a pool after the tasks that keep slots in it have changed."""
        for lines in self._blocked.values():
            for (_, name), blocked in lines.items():
                if name == pool:
                    blocked[:] = map(ranked, blocked)
                    heapq.heapify(blocked)

    def _next(self, blocked: Queue) -> Item | None:
        while blocked and not self._still_waits(blocked[0][3]):
            heapq.heappop(blocked)
        return heapq.heappop(blocked) if blocked and not self.is_full(blocked[0][3]) else None


def _task_limit(entry: TaskInstance | MappedTask) -> int | None:
    return entry.spec.max_active_tis_per_dag


def _task_key(entry: TaskInstance | MappedTask) -> _TaskKey:
    return entry.run.row.dag_id, entry.spec.task_id


def _body_and_pool(entry: TaskInstance | MappedTask) -> _BodyAndPool:
    """Return what an entry needs to run (see ``Kind``), and its pool.

    Different versions of a DAG may assign the same task to different pools.
    """
    return body_kind(entry), entry.spec.pool


Admits: TypeAlias = Callable[[TaskInstance | MappedTask], bool]
"""A function that returns whether the entry's pool has capacity and its host is up."""

_HostQueueKey: TypeAlias = tuple[_QueueKey, str]
"""The key of a queue: the executor, the pool, and the role that must be up, if one is required."""

SENSOR_QUEUE = "sensor"
"""The queue of hosted sensors. They wait only for their host.

They hold no slot, so no limit applies to them.
"""

START_QUEUE = "start"
"""The queue of tasks that are deferred from their start. They hold no slot.

They are limited only by their window and, if their pool counts deferred tasks, by the pool.
"""

_WORTH_SWEEPING = 64


class Ready:
    """The ready queues.

    Args:
        pool_holds: Tasks that keep their slots in a pool while they wait. Shared with ``Slots``.

    Attributes:
        has_unblocked: Whether an entry that was set aside has returned to a queue, possibly to a
            queue that was already examined.
        across: Limits across all runs of a DAG, and the entries set aside because of them.
    """

    def __init__(self, pool_holds: Container[TaskNo]) -> None:
        self.has_unblocked = False
        self.across = TaskConcurrency(still_waits)
        self._pool_holds = pool_holds
        self._queues: dict[_HostQueueKey, Queue] = {}
        self._swept: dict[_HostQueueKey, int] = {}
        self._too_wide: list[Item] = []
        self._fairness = Fairness()
        self._remote: list[_HostQueueKey] = []

    def offer(self, entry: TaskInstance | MappedTask) -> None:
        """Queue a task, or a mapped task with pending children, for its slots."""
        key = _host_queue_key(entry)
        self._enqueue(self._placed(entry, key[0], self._fairness.age()), key)

    def _placed(self, entry: TaskInstance | MappedTask, queue_key: _QueueKey, age: int) -> Item:
        """Return an entry with its rank, priority and turn."""
        rank, priority, _, _ = self._ranked((0, -entry.spec.priority, 0, entry))
        dag_id, cost_us = entry.run.row.dag_id, _expected(entry)
        turn = self._fairness.turn(queue_key, rank, priority, dag_id, cost_us, age)
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
        """Requeue set-aside entries that limits of their run admit after a task left its slot."""
        self._unblock(task.run.blocked_at.get(task.task_index))
        self._unblock(task.run.blocked_at.get(_of_starts(task.task_index)))
        self._unblock(task.run.blocked)

    def admit_more(self, task: TaskInstance) -> None:
        """Requeue the next set-aside entry of a run if limits admit it after a task got a slot."""
        run = task.run
        if run.blocked and not _is_full(run):
            self._unblock(run.blocked)
        blocked = run.blocked_at.get(task.task_index)
        if blocked and not _is_full_at(blocked[0][3]):
            self._unblock(blocked)
        self.readmit()

    def readmit(self) -> None:
        """Requeue set-aside entries that the limits across all runs of their DAG now admit."""
        for item in self.across.next_admitted():
            self._push(item)
            self.has_unblocked = True

    def _pass_on(self, entry: TaskInstance | MappedTask) -> None:
        """Requeue another entry of the task, because another limit blocks this one."""
        self.across.passed(entry)
        self.readmit()

    def _unblock(self, blocked: Queue | None) -> None:
        """Requeue the best set-aside entry that still waits."""
        while blocked:
            item = heapq.heappop(blocked)
            if still_waits(item[3]):
                self._push(item)
                self.has_unblocked = True
                return

    def repool(self) -> None:
        """Requeue entries that were too wide for their pool, after pools were resized."""
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

    def best_queue(self, kind: Kind, admits: Admits, pools: dict[str, PoolRow]) -> Queue | None:
        """Return the executor's queue whose head is the best entry that may start, if any."""
        while (found := self._look(kind, admits, pools)) is not None:
            queue, item = found
            if queue[0] is item:
                return queue
            # While a later queue was cleaned, one of its entries was set aside, and another entry
            # has returned to the head of this queue.
        return None

    def _look(
        self, kind: Kind, admits: Admits, pools: dict[str, PoolRow]
    ) -> tuple[Queue, Item] | None:
        best_queue: tuple[Queue, Item] | None = None
        first: tuple[int, int, int, int] | None = None
        for (queue_key, _), queue in self._queues.items():
            if not queue or queue_key[0] != kind:
                continue
            if not self._clean(queue, kind, pools.get(queue_key[1])):
                continue
            if not admits(head(queue)):
                continue
            rank, priority, turn, _ = item = queue[0]
            order = (rank, priority, self._fairness.line_turn(queue_key), turn)
            if first is None or order < first:
                first, best_queue = order, (queue, item)
        return best_queue

    def queues_of(self, pool: str) -> list[Queue]:
        """Return the queues of a pool. The caller must not change them."""
        return [queue for ((_, name), _), queue in self._queues.items() if name == pool]

    @property
    def has_remote(self) -> bool:
        """Whether any task has ever waited for a worker of another executor."""
        return bool(self._remote)

    def remote_queues(self) -> Iterator[tuple[WorkerSpec, str, Queue]]:
        """Yield the queues of tasks that wait for remote workers, with the spec and the pool."""
        for key in self._remote:
            (kind, pool), _ = key
            if self._queues[key] and isinstance(kind, WorkerSpec):
                yield kind, pool, self._queues[key]

    def missing_hosts(self, hosts_up: Container[str]) -> set[str]:
        """Return the roles of on-demand hosts that tasks wait for and that are not up."""
        return {
            role
            for (_, role), queue in self._queues.items()
            if queue and is_on_demand(role) and role not in hosts_up
            if any(still_waits(item[3]) for item in queue)
        }

    def pop(self, queue: Queue) -> TaskInstance:
        """Remove one task from the head. A mapped task stays until it has no pending child left."""
        rank, priority, turn, entry = queue[0]
        queue_key, cost_us = _queue_key(entry), _expected(entry)
        self._fairness.served(queue_key, rank, priority, turn, cost_us)
        self.across.passed(entry)
        if isinstance(entry, TaskInstance):
            heapq.heappop(queue)
            return entry
        task = fresh(entry.run, entry.task_index, entry.take_fresh())
        if entry.has_fresh:  # the next child has the same rank and its own turn
            dag_id, age = entry.run.row.dag_id, age_of(turn)
            turn = self._fairness.turn(queue_key, rank, priority, dag_id, cost_us, age)
            heapq.heapreplace(queue, (rank, priority, turn, entry))
        else:
            heapq.heappop(queue)
        return task

    def _push(self, item: Item) -> None:
        """Requeue a set-aside entry.

        The entry is ranked again, because it may have started or lost its slots since it was set
        aside.
        """
        self._enqueue(self._ranked(item), _host_queue_key(item[3]))

    def _enqueue(self, item: Item, key: _HostQueueKey) -> None:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = []
            if isinstance(key[0][0], WorkerSpec):
                self._remote.append(key)
        heapq.heappush(queue, item)
        self._sweep(key, queue)

    def _sweep(self, key: _HostQueueKey, queue: Queue) -> None:
        """Drop stale entries from a queue in which they may outnumber the valid ones."""
        if len(queue) > max(_WORTH_SWEEPING, 2 * self._swept.get(key, 0)):
            queue[:] = [item for item in queue if still_waits(item[3])]
            heapq.heapify(queue)
            self._swept[key] = len(queue)

    def _clean(self, queue: Queue, kind: Kind, pool: PoolRow | None) -> bool:
        """Set aside blocked entries at the head, until the head is an entry that is not blocked.

        Return whether there is such an entry.
        """
        while queue:
            entry = queue[0][3]
            run = entry.run
            if not still_waits(entry):
                heapq.heappop(queue)
            elif kind == SENSOR_QUEUE:
                return True
            elif self._is_too_wide(entry, kind, pool):
                self._too_wide.append(heapq.heappop(queue))
                self._unblock(run.blocked_at.get(entry.task_index))
                self._unblock(run.blocked)
                self._pass_on(entry)
            elif kind == START_QUEUE and not _is_past_window(entry):
                return True
            elif kind == START_QUEUE:
                # An entry that is deferred from its start needs no slot, so it does not queue
                # behind entries that wait for a slot.
                blocked = run.blocked_at.setdefault(_of_starts(entry.task_index), [])
                heapq.heappush(blocked, heapq.heappop(queue))
            elif _is_full(run):
                heapq.heappush(run.blocked, heapq.heappop(queue))
                self._pass_on(entry)
            elif _is_full_at(entry):
                self._block(heapq.heappop(queue))
                self._unblock(run.blocked)  # it gives way to another entry of its run
                self._pass_on(entry)
            elif self.across.is_full(entry):
                self.across.block(heapq.heappop(queue))
                self._unblock(run.blocked)
            else:
                return True
        return False

    def is_within_limits(self, task: TaskInstance) -> bool:
        """Return whether the limits of the run, and of the task across all runs, admit one more."""
        return not (_is_full(task.run) or _is_full_at(task) or self.across.is_full(task))

    def _is_too_wide(
        self, entry: TaskInstance | MappedTask, kind: Kind, pool: PoolRow | None
    ) -> bool:
        """Return whether an entry needs more slots than its pool has.

        A task that keeps its slots needs no free ones.
        """
        if pool is None or entry.spec.slots <= pool.slots:
            return False
        if kind == START_QUEUE:
            return pool.include_deferred and not is_hosted_sensor(entry.spec)
        return not (isinstance(entry, TaskInstance) and entry.task_no in self._pool_holds)

    def _block(self, item: Item) -> None:
        """Set aside an entry with its run.

        If only the window blocks the entry, another entry that is past its window returns instead.
        """
        entry = item[3]
        blocked = entry.run.blocked_at.setdefault(entry.task_index, [])
        if blocked and blocked[0][3] is entry:
            return  # it is already set aside
        if blocked and not _is_at_limit(entry):
            self._push(heapq.heapreplace(blocked, item))
            self.has_unblocked = True
        else:
            heapq.heappush(blocked, item)


def _expected(entry: TaskInstance | MappedTask) -> float:
    return entry.run.durations[entry.task_index]


def _host_queue_key(entry: TaskInstance | MappedTask) -> _HostQueueKey:
    queue_key = _queue_key(entry)
    kind = queue_key[0]
    if kind == Body.FUNCTION:
        return queue_key, slot_role(entry.run.spec)
    is_hostless = kind == START_QUEUE or isinstance(kind, WorkerSpec)
    return queue_key, "" if is_hostless else entry.run.async_role


def _queue_key(entry: TaskInstance | MappedTask) -> _QueueKey:
    return _queue_kind(entry), entry.spec.pool


def _queue_kind(entry: TaskInstance | MappedTask) -> Kind:
    if is_start(entry):
        return START_QUEUE
    return SENSOR_QUEUE if is_hosted_sensor(entry.spec) else body_kind(entry)


def body_kind(entry: TaskInstance | MappedTask) -> Kind:
    """Return what the body of a task needs: a local worker, the async host, or a remote worker."""
    spec = entry.spec
    return spec.body if spec.executor == LOCAL else worker_spec(entry)


def worker_spec(entry: TaskInstance | MappedTask) -> WorkerSpec:
    """Return what a ``def`` task requires of its worker."""
    spec = entry.spec
    interpreter = entry.run.spec.interpreter
    return WorkerSpec(spec.executor, interpreter, spec.resources, spec.executor_options)


_SCANNED_ITEMS = 1_000


def count_waiting(
    queue: Queue,
    most: int,
    free: int,
    holders: Collection[TaskNo],
    found: Waiting,
    loaded: Container[str] = (),
) -> None:
    """Count at most ``most`` tasks of a queue that the limits of their runs admit.

    Only a part of a long queue is examined, so that the cost is bounded.

    Args:
        free: Number of free slots in the pool.
        holders: Tasks that keep their slots in the pool while they wait, and need no free ones.
        loaded: Versions whose tasks are not counted.
    """
    if free <= 0 and not holders:
        return  # a full pool would be scanned in each turn
    left: dict[int, int] = {}
    for _, priority, _, entry in islice(queue, _SCANNED_ITEMS):
        if most <= 0:
            return
        if not still_waits(entry) or entry.run.row.version in loaded:
            continue
        run = entry.run
        is_holder = isinstance(entry, TaskInstance) and entry.task_no in holders
        weight = 0 if is_holder else entry.spec.slots
        of_run = left.setdefault(run.run_no, _admitted(run))
        count = min(most, free // weight if weight else 1, of_run, _admitted_at(entry))
        if count > 0:
            since = entry.queued_at if isinstance(entry, TaskInstance) else None
            found.add(count, -priority, since)
            left[run.run_no] -= count
            most -= count
            free -= count * weight


def _admitted(run: Run) -> int:
    """Return how many more tasks of a run may run at the same time."""
    at_once = run.spec.max_active_tasks
    return _UNLIMITED if at_once is None else at_once - run.running


def _admitted_at(entry: TaskInstance | MappedTask) -> int:
    """Return how many tasks of an entry the limits of the task itself admit."""
    spec = entry.spec
    count = _UNLIMITED
    if spec.max_active_tis_per_dagrun is not None:
        running = entry.run.running_at.get(entry.task_index, 0)
        count = spec.max_active_tis_per_dagrun - running
    if isinstance(entry, TaskInstance):
        return min(count, 1)
    if spec.window is not None:
        count = min(count, spec.window - entry.unfinished)
    return min(count, entry.fresh)


_UNLIMITED = 1 << 31


def _of_starts(task_index: int) -> int:
    """Return the key for set-aside entries of a task that would be deferred from their start."""
    return ~task_index


def is_start(entry: TaskInstance | MappedTask) -> bool:
    """Return whether the entry is deferred from its start, without a worker."""
    if isinstance(entry, TaskInstance) and entry.resumed is not None:
        return entry.waits_again
    return entry.spec.start_trigger is not None


def is_hosted_sensor(spec: TaskSpec) -> bool:
    """Return whether a task is a sensor that pokes in the async host, and so holds no slot."""
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
    if isinstance(entry, MappedTask):  # a cleared child waits for its trigger rule first
        return entry.has_fresh and run.states[entry.task_index] == TaskState.RUNNING
    if entry.worker >= 0 or entry.is_hosted:
        return False
    return entry.waits_for_host or entry.state is TaskState.QUEUED


def _is_full(run: Run) -> bool:
    at_once = run.spec.max_active_tasks
    return at_once is not None and run.running >= at_once


def _is_full_at(entry: TaskInstance | MappedTask) -> bool:
    """Return whether a limit of the task itself, or its window, is exhausted.

    A resumed task has no window.
    """
    return _is_past_window(entry) or _is_at_limit(entry)


def _is_past_window(entry: TaskInstance | MappedTask) -> bool:
    window = entry.spec.window
    return isinstance(entry, MappedTask) and window is not None and entry.unfinished >= window


def _is_at_limit(entry: TaskInstance | MappedTask) -> bool:
    at_once = entry.spec.max_active_tis_per_dagrun
    return at_once is not None and entry.run.running_at.get(entry.task_index, 0) >= at_once
