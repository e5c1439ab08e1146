"""Who waits for a slot, and in what order.

Ready entries wait in one heap per kind of body, pool, and host that they need. An entry is a
queued task, or a whole group whose fresh children are drawn from it one by one, so a fan-out of
a million weighs as much as one task. The order is: resumed before fresh, then priority, then
whose turn it is, see ``fairness``. What begins in a run of a backfill stands behind all that is
not of one. What keeps its room in a pool while it waits stands before all: what it holds, nobody
else gets.

What the limits of its run keep from starting is put aside with the run, in the same order,
and comes back one entry for each task that leaves its slot; so a limit costs no more with
ten thousand tasks behind it than with ten.
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
    "SENSOR_LANE",
    "START_LANE",
    "Ready",
    "Room",
    "head",
    "is_hosted_sensor",
    "is_start",
    "still_waits",
)

Room: TypeAlias = Callable[[TaskInstance | MappedTask], bool]
"""Whether its pool has room for what waits, and its host is up."""

_Line: TypeAlias = tuple[str, str]
_Key: TypeAlias = tuple[_Line, str]
"""Of a queue: lane and pool, and the role of the host, where it needs one."""

SENSOR_LANE = "sensor"
"""Hosted sensors wait for their host alone: they hold no slot, so no limit concerns them."""

START_LANE = "start"
"""What waits straight from its start holds nothing either; its window alone bounds it, and its
pool where that counts what waits."""

_HOSTLESS = frozenset({START_LANE, Body.FUNCTION.value})
"""What waits in these lanes needs no async host."""

_WORTH_SWEEPING = 64


class Ready:
    """The queues.

    Args:
        kept: What keeps its room in its pool while it waits, as ``Slots`` has it.

    Attributes:
        came_back: Somebody who had been put aside stands in a queue again, perhaps in one that
            was looked at before.
        across: Limits over all runs of a DAG, and who stands aside for those.
    """

    def __init__(self, kept: Container[TaskNo]) -> None:
        self.came_back = False
        self.across = Across(still_waits)
        self._kept = kept
        self._queues: dict[_Key, Queue] = {}
        self._swept: dict[_Key, int] = {}
        self._too_wide: list[Item] = []
        self._fairness = Fairness()

    def offer(self, entry: TaskInstance | MappedTask) -> None:
        """Let a queued task, or a group with fresh children, wait for its slots."""
        self._enqueue(self._placed(entry, self._fairness.age()))

    def _placed(self, entry: TaskInstance | MappedTask, age: int) -> Item:
        """Give it its place in the order."""
        rank, priority, _, _ = self._ranked((0, -entry.spec.priority, 0, entry))
        dag_id, cost_us = entry.run.row.dag_id, _expected(entry)
        turn = self._fairness.turn(_line(entry), rank, priority, dag_id, cost_us, age)
        return rank, priority, turn, entry

    def _ranked(self, item: Item) -> Item:
        _, priority, age, entry = item
        if isinstance(entry, TaskInstance) and entry.task_no in self._kept:
            return 0, priority, age, entry
        begins = isinstance(entry, MappedTask) or not (entry.resumed or entry.recorded)
        if not begins:
            return 1, priority, age, entry
        return 2 if entry.run.row.backfill is None else 3, priority, age, entry

    def unblock(self, task: TaskInstance) -> None:
        """A task left its slot: let those come back that its run's limits now admit."""
        self._bring_back(task.run.blocked_at.get(task.position))
        self._bring_back(task.run.blocked_at.get(_of_starts(task.position)))
        self._bring_back(task.run.blocked)

    def admit_more(self, task: TaskInstance) -> None:
        """A task was given its slot: the next of its run comes back where the limits admit it."""
        run = task.run
        if run.blocked and not _is_full(run):
            self._bring_back(run.blocked)
        aside = run.blocked_at.get(task.position)
        if aside and not _is_full_at(aside[0][3]):
            self._bring_back(aside)
        self.readmit()

    def readmit(self) -> None:
        """Let those come back that the limits over all runs of their DAG now admit."""
        for item in self.across.come_back():
            self._push(item)
            self.came_back = True

    def _pass_on(self, entry: TaskInstance | MappedTask) -> None:
        """It is kept from its start by something else than that limit: another may go on."""
        self.across.passed(entry)
        self.readmit()

    def _bring_back(self, aside: Queue | None) -> None:
        """Let the best come back that still waits."""
        while aside:
            item = heapq.heappop(aside)
            if still_waits(item[3]):
                self._push(item)
                self.came_back = True
                return

    def repool(self) -> None:
        """Pools changed their size: what was too wide for its pool may fit."""
        items, self._too_wide = self._too_wide, []
        for item in items:
            self._push(item)

    def rerank(self, pool: str) -> None:
        """Other tasks keep their room in a pool than before: put its queues in order again."""
        for ((_, name), _), queue in self._queues.items():
            if name == pool:
                queue[:] = [self._ranked(item) for item in queue]
                heapq.heapify(queue)
        self.across.rerank(pool, self._ranked)

    def best(self, lane: str, room: Room, pools: dict[str, PoolRow]) -> Queue | None:
        """Return the queue of a lane with the best head that may start, if there is one."""
        while (found := self._look(lane, room, pools)) is not None:
            queue, item = found
            if queue[0] is item:
                return queue
            # What a later queue put aside let somebody come back to the head of this one.
        return None

    def _look(self, lane: str, room: Room, pools: dict[str, PoolRow]) -> tuple[Queue, Item] | None:
        best: tuple[Queue, Item] | None = None
        first: tuple[int, int, int, int] | None = None
        for (line, _), queue in self._queues.items():
            if line[0] != lane or not self._clean(queue, lane, pools.get(line[1])):
                continue
            if not room(head(queue)):
                continue
            rank, priority, turn, _ = item = queue[0]
            order = (rank, priority, self._fairness.line_turn(line), turn)
            if first is None or order < first:
                first, best = order, (queue, item)
        return best

    def missing_hosts(self, hosts_up: Container[str]) -> set[str]:
        """Return the roles of the DAGs' own hosts that tasks wait for, and that are not up."""
        return {
            role
            for (_, role), queue in self._queues.items()
            if queue and is_own(role) and role not in hosts_up
            if any(still_waits(item[3]) for item in queue)
        }

    def draw(self, queue: Queue) -> TaskInstance:
        """Take one task from the head; a group stays until its last fresh child is drawn."""
        rank, priority, turn, entry = queue[0]
        line, cost_us = _line(entry), _expected(entry)
        self._fairness.served(line, rank, priority, turn, cost_us)
        self.across.passed(entry)
        if isinstance(entry, TaskInstance):
            heapq.heappop(queue)
            return entry
        task = fresh(entry.run, entry.position, entry.take_fresh())
        if entry.has_fresh:  # the next of it has the same rank, and a turn of its own
            dag_id, age = entry.run.row.dag_id, age_of(turn)
            turn = self._fairness.turn(line, rank, priority, dag_id, cost_us, age)
            heapq.heapreplace(queue, (rank, priority, turn, entry))
        else:
            heapq.heappop(queue)
        return task

    def _push(self, item: Item) -> None:
        """Let wait again what stood aside; what it keeps may be another than it was then."""
        self._enqueue(self._ranked(item))

    def _enqueue(self, item: Item) -> None:
        key = _key(item[3])
        queue = self._queues.setdefault(key, [])
        heapq.heappush(queue, item)
        self._sweep(key, queue)

    def _sweep(self, key: _Key, queue: Queue) -> None:
        """Drop what is stale below the head before it outgrows what is not."""
        if len(queue) > max(_WORTH_SWEEPING, 2 * self._swept.get(key, 0)):
            queue[:] = [item for item in queue if still_waits(item[3])]
            heapq.heapify(queue)
            self._swept[key] = len(queue)

    def _clean(self, queue: Queue, lane: str, pool: PoolRow | None) -> bool:
        """Put aside what may not start from the head; whether anything is left."""
        while queue:
            entry = queue[0][3]
            run = entry.run
            if not still_waits(entry):
                heapq.heappop(queue)
            elif lane == SENSOR_LANE:
                return True
            elif self._is_too_wide(entry, lane, pool):
                self._too_wide.append(heapq.heappop(queue))
                self._bring_back(run.blocked_at.get(entry.position))
                self._bring_back(run.blocked)
                self._pass_on(entry)
            elif lane == START_LANE and not _is_past_window(entry):
                return True
            elif lane == START_LANE:
                # It needs no place, so it does not stand behind one that waits for such.
                aside = run.blocked_at.setdefault(_of_starts(entry.position), [])
                heapq.heappush(aside, heapq.heappop(queue))
            elif _is_full(run):
                heapq.heappush(run.blocked, heapq.heappop(queue))
                self._pass_on(entry)
            elif _is_full_at(entry):
                self._put_aside(heapq.heappop(queue))
                self._bring_back(run.blocked)  # it gives way to another of its run
                self._pass_on(entry)
            elif self.across.is_full(entry):
                self.across.put_aside(heapq.heappop(queue))
                self._bring_back(run.blocked)
            else:
                return True
        return False

    def is_within_limits(self, task: TaskInstance) -> bool:
        """Whether the limits of its run, and of its task over all runs, admit one more."""
        return not (_is_full(task.run) or _is_full_at(task) or self.across.is_full(task))

    def _is_too_wide(
        self, entry: TaskInstance | MappedTask, lane: str, pool: PoolRow | None
    ) -> bool:
        """Whether its pool never has room for it. What has its room already needs none."""
        if pool is None or entry.spec.slots <= pool.slots:
            return False
        if lane == START_LANE:
            return pool.include_deferred and not is_hosted_sensor(entry.spec)
        return not (isinstance(entry, TaskInstance) and entry.task_no in self._kept)

    def _put_aside(self, item: Item) -> None:
        """Keep it with its run; a group that only its window holds gives way to one past it."""
        entry = item[3]
        aside = entry.run.blocked_at.setdefault(entry.position, [])
        if aside and aside[0][3] is entry:
            return  # it is there already
        if aside and not _is_at_limit(entry):
            self._push(heapq.heapreplace(aside, item))
            self.came_back = True
        else:
            heapq.heappush(aside, item)


def _expected(entry: TaskInstance | MappedTask) -> float:
    return entry.run.durations[entry.position]


def _key(entry: TaskInstance | MappedTask) -> _Key:
    line = _line(entry)
    return line, "" if line[0] in _HOSTLESS else entry.run.async_role


def _line(entry: TaskInstance | MappedTask) -> _Line:
    return _lane(entry), entry.spec.pool


def _lane(entry: TaskInstance | MappedTask) -> str:
    spec = entry.spec
    if is_start(entry):
        return START_LANE
    return SENSOR_LANE if is_hosted_sensor(spec) else spec.body.value


def _of_starts(position: int) -> int:
    """Where those of a task are put aside that wait from their start."""
    return ~position


def is_start(entry: TaskInstance | MappedTask) -> bool:
    """Whether what waits here begins with a wait of its own, for which no worker is touched."""
    if isinstance(entry, TaskInstance) and entry.resumed is not None:
        return entry.waits_again
    return entry.spec.start_trigger is not None


def is_hosted_sensor(spec: TaskSpec) -> bool:
    """Whether a task is a sensor that looks in the async host; it holds nothing anywhere."""
    return spec.sensor is not None and spec.body is Body.COROUTINE


def head(queue: Queue) -> TaskInstance | MappedTask:
    """Return what is next in a queue that is not empty."""
    return queue[0][3]


def still_waits(entry: TaskInstance | MappedTask) -> bool:
    """Whether a task, or a fresh child of a group, waits for its place at this moment."""
    run = entry.run
    if run.is_forgotten or run.clearing is not None or not run.state.is_live:
        return False
    if run.row.quarantine is not None:
        return False
    if isinstance(entry, MappedTask):  # cleared, it waits for its rule before it waits for slots
        return entry.has_fresh and run.states[entry.position] == TaskState.RUNNING
    if entry.worker >= 0 or entry.is_hosted:
        return False
    return entry.waits_for_host or entry.state is TaskState.QUEUED


def _is_full(run: Run) -> bool:
    at_once = run.spec.max_active_tasks
    return at_once is not None and run.running >= at_once


def _is_full_at(entry: TaskInstance | MappedTask) -> bool:
    """Whether its own limit, or its window, is used up; a resumed task is past its window."""
    return _is_past_window(entry) or _is_at_limit(entry)


def _is_past_window(entry: TaskInstance | MappedTask) -> bool:
    window = entry.spec.window
    return isinstance(entry, MappedTask) and window is not None and entry.unfinished >= window


def _is_at_limit(entry: TaskInstance | MappedTask) -> bool:
    at_once = entry.spec.max_active_tis_per_dagrun
    return at_once is not None and entry.run.running_at.get(entry.position, 0) >= at_once
