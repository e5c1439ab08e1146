"""Assignment of free slots to ready tasks, by pools and limits, and choice of the worker.

While a worker runs a short task, it gets further *claimed* (prefetched) tasks of the same pool,
weight and version, as many as are expected to fit in ``max(5 ms, two commits)``. Each task passes
its slot, and the pool slots that it uses, on to the next one. Tasks are claimed only in the order
of ``ready``.

Workers of other executors get tasks in the same way, but each gets only tasks of its own spec. For
how these workers come and go, see ``remote_workers``.

A pool with ``include_deferred`` also counts tasks that have started and are deferred. Such a task
*keeps* its slots while it waits, and resumes with them. Tasks of such a pool are not claimed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from aioflow.core.scheduling.ready import (
    SENSOR_QUEUE,
    START_QUEUE,
    Kind,
    Ready,
    body_kind,
    count_waiting,
    head,
    is_hosted_sensor,
    worker_spec,
)
from aioflow.core.scheduling.remote_workers import RemoteWorkers, Waiting
from aioflow.core.scheduling.worker import (
    Worker,
    best_idle,
    expected_us,
    learn_duration,
)
from aioflow.core.state.child_roles import slot_role
from aioflow.core.state.crash_trials import DAEMON, on_trial, process_on_trial
from aioflow.core.state.graph import is_identifier
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance
from aioflow.errors import BadPool
from aioflow.model.dag import Body, TaskSpec
from aioflow.model.ids import StartNo, TaskNo
from aioflow.model.rows import PoolRow
from aioflow.model.states import TaskState
from aioflow.model.workers import LOCAL, WorkerDemand, WorkerNo, WorkerSpec
from aioflow.protocol.inputs import WorkerUnresponsive

__all__ = (
    "CLAIM_LIMIT",
    "Grant",
    "Slots",
    "Worker",
    "best_idle",
    "expected_us",
    "learn_duration",
)


class Grant:
    """A try that may start now.

    Attributes:
        is_waiting: Whether the try is deferred from its start and so needs no slot.
    """

    __slots__ = ("is_claimed", "is_waiting", "task", "worker")

    def __init__(
        self,
        task: TaskInstance,
        worker: int = -1,
        *,
        is_claimed: bool = False,
        is_waiting: bool = False,
    ) -> None:
        self.task = task
        self.worker = worker
        self.is_claimed = is_claimed
        self.is_waiting = is_waiting


_UNLIMITED = 1 << 62

CLAIM_LIMIT = 256
"""Maximum number of claimed tries of a worker, no matter how short they are."""

_LEAST_CLAIM_US = 5_000.0
_LEAST_REMOTE_CLAIM_US = 20_000.0
"""Minimum claim horizon of a worker on another machine: two round trips through a busy engine."""


class Slots:
    """The limited slots in which tasks run.

    Attributes:
        workers: The local workers, for ``def`` bodies that name no other executor.
        remote: The workers of all other executors.
        retired: Remote workers that the current turn retires; see ``take_retired``.
        coroutines: How many ``async def`` bodies may run at once. Sensors are not counted, because
            a sensor never holds a slot.
        at_work: Running ``async def`` tasks by number, in the order in which they started.
        is_open: Whether slots are granted. A draining node grants none.
        is_suspended: Whether no slots are granted yet because the web server does not respond.
            Users must be able to see and cancel tasks.
        ready: The tasks that wait for slots.
        unwritten: Starts whose results do not fit on the disk. No slot is granted while one of
            these starts still holds its slot.
        unstored: Starts whose results are waiting to be stored while too many results are waiting.
            No slot is granted while one of these tasks still runs.
        pool_holds: Tasks that keep their slots in a pool that counts deferred tasks, with the pool
            and the number of slots.
    """

    def __init__(
        self,
        *,
        cpu_slots: int,
        async_slots: int,
        remote_limits: Mapping[str, int] | None = None,
    ) -> None:
        self.workers = [Worker(number) for number in range(cpu_slots)]
        self.remote = RemoteWorkers(remote_limits or {})
        self.retired: list[Worker] = []
        self.coroutines = async_slots
        self.at_work: dict[TaskNo, TaskInstance] = {}
        self.is_open = True
        self.is_suspended = False
        self.unwritten: dict[TaskNo, StartNo] = {}
        self.unstored: dict[TaskNo, StartNo] = {}
        self.pool_holds: dict[TaskNo, tuple[str, int]] = {}
        self.ready = Ready(self.pool_holds)
        self.pools: dict[str, PoolRow] = {}
        self._was_granting = False
        self._used: dict[str, int] = {}
        self._used_by_deferred: dict[str, int] = {}

    @property
    def running_coroutines(self) -> int:
        """The number of running ``async def`` bodies."""
        return len(self.at_work)

    @property
    def has_running(self) -> bool:
        """Whether any task holds a slot, in any executor."""
        return bool(self.at_work) or any(not worker.is_idle for worker in self.all_workers)

    def worker(self, number: WorkerNo) -> Worker:
        """Return the worker with a number."""
        return self.workers[number] if number < len(self.workers) else self.remote[number]

    @property
    def all_workers(self) -> Iterator[Worker]:
        """All workers, local ones first."""
        yield from self.workers
        yield from self.remote

    # ── pools ───────────────────────────────────────────────────────────────────────────

    def set_pool(
        self, name: str, slots: int | None, memory: Memory, *, include_deferred: bool = False
    ) -> PoolRow | None:
        """Limit a pool or, with ``None``, remove its limit. Return its new row.

        Running tasks continue, so a pool that was made smaller drains to its new size.

        Args:
            include_deferred: Whether deferred tasks use slots of the pool as well.

        Raises:
            BadPool: If the name is not valid, or the size is below 1.
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
        """Configure a pool from its row. A pool without a row has no limit."""
        self.remote.may_demand = True
        before = self.pools.pop(name, None)
        if row is not None:
            self.pools[name] = row
        if _counts_deferred(before) != _counts_deferred(row):
            self._recount_deferred(name, memory)
        self.ready.repool()

    def used(self, pool: str) -> int:
        """Return how many slots of a pool are in use."""
        return self._used.get(pool, 0)

    def used_by_deferred(self, pool: str) -> int:
        """Return how many slots of a pool are used by waiting tasks."""
        return self._used_by_deferred.get(pool, 0)

    def counts_deferred(self, spec: TaskSpec) -> bool:
        """Return whether a task uses its pool while it is deferred. A hosted sensor never does."""
        return _counts_deferred(self.pools.get(spec.pool)) and not is_hosted_sensor(spec)

    def _has_capacity(self, pool: str, weight: int) -> bool:
        row = self.pools.get(pool)
        return row is None or self._used.get(pool, 0) + weight <= row.slots

    def _may_start(self, entry: TaskInstance | MappedTask) -> bool:
        if isinstance(entry, TaskInstance) and entry.task_no in self.pool_holds:
            return True
        spec = entry.spec
        return self._has_capacity(spec.pool, spec.slots)

    def _may_wait(self, entry: TaskInstance | MappedTask) -> bool:
        """Return whether the pool of a task allows it to be deferred from its start."""
        spec = entry.spec
        return not self.counts_deferred(spec) or self._has_capacity(spec.pool, spec.slots)

    def _take(self, pool: str, weight: int) -> None:
        if pool in self.pools:
            self.remote.may_demand = True
        self._used[pool] = self._used.get(pool, 0) + weight

    def _take_for_deferred(self, pool: str, weight: int) -> None:
        self._take(pool, weight)
        self._used_by_deferred[pool] = self._used_by_deferred.get(pool, 0) + weight

    # ── entering and leaving ────────────────────────────────────────────────────────────

    def hold_pool_slots(self, task: TaskInstance) -> None:
        """Let a task that waits mid-try keep its slots, if its pool counts deferred tasks.

        A resumed task of a quarantined run loses its slots, because it does not continue. Other
        tasks are ignored. Idempotent.
        """
        if _is_between(task):
            self._hold_pool_slots(task)
        elif task.run.row.quarantine is not None:
            self.free_pool_slots(task)

    def hold_pool_slots_of(self, run: Run) -> None:
        """Apply ``hold_pool_slots`` to all tasks of a run that was restored or quarantined."""
        if self._any_counts_deferred:
            for task in list(run.active_tasks.values()):
                self.hold_pool_slots(task)

    @property
    def _any_counts_deferred(self) -> bool:
        return any(row.include_deferred for row in self.pools.values())

    def _hold_pool_slots(self, task: TaskInstance) -> None:
        if task.task_no not in self.pool_holds and self.counts_deferred(task.spec):
            self.pool_holds[task.task_no] = task.spec.pool, task.spec.slots
            self._take_for_deferred(task.spec.pool, task.spec.slots)

    def free_pool_slots(self, task: TaskInstance) -> None:
        """Free the slots that a task keeps, no matter what it waits for."""
        if task.task_no in self.pool_holds:
            pool, weight = self.pool_holds.pop(task.task_no)
            self._take_for_deferred(pool, -weight)

    def _recount_deferred(self, pool: str, memory: Memory) -> None:
        """Recount a pool that has started or stopped counting deferred tasks."""
        for task in memory.active_tasks.values():
            if task.spec.pool != pool:
                continue
            self.free_pool_slots(task)
            self.hold_pool_slots(task)
        self.ready.rerank(pool)

    def offer(self, entry: TaskInstance | MappedTask) -> None:
        """Queue a task, or a mapped task with pending children, for its slots."""
        if entry.spec.executor != LOCAL:
            self.remote.may_demand = True
        if isinstance(entry, TaskInstance):
            self.hold_pool_slots(entry)
        self.ready.offer(entry)

    def offer_again(self, run: Run) -> None:
        """Queue again all tasks of a run that wait for slots."""
        for task in run.active_tasks.objects.values():
            waits = task.state is TaskState.QUEUED and task.worker < 0
            if task.waits_for_host or (waits and not task.is_hosted):
                self.offer(task)

    def unblock(self, task: TaskInstance) -> None:
        """Requeue set-aside entries that limits of their run admit after a task left its slot."""
        self.ready.unblock(task)

    def release(self, task: TaskInstance) -> None:
        """Free the slot of a task that ended or waits. A waiting task may keep its pool slots."""
        self.free_pool_slots(task)
        if task.is_hosted:
            task.is_hosted = False
            if task.spec.sensor is None:
                del self.at_work[task.task_no]
                self._take(task.spec.pool, -task.spec.slots)
                self._uncount_in_run(task)
        if task.worker >= 0:
            self._leave_worker(task)
        self.hold_pool_slots(task)

    def call_back(self, task: TaskInstance) -> None:
        """Take back a try from a process. No more tasks are claimed behind the running try."""
        worker = self.worker(task.worker)
        worker.slow = worker.current
        self.release(task)

    def note_silence(self, report: WorkerUnresponsive) -> None:
        """Record that a worker stopped responding, or responds again."""
        is_local = report.worker < len(self.workers)
        worker = self.workers[report.worker] if is_local else self.remote.find(report.worker)
        if worker is not None:  # a remote worker may have ended
            is_over = report.since is None or worker.is_idle
            worker.silence = None if is_over else report
            worker.is_lost = report.since is not None and not is_local
            self.remote.may_demand |= not is_local
            if worker.is_held and not worker.is_lost:
                self._free(worker)

    def note_delayed_result(self, task: TaskInstance, *, disk_is_full: bool) -> None:
        """Record whether the result of a task is delayed because the disk is full."""
        if disk_is_full:
            self.unwritten[task.task_no] = task.start_no
        else:
            self.unwritten.pop(task.task_no, None)

    def count_unwritten(self, memory: Memory) -> int:
        """Return how many results still cannot be written to the disk."""
        found = [memory.active_tasks.objects.get(task_no) for task_no in self.unwritten]
        return sum(
            task.start_no == self.unwritten[task.task_no] and (task.is_hosted or task.worker >= 0)
            for task in found
            if task is not None
        )

    def count_unstored(self, memory: Memory) -> int:
        """Return how many results in the backlog still wait to be stored."""
        found = [memory.active_tasks.objects.get(task_no) for task_no in self.unstored]
        return sum(
            task.start_no == self.unstored[task.task_no] and task.state is TaskState.RUNNING
            for task in found
            if task is not None
        )

    def _leave_worker(self, task: TaskInstance) -> None:
        worker = self.worker(task.worker)
        task.worker = -1
        if task.is_claimed:
            task.is_claimed = False
            worker.claims.remove(task)
        else:
            worker.silence = None
            worker.current = worker.slow = None  # a reference would keep an ended run alive
        self._uncount_in_run(task)
        if worker.is_idle and (worker.is_leaving or not worker.is_lost):
            self._free(worker)

    def _free(self, worker: Worker) -> None:
        """Free the pool slots of an idle worker. Forget the worker if it has ended."""
        self._take(worker.pool, -worker.weight)
        worker.weight = 0
        if worker.is_leaving:
            self.remote.drop_if_over(worker)

    def remove_worker(self, number: WorkerNo) -> None:
        """Remove a remote worker whose process has ended. Tries in it may still be known."""
        worker = self.remote.find(number)
        if worker is not None and worker.is_held:
            self._free(worker)
        self.remote.remove(number)

    def begin(self, task: TaskInstance) -> bool:
        """Start a claimed try, which takes over the slot of the previous try.

        Returns:
            Whether the try was claimed. If not, it has held its own slot since the grant.
        """
        if not task.is_claimed:
            return False
        worker = self.worker(task.worker)
        worker.claims.remove(task)
        worker.current = task
        task.is_claimed = False
        self.free_pool_slots(task)
        return True

    def recount(self, memory: Memory) -> None:
        """Recount the used slots from all tasks, after some tasks were restored."""
        self._used.clear()
        self._used_by_deferred.clear()
        self.pool_holds.clear()
        self.at_work.clear()
        for worker in self.all_workers:
            if not worker.is_held:
                worker.weight = 0
            worker.current, worker.claims = None, []
        self.remote.forget_demand()
        self.retired.clear()
        for run in memory.runs.objects.values():
            run.running = 0
            run.running_at.clear()
        self.ready.across.recount()
        # Packed tasks only wait, so they use slots only if a pool counts deferred tasks.
        counted = memory.active_tasks if self._any_counts_deferred else memory.active_tasks.objects
        for task in list(counted.values()):
            self._count(task)
        for worker in list(self.all_workers):
            if worker.weight:
                self._take(worker.pool, worker.weight)
            elif worker.is_leaving:
                self.remote.drop_if_over(worker)

    def _count(self, task: TaskInstance) -> None:
        self.hold_pool_slots(task)
        if task.is_hosted and task.spec.sensor is None:
            self.at_work[task.task_no] = task
            self._take(task.spec.pool, task.spec.slots)
            self._count_in_run(task)
        if task.worker < 0:
            return
        if task.worker < len(self.workers):
            worker = self.workers[task.worker]
        else:
            worker = self.remote.restore(task.worker, worker_spec(task))
        worker.version = task.run.row.version
        worker.pool, worker.weight = task.spec.pool, task.spec.slots
        if task.is_claimed:
            worker.claims.append(task)
        else:
            worker.current = task
        self._count_in_run(task)

    # ── granting ────────────────────────────────────────────────────────────────────────

    def grant(self, memory: Memory) -> Iterator[Grant]:
        """Yield tasks that may start now, best first. The slot of each is already reserved.

        The caller starts each task before it requests the next one, and may stop at any time.
        """
        if not self.is_open or self.is_suspended:
            return
        if self.unwritten:
            if self.count_unwritten(memory):
                return
            self.unwritten.clear()
        if self.unstored:
            if self.count_unstored(memory):
                return
            self.unstored.clear()
        self.ready.readmit()
        self.ready.has_unblocked = True
        while self.ready.has_unblocked:
            self.ready.has_unblocked = False
            yield from self._grant_starts()
            if memory.hosts_up:
                yield from self._grant_hosted(SENSOR_QUEUE, memory.hosts_up)
            hosts = memory.hosts_up
            if (process := process_on_trial(memory)) is not None:
                yield from self._grant_alone(on_trial(memory), hosts)
                if process == DAEMON:
                    continue
                hosts = hosts - {process}
            if hosts:
                yield from self._grant_hosted(Body.COROUTINE, hosts)
            yield from self._grant_workers(memory)
            if self.remote:
                yield from self._grant_remote(memory)

    def _grant_alone(
        self, suspects: Iterable[TaskInstance], hosts_up: Container[str]
    ) -> Iterator[Grant]:
        """Grant slots in the process on trial to these suspects only, one of which may kill it."""
        for task in suspects:
            if not (self._may_start(task) and self.ready.is_within_limits(task)):
                continue
            self.ready.across.passed(task)
            if task.spec.body is Body.FUNCTION:
                worker = self._idle_worker(task) if _has_workers(task, hosts_up) else None
                if worker is not None:
                    self._occupy(worker, task)
                    yield Grant(task, worker.number)
            elif task.run.async_role in hosts_up:
                if self.running_coroutines >= self.coroutines:
                    return
                self._host(task)
                yield Grant(task)

    def missing_hosts(self, hosts_up: Container[str]) -> set[str]:
        """Return roles of on-demand hosts that tasks wait for; empty if no slots are granted."""
        return self.ready.missing_hosts(hosts_up) if self.is_open else set()

    def _grant_starts(self) -> Iterator[Grant]:
        while (queue := self.ready.best_queue(START_QUEUE, self._may_wait, self.pools)) is not None:
            task = self.ready.pop(queue)
            self._hold_pool_slots(task)
            yield Grant(task, is_waiting=True)

    def _grant_hosted(self, kind: str, hosts_up: Container[str]) -> Iterator[Grant]:
        def admits(entry: TaskInstance | MappedTask) -> bool:
            if entry.run.async_role not in hosts_up:
                return False
            return kind == SENSOR_QUEUE or self._may_start(entry)

        while kind == SENSOR_QUEUE or self.running_coroutines < self.coroutines:
            queue = self.ready.best_queue(kind, admits, self.pools)
            if queue is None:
                return
            task = self.ready.pop(queue)
            self._host(task)
            if kind != SENSOR_QUEUE:
                self.ready.admit_more(task)
            yield Grant(task)

    def _host(self, task: TaskInstance) -> None:
        self.free_pool_slots(task)
        task.is_hosted = True
        if not is_hosted_sensor(task.spec):
            self.at_work[task.task_no] = task
            self._take(task.spec.pool, task.spec.slots)
            self._count_in_run(task)

    def _grant_workers(self, memory: Memory) -> Iterator[Grant]:
        idle = [worker for worker in self.workers if worker.is_idle]

        def admits(entry: TaskInstance | MappedTask) -> bool:
            return _has_workers(entry, memory.hosts_up) and self._may_start(entry)

        while idle:
            queue = self.ready.best_queue(Body.FUNCTION, admits, self.pools)
            if queue is None:
                break
            task = self.ready.pop(queue)
            worker = best_idle(idle, task.run.row.version)
            idle.remove(worker)
            self._occupy(worker, task)
            self.ready.admit_more(task)
            yield Grant(task, worker.number)
        for worker in self.workers:
            if worker.current is not None:
                yield from self._claim(worker, Body.FUNCTION, memory)

    def _idle_worker(self, task: TaskInstance) -> Worker | None:
        """Return the best idle worker for a task; ``None`` if there is none now."""
        version = task.run.row.version
        kind = body_kind(task)
        if isinstance(kind, WorkerSpec):
            return self._idle_remote(self.remote.of_spec(kind), version)
        idle = [worker for worker in self.workers if worker.is_idle]
        return best_idle(idle, version) if idle else None

    def _idle_remote(self, workers: list[Worker], version: str) -> Worker | None:
        """Return an idle worker that can run a version.

        If all idle workers have loaded other code, return ``None``, and retire idle workers: as
        many as there are tries waiting for code that no idle worker has.
        """
        idle = [worker for worker in workers if worker.is_idle and not worker.is_leaving]
        if not idle:
            return None
        worker = best_idle(idle, version)
        if worker.version in {"", version}:
            return worker
        waiting = self._waiting(worker.spec, {one.version for one in idle})
        # A suspect of a crash trial is not in any queue.
        count = waiting[worker.spec].count if worker.spec in waiting else 1
        self.retired += self.remote.replace(idle, max(count, 1))
        return None

    def _grant_remote(self, memory: Memory) -> Iterator[Grant]:
        for spec in self.remote.specs:
            workers = self.remote.of_spec(spec)
            yield from self._grant_idle_remote(spec, workers)
            for worker in workers:
                if worker.current is not None and not worker.is_leaving:
                    yield from self._claim(worker, spec, memory)

    def _grant_idle_remote(self, spec: WorkerSpec, workers: list[Worker]) -> Iterator[Grant]:
        """Grant the idle workers of one spec.

        If none of them has the code of a task, the task waits for a replacement. Meanwhile, tasks
        of other pools start if an idle worker has their code.
        """
        is_replacing = False

        def idle() -> Iterator[Worker]:
            return (worker for worker in workers if worker.is_idle and not worker.is_leaving)

        def admits(entry: TaskInstance | MappedTask) -> bool:
            if is_replacing and all(one.version != entry.run.row.version for one in idle()):
                return False
            return self._may_start(entry)

        while any(True for _ in idle()):
            queue = self.ready.best_queue(spec, admits, self.pools)
            if queue is None:
                return
            worker = self._idle_remote(workers, head(queue).run.row.version)
            if worker is None:
                is_replacing = True
                continue
            task = self.ready.pop(queue)
            self._occupy(worker, task)
            self.ready.admit_more(task)
            yield Grant(task, worker.number)

    def take_retired(self) -> list[Worker]:
        """Return the remote workers that the turn retires, each only once."""
        retired, self.retired = self.retired, []
        return retired

    def demand(self, runs: Iterable[Run], *, granting: bool) -> tuple[WorkerDemand, ...] | None:
        """Return the complete demand for remote workers; ``None`` if it has not changed.

        The demand is computed only if it may have changed: because of tasks of the runs that the
        turn touched, workers, or pools, or because tasks may now start or no longer start.

        Args:
            runs: The runs that the turn touched.
            granting: Whether waiting tasks may start on this node now.
        """
        is_granting = granting and self.is_open
        if not (
            self.remote.may_demand
            or is_granting is not self._was_granting
            or any(run.graph.has_remote for run in runs)
        ):
            return None
        self._was_granting, self.remote.may_demand = is_granting, False
        waiting = self._waiting() if is_granting else {}
        return self.remote.demand({spec: one for spec, one in waiting.items() if one.count})

    def _waiting(
        self, only: WorkerSpec | None = None, loaded: Container[str] = ()
    ) -> dict[WorkerSpec, Waiting]:
        """Count the tasks that wait for remote workers and that limits admit.

        Args:
            only: Count only tasks of this spec.
            loaded: Versions whose tasks are not counted.
        """
        waiting: dict[WorkerSpec, Waiting] = {}
        for spec, pool, queue in self.ready.remote_queues():
            if only not in {None, spec}:
                continue
            found = waiting.setdefault(spec, Waiting())
            most = self.remote.limit(spec.executor) - found.count
            row = self.pools.get(pool)
            free = _UNLIMITED if row is None else row.slots - self.used(pool)
            count_waiting(queue, most, free, self.pool_holds, found, loaded)
        return waiting

    def _claim(self, worker: Worker, kind: Kind, memory: Memory) -> Iterator[Grant]:
        """Claim tasks to follow a running try, as many as should fit within the horizon."""
        least = _LEAST_CLAIM_US if kind == Body.FUNCTION else _LEAST_REMOTE_CLAIM_US
        horizon = max(least, 2 * memory.commit_us)

        def admits(entry: TaskInstance | MappedTask) -> bool:
            if not _has_workers(entry, memory.hosts_up):
                return False
            spec = entry.spec
            inherits = spec.pool == worker.pool and spec.slots == worker.weight
            return inherits or self._may_start(entry)

        row = self.pools.get(worker.pool)
        is_shrinking = row is not None and self.used(worker.pool) > row.slots
        # If the pool counts deferred tasks, the try before a claim may be deferred and keep its
        # slots, so it could not pass them on.
        if worker.slow is worker.current or is_shrinking or _counts_deferred(row):
            return
        expected = worker.expected_us()
        while len(worker.claims) < CLAIM_LIMIT and expected < horizon:
            queue = self.ready.best_queue(kind, admits, self.pools)
            if queue is None or not worker.is_like(first := head(queue)):
                return
            if isinstance(first, TaskInstance) and first.task_no in memory.unclaimed:
                return
            if expected + expected_us(head(queue)) > horizon:
                return
            task = self.ready.pop(queue)
            expected += expected_us(task)
            task.worker = worker.number
            task.is_claimed = True
            worker.claims.append(task)
            self._count_in_run(task)
            self.ready.admit_more(task)
            yield Grant(task, worker.number, is_claimed=True)

    def _occupy(self, worker: Worker, task: TaskInstance) -> None:
        spec = task.spec
        self.free_pool_slots(task)
        worker.current = task
        worker.version = task.run.row.version
        worker.pool, worker.weight = spec.pool, spec.slots
        task.worker = worker.number
        self._take(spec.pool, spec.slots)
        self._count_in_run(task)

    def _count_in_run(self, task: TaskInstance) -> None:
        """Count a task against its limits from when it is claimed, so that no limit is exceeded."""
        run: Run = task.run
        run.running += 1
        if task.spec.max_active_tis_per_dagrun is not None:
            run.running_at[task.task_index] = run.running_at.get(task.task_index, 0) + 1
        self.ready.across.count(task)

    def _uncount_in_run(self, task: TaskInstance) -> None:
        task.run.running -= 1
        if task.spec.max_active_tis_per_dagrun is not None:
            task.run.running_at[task.task_index] -= 1
        self.ready.across.uncount(task)


def _has_workers(entry: TaskInstance | MappedTask, hosts_up: Container[str]) -> bool:
    """Return whether local workers can be started in the interpreter that an entry needs."""
    spec = entry.run.spec
    return not spec.interpreter or entry.spec.executor != LOCAL or slot_role(spec) in hosts_up


def _counts_deferred(row: PoolRow | None) -> bool:
    return row is not None and row.include_deferred


def _is_between(task: TaskInstance) -> bool:
    """Return whether the task is mid-try without a slot: deferred, or resumed and queued for one.

    Derived from the row alone, so a restart reaches the same result. A claimed task counts until it
    starts, because it may be recalled. An interrupted try does not count: it has lost its slots and
    must queue for them again, because other tasks may have them by now.
    """
    if task.is_hosted or (task.worker >= 0 and not task.is_claimed):
        return False
    if task.state is TaskState.DEFERRED:
        return True
    if task.started_at is None or task.run.row.quarantine is not None:
        return False
    if task.spec.sensor is None:
        return task.state is TaskState.QUEUED
    return task.resumed is not None and task.state in {TaskState.QUEUED, TaskState.SENSING}
