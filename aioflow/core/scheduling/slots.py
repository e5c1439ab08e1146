"""Who gets the next free slot: pools, limits; and which worker it is.

A worker that runs a short task is given further *claimed* ones of the same pool, weight and
version, as many as are expected to fit in ``max(5 ms, two commits)``: the slot, and with it
the room in the pool, passes from each to the next. Nothing is claimed past a task that
stands before it in the order of ``ready``.

A pool with ``include_deferred`` also counts what has begun and waits: such a task *keeps* its
room from its wait until it goes on, and goes on in that. In such a pool nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from aioflow.core.crash_trials import DAEMON, on_trial, process_on_trial
from aioflow.core.scheduling.ready import SENSOR_LANE, START_LANE, Ready, head, is_hosted_sensor
from aioflow.core.scheduling.workers import Grant, Worker, best_idle, expected_us
from aioflow.core.state.graph import is_identifier
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance
from aioflow.errors import BadPool
from aioflow.model.dag import Body, TaskSpec
from aioflow.model.ids import StartNo, TaskNo
from aioflow.model.rows import PoolRow
from aioflow.model.states import TaskState
from aioflow.protocol.inputs import WorkerUnresponsive

__all__ = ("CLAIM_LIMIT", "Slots")

CLAIM_LIMIT = 256
"""Tries a worker may hold claimed at most, however short they are."""

_LEAST_CLAIM_US = 5_000.0


class Slots:
    """The bounded places where work runs.

    Attributes:
        workers: Slots for ``def`` bodies.
        coroutines: How many ``async def`` bodies may run at once. Sensors are not counted:
            a sensor never holds a slot.
        at_work: Those that do, by number: what began first comes first.
        is_open: Whether anything is granted at all; a draining node closes.
        is_held: Nothing is granted yet, until people can see it and cancel it.
        ready: Who waits for them.
        unwritten: Starts whose results do not fit on the disk. Nothing is granted while one of
            them still has its place.
        kept: What keeps its room in a pool that counts what waits: that pool, and its weight.
    """

    def __init__(self, *, cpu_slots: int, async_slots: int) -> None:
        self.workers = [Worker(number) for number in range(cpu_slots)]
        self.coroutines = async_slots
        self.at_work: dict[TaskNo, TaskInstance] = {}
        self.is_open = True
        self.is_held = False
        self.unwritten: dict[TaskNo, StartNo] = {}
        self.kept: dict[TaskNo, tuple[str, int]] = {}
        self.ready = Ready(self.kept)
        self.pools: dict[str, PoolRow] = {}
        self._used: dict[str, int] = {}
        self._used_by_kept: dict[str, int] = {}

    @property
    def running_coroutines(self) -> int:
        """How many ``async def`` bodies run."""
        return len(self.at_work)

    # ── pools ───────────────────────────────────────────────────────────────────────────

    def set_pool(
        self, name: str, slots: int | None, memory: Memory, *, include_deferred: bool = False
    ) -> PoolRow | None:
        """Limit a pool or, with ``None``, lift its limit; return its new row.

        What runs already goes on: a pool that was made smaller drains to its new size.

        Args:
            include_deferred: Whether tasks weigh on it while they wait, too.

        Raises:
            BadPool: If the name is no name, or the size below 1.
        """
        if not is_identifier(name):
            raise BadPool(f"a pool cannot be named {name!r}; use letters, digits, _ . -")
        if slots is not None and slots < 1:
            raise BadPool(f"pool {name!r} needs at least 1 slot, got {slots}")
        row = None
        if slots is not None:
            row = PoolRow(name=name, slots=slots, include_deferred=include_deferred)
        self.put_pool(name, row, memory)
        return row

    def put_pool(self, name: str, row: PoolRow | None, memory: Memory) -> None:
        """Have a pool be as its row says; without one it has no limit."""
        before = self.pools.pop(name, None)
        if row is not None:
            self.pools[name] = row
        if _counts_deferred(before) != _counts_deferred(row):
            self._recount_kept(name, memory)
        self.ready.repool()

    def used(self, pool: str) -> int:
        """Return how many slots of a pool are taken."""
        return self._used.get(pool, 0)

    def used_by_deferred(self, pool: str) -> int:
        """Return how much of that is kept by what waits."""
        return self._used_by_kept.get(pool, 0)

    def counts_deferred(self, spec: TaskSpec) -> bool:
        """Whether a task weighs on its pool while it waits. A hosted sensor never does."""
        return _counts_deferred(self.pools.get(spec.pool)) and not is_hosted_sensor(spec)

    def _has_room(self, pool: str, weight: int) -> bool:
        row = self.pools.get(pool)
        return row is None or self._used.get(pool, 0) + weight <= row.slots

    def _may_start(self, entry: TaskInstance | MappedTask) -> bool:
        if isinstance(entry, TaskInstance) and entry.task_no in self.kept:
            return True
        spec = entry.spec
        return self._has_room(spec.pool, spec.slots)

    def _may_wait(self, entry: TaskInstance | MappedTask) -> bool:
        """Whether a task may wait straight from its start."""
        spec = entry.spec
        return not self.counts_deferred(spec) or self._has_room(spec.pool, spec.slots)

    def _take(self, pool: str, weight: int) -> None:
        self._used[pool] = self._used.get(pool, 0) + weight

    def _take_kept(self, pool: str, weight: int) -> None:
        self._take(pool, weight)
        self._used_by_kept[pool] = self._used_by_kept.get(pool, 0) + weight

    # ── entering and leaving ────────────────────────────────────────────────────────────

    def keep(self, task: TaskInstance) -> None:
        """A task that has begun waits: it keeps its room, if its pool counts that.

        For any other task, and a second time, it changes nothing.
        """
        if _is_between(task):
            self._keep(task)

    def keep_all(self, run: Run) -> None:
        """As ``keep``, for all tasks of a run that came back with a restart."""
        if self._keeps_any:
            for task in list(run.active_tasks.values()):
                self.keep(task)

    @property
    def _keeps_any(self) -> bool:
        return any(row.include_deferred for row in self.pools.values())

    def _keep(self, task: TaskInstance) -> None:
        if task.task_no not in self.kept and self.counts_deferred(task.spec):
            self.kept[task.task_no] = task.spec.pool, task.spec.slots
            self._take_kept(task.spec.pool, task.spec.slots)

    def stop_keeping(self, task: TaskInstance) -> None:
        """A task keeps no room any more, whatever it waits for."""
        if task.task_no in self.kept:
            pool, weight = self.kept.pop(task.task_no)
            self._take_kept(pool, -weight)

    def _recount_kept(self, pool: str, memory: Memory) -> None:
        """A pool counts what waits from now on, or no longer does."""
        for task in memory.active_tasks.values():
            if task.spec.pool != pool:
                continue
            self.stop_keeping(task)
            self.keep(task)
        self.ready.rerank(pool)

    def offer(self, entry: TaskInstance | MappedTask) -> None:
        """Let a queued task, or a group with fresh children, wait for its slots."""
        if isinstance(entry, TaskInstance):
            self.keep(entry)
        self.ready.offer(entry)

    def offer_again(self, run: Run) -> None:
        """Let the tasks of a run wait for their slots that do."""
        for task in run.active_tasks.objects.values():
            waits = task.state is TaskState.QUEUED and task.worker < 0
            if task.waits_for_host or (waits and not task.is_hosted):
                self.offer(task)

    def unblock(self, task: TaskInstance) -> None:
        """A task left its slot: its run's limits may admit what they had kept away."""
        self.ready.unblock(task)

    def release(self, task: TaskInstance) -> None:
        """A task ended or gave its place back; what waits now keeps its room in its pool."""
        self.stop_keeping(task)
        if task.is_hosted:
            task.is_hosted = False
            if task.spec.sensor is None:
                del self.at_work[task.task_no]
                self._take(task.spec.pool, -task.spec.slots)
                self._leave_run(task)
        if task.worker >= 0:
            self._leave_worker(task)
        self.keep(task)

    def call_back(self, task: TaskInstance) -> None:
        """A process gave a try back: behind what it is at, nothing is claimed any more."""
        worker = self.workers[task.worker]
        worker.slow = worker.current
        self.release(task)

    def note_silence(self, report: WorkerUnresponsive) -> None:
        """A worker became silent, or answers again."""
        worker = self.workers[report.worker]
        is_over = report.since is None or worker.is_idle
        worker.silence = None if is_over else report

    def note_kept_result(self, task: TaskInstance, *, disk_is_full: bool) -> None:
        """The process of a task could not write its result."""
        if disk_is_full:
            self.unwritten[task.task_no] = task.start_no
        else:
            self.unwritten.pop(task.task_no, None)

    def count_unwritten(self, memory: Memory) -> int:
        """Return how many results still do not fit on the disk."""
        found = [memory.active_tasks.objects.get(task_no) for task_no in self.unwritten]
        return sum(
            task.start_no == self.unwritten[task.task_no] and (task.is_hosted or task.worker >= 0)
            for task in found
            if task is not None
        )

    def _leave_worker(self, task: TaskInstance) -> None:
        worker = self.workers[task.worker]
        task.worker = -1
        if task.is_claimed:
            task.is_claimed = False
            worker.claims.remove(task)
        else:
            worker.silence = None
            worker.current = worker.slow = None  # its run may end, and is not held on to
        self._leave_run(task)
        if worker.is_idle:
            self._take(worker.pool, -worker.weight)
            worker.weight = 0

    def begin(self, task: TaskInstance) -> bool:
        """A claimed try begins: the slot of the one before it is its own now.

        Returns:
            Whether it was claimed; a first try holds its slot since it was granted.
        """
        if not task.is_claimed:
            return False
        worker = self.workers[task.worker]
        worker.claims.remove(task)
        worker.current = task
        task.is_claimed = False
        self.stop_keeping(task)
        return True

    def recount(self, memory: Memory) -> None:
        """Count what is taken anew from the places of all tasks, after some were read again."""
        self._used.clear()
        self._used_by_kept.clear()
        self.kept.clear()
        self.at_work.clear()
        for worker in self.workers:
            worker.current, worker.claims, worker.weight = None, [], 0
        for run in memory.runs.objects.values():
            run.running = 0
            run.running_at.clear()
        self.ready.across.recount()
        # What is folded only waits: that weighs nothing but where a pool says so.
        counted = memory.active_tasks if self._keeps_any else memory.active_tasks.objects
        for task in list(counted.values()):
            self._count(task)
        for worker in self.workers:
            if not worker.is_idle:
                self._take(worker.pool, worker.weight)

    def _count(self, task: TaskInstance) -> None:
        self.keep(task)
        if task.is_hosted and task.spec.sensor is None:
            self.at_work[task.task_no] = task
            self._take(task.spec.pool, task.spec.slots)
            self._enter_run(task)
        if task.worker < 0:
            return
        worker = self.workers[task.worker]
        worker.version = task.run.row.version
        worker.pool, worker.weight = task.spec.pool, task.spec.slots
        if task.is_claimed:
            worker.claims.append(task)
        else:
            worker.current = task
        self._enter_run(task)

    # ── granting ────────────────────────────────────────────────────────────────────────

    def grant(self, memory: Memory) -> Iterator[Grant]:
        """Yield what may start now, best first, taking its slot with it.

        The caller starts each before it asks for the next, and may stop at any time.
        """
        if not self.is_open or self.is_held:
            return
        if self.unwritten:
            if self.count_unwritten(memory):
                return
            self.unwritten.clear()
        self.ready.readmit()
        self.ready.came_back = True
        while self.ready.came_back:
            self.ready.came_back = False
            yield from self._grant_starts()
            if memory.hosts_up:
                yield from self._grant_hosted(SENSOR_LANE, memory.hosts_up)
            hosts = memory.hosts_up
            if (process := process_on_trial(memory)) is not None:
                yield from self._grant_alone(on_trial(memory), hosts)
                if process == DAEMON:
                    continue
                hosts = hosts - {process}
            if hosts:
                yield from self._grant_hosted(Body.COROUTINE.value, hosts)
            yield from self._grant_workers(memory)

    def _grant_alone(
        self, suspects: Iterable[TaskInstance], hosts_up: Container[str]
    ) -> Iterator[Grant]:
        """Grant these, and nothing else in the process that one of them may kill."""
        for task in suspects:
            if not (self._may_start(task) and self.ready.is_within_limits(task)):
                continue
            idle = [worker for worker in self.workers if worker.is_idle]
            self.ready.across.passed(task)
            if task.spec.body is Body.FUNCTION and idle:
                worker = best_idle(idle, task.run.row.version)
                self._occupy(worker, task)
                yield Grant(task, worker.number)
            elif task.spec.body is Body.COROUTINE and task.run.async_role in hosts_up:
                if self.running_coroutines >= self.coroutines:
                    return
                self._host(task)
                yield Grant(task)

    def missing_hosts(self, hosts_up: Container[str]) -> set[str]:
        """Return the roles of the DAGs' own hosts that tasks wait for, while work is granted."""
        return self.ready.missing_hosts(hosts_up) if self.is_open else set()

    def _grant_starts(self) -> Iterator[Grant]:
        while (queue := self.ready.best(START_LANE, self._may_wait, self.pools)) is not None:
            task = self.ready.draw(queue)
            self._keep(task)
            yield Grant(task, is_waiting=True)

    def _grant_hosted(self, lane: str, hosts_up: Container[str]) -> Iterator[Grant]:
        def room(entry: TaskInstance | MappedTask) -> bool:
            if entry.run.async_role not in hosts_up:
                return False
            return lane == SENSOR_LANE or self._may_start(entry)

        while lane == SENSOR_LANE or self.running_coroutines < self.coroutines:
            queue = self.ready.best(lane, room, self.pools)
            if queue is None:
                return
            task = self.ready.draw(queue)
            self._host(task)
            if lane != SENSOR_LANE:
                self.ready.admit_more(task)
            yield Grant(task)

    def _host(self, task: TaskInstance) -> None:
        self.stop_keeping(task)
        task.is_hosted = True
        if not is_hosted_sensor(task.spec):
            self.at_work[task.task_no] = task
            self._take(task.spec.pool, task.spec.slots)
            self._enter_run(task)

    def _grant_workers(self, memory: Memory) -> Iterator[Grant]:
        idle = [worker for worker in self.workers if worker.is_idle]
        while idle:
            queue = self.ready.best(Body.FUNCTION.value, self._may_start, self.pools)
            if queue is None:
                break
            task = self.ready.draw(queue)
            worker = best_idle(idle, task.run.row.version)
            idle.remove(worker)
            self._occupy(worker, task)
            self.ready.admit_more(task)
            yield Grant(task, worker.number)
        for worker in self.workers:
            if worker.current is not None:
                yield from self._claim(worker, memory)

    def _claim(self, worker: Worker, memory: Memory) -> Iterator[Grant]:
        """Claim behind a running try what is expected to fit into the horizon."""
        horizon = max(_LEAST_CLAIM_US, 2 * memory.commit_us)

        def room(entry: TaskInstance | MappedTask) -> bool:
            spec = entry.spec
            inherits = spec.pool == worker.pool and spec.slots == worker.weight
            return inherits or self._may_start(entry)

        row = self.pools.get(worker.pool)
        is_shrinking = row is not None and self.used(worker.pool) > row.slots
        # The one before it may wait, and then passes no room on.
        if worker.slow is worker.current or is_shrinking or _counts_deferred(row):
            return
        expected = worker.expected_us()
        while len(worker.claims) < CLAIM_LIMIT and expected < horizon:
            queue = self.ready.best(Body.FUNCTION.value, room, self.pools)
            if queue is None or not worker.is_like(first := head(queue)):
                return
            if isinstance(first, TaskInstance) and first.task_no in memory.unclaimed:
                return
            if expected + expected_us(head(queue)) > horizon:
                return
            task = self.ready.draw(queue)
            expected += expected_us(task)
            task.worker = worker.number
            task.is_claimed = True
            worker.claims.append(task)
            self._enter_run(task)
            self.ready.admit_more(task)
            yield Grant(task, worker.number, is_claimed=True)

    def _occupy(self, worker: Worker, task: TaskInstance) -> None:
        spec = task.spec
        self.stop_keeping(task)
        worker.current = task
        worker.version = task.run.row.version
        worker.pool, worker.weight = spec.pool, spec.slots
        task.worker = worker.number
        self._take(spec.pool, spec.slots)
        self._enter_run(task)

    def _enter_run(self, task: TaskInstance) -> None:
        """Count it against its limits: from its claim on, so that none is passed."""
        run: Run = task.run
        run.running += 1
        if task.spec.max_active_tis_per_dagrun is not None:
            run.running_at[task.position] = run.running_at.get(task.position, 0) + 1
        self.ready.across.enter(task)

    def _leave_run(self, task: TaskInstance) -> None:
        task.run.running -= 1
        if task.spec.max_active_tis_per_dagrun is not None:
            task.run.running_at[task.position] -= 1
        self.ready.across.leave(task)


def _counts_deferred(row: PoolRow | None) -> bool:
    return row is not None and row.include_deferred


def _is_between(task: TaskInstance) -> bool:
    """Whether a task waits within its try, or for the place in which it goes on after that.

    Its row alone says so, and a restart finds the same. One claimed behind another stays so
    until it begins, since it may be recalled.
    """
    if task.is_hosted or (task.worker >= 0 and not task.is_claimed):
        return False
    if task.state is TaskState.DEFERRED:
        return True
    if task.state is TaskState.QUEUED and task.spec.sensor is None and task.started_at is not None:
        return True
    is_resumed = task.spec.sensor is not None and task.resumed is not None
    return is_resumed and task.state in {TaskState.QUEUED, TaskState.SENSING}
