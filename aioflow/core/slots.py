"""Who gets the next free slot: pools, priority, limits; and which worker it is.

Ready entries wait in one heap per kind of body and pool. An entry is a queued task, or a
whole group whose fresh children are drawn from it one by one, so a fan-out of a million
weighs as much as one task. The order is: resumed before fresh, then priority, then age.

A worker that runs a short task is given further *claimed* ones of the same pool, weight and
version, as many as are expected to fit in ``max(5 ms, two commits)``: the slot, and with it
the room in the pool, passes from each to the next.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from aioflow.core.graph import is_identifier
from aioflow.core.memory import Group, Live, Memory, Run
from aioflow.errors import BadPool
from aioflow.model import DEFAULT_POOL, Body, TaskSpec, TaskState
from aioflow.rows import PoolRow

__all__ = ("CLAIM_LIMIT", "Grant", "Slots", "Worker")

CLAIM_LIMIT = 64
"""Tries a worker may hold claimed at most, however short they are."""

_LEAST_CLAIM_US = 5_000.0
_UNKNOWN_US = 1e12
_SHORTEST_US = 20.0
"""A try costs at least this much in a worker, even if it does nothing."""


class Worker:
    """One slot.

    Attributes:
        current: The try that runs in it.
        claims: Sent behind it, in the order in which they will begin.
        pool: Where its slot counts, as long as it has anything.
    """

    __slots__ = ("claims", "current", "number", "pool", "version", "weight")

    def __init__(self, number: int) -> None:
        self.number = number
        self.version = ""
        self.current: Live | None = None
        self.claims: list[Live] = []
        self.pool = DEFAULT_POOL
        self.weight = 0

    @property
    def is_idle(self) -> bool:
        """Whether it could begin something else now."""
        return self.current is None and not self.claims

    def expected_us(self) -> float:
        """Return how long what it has is expected to take."""
        total = 0.0 if self.current is None else _expected(self.current)
        return total + sum(_expected(live) for live in self.claims)


class Grant:
    """A try that may start now."""

    __slots__ = ("is_claimed", "live", "worker")

    def __init__(self, live: Live, worker: int = -1, *, is_claimed: bool = False) -> None:
        self.live = live
        self.worker = worker
        self.is_claimed = is_claimed


class Slots:
    """The bounded places where work runs, and who waits for them.

    Attributes:
        workers: Slots for ``def`` bodies.
        coroutines: How many ``async def`` bodies may run at once. Sensors are not counted:
            a sensor never holds a slot.
        running_coroutines: How many do.
        is_open: Whether anything is granted at all; a draining node closes.
    """

    def __init__(self, *, cpu_slots: int, async_slots: int) -> None:
        self.workers = [Worker(number) for number in range(cpu_slots)]
        self.coroutines = async_slots
        self.running_coroutines = 0
        self.is_open = True
        self.pools: dict[str, PoolRow] = {}
        self._used: dict[str, int] = {}
        self._queues: dict[tuple[str, str], list[tuple[int, int, int, Live | Group]]] = {}
        self._age = 0

    # ── pools ───────────────────────────────────────────────────────────────────────────

    def set_pool(self, name: str, slots: int | None) -> PoolRow | None:
        """Limit a pool or, with ``None``, lift its limit; return its new row.

        What runs already goes on: a pool that was made smaller drains to its new size.

        Raises:
            BadPool: If the name is no name, or the size below 1.
        """
        if not is_identifier(name):
            raise BadPool(f"a pool cannot be named {name!r}; use letters, digits, _ . -")
        if slots is None:
            self.pools.pop(name, None)
            return None
        if slots < 1:
            raise BadPool(f"pool {name!r} needs at least 1 slot, got {slots}")
        row = self.pools[name] = PoolRow(name=name, slots=slots)
        return row

    # ── entering and leaving ────────────────────────────────────────────────────────────

    def offer(self, entry: Live | Group) -> None:
        """Let a queued task, or a group with fresh children, wait for its slots."""
        spec = entry.run.spec.tasks[entry.position]
        fresh = isinstance(entry, Group) or entry.wait is None
        lane = "sensor" if _is_hosted_sensor(spec) else spec.body.value
        self._age += 1
        heapq.heappush(
            self._queues.setdefault((lane, spec.pool), []),
            (int(fresh), -spec.priority, self._age, entry),
        )

    def unblock(self, run: Run) -> None:
        """A task of the run left its slot: its limits may admit what they had kept away."""
        blocked, run.blocked = run.blocked, []
        for entry in blocked:
            self.offer(entry)

    def release(self, live: Live) -> None:
        """A task ended or gave its place back. Without a place it changes nothing."""
        if live.is_hosted:
            live.is_hosted = False
            if live.spec.sensor is None:
                self.running_coroutines -= 1
                self._leave(live)
        if live.worker < 0:
            return
        worker = self.workers[live.worker]
        live.worker = -1
        if live.is_claimed:
            live.is_claimed = False
            if live in worker.claims:
                worker.claims.remove(live)
        elif worker.current is live:
            worker.current = None
            _leave_run(live)
        if worker.is_idle:
            self._give_back(worker.pool, worker.weight)
            worker.weight = 0

    def begin(self, live: Live) -> bool:
        """A claimed try begins: the slot of the one before it is its own now.

        Returns:
            Whether it was claimed; a first try holds its slot since it was granted.
        """
        if not live.is_claimed:
            return False
        worker = self.workers[live.worker]
        worker.claims.remove(live)
        worker.current = live
        live.is_claimed = False
        _enter_run(live)
        return True

    def recount(self, memory: Memory) -> None:
        """Count what is taken anew from the places of all tasks, after some were read again."""
        self._used.clear()
        self.running_coroutines = 0
        for worker in self.workers:
            worker.current, worker.claims, worker.weight = None, [], 0
        for run in memory.runs.values():
            run.running = 0
            run.running_at.clear()
        for live in memory.live.values():
            self._count(live)
        for worker in self.workers:
            if not worker.is_idle:
                self._take(worker.pool, worker.weight)

    def _count(self, live: Live) -> None:
        if live.is_hosted and live.spec.sensor is None:
            self.running_coroutines += 1
            self._take(live.spec.pool, live.spec.slots)
            _enter_run(live)
        if live.worker < 0:
            return
        worker = self.workers[live.worker]
        worker.pool, worker.weight = live.spec.pool, live.spec.slots
        if live.is_claimed:
            worker.claims.append(live)
        else:
            worker.current = live
            _enter_run(live)

    # ── granting ────────────────────────────────────────────────────────────────────────

    def grant(self, memory: Memory) -> Iterator[Grant]:
        """Yield what may start now, best first, taking its slot with it.

        The caller starts each before it asks for the next, and may stop at any time.
        """
        if not self.is_open:
            return
        if "async" in memory.hosts_up:
            yield from self._grant_hosted("sensor")
            yield from self._grant_hosted(Body.COROUTINE.value)
        yield from self._grant_workers(memory.commit_us)

    def _grant_hosted(self, lane: str) -> Iterator[Grant]:
        while lane == "sensor" or self.running_coroutines < self.coroutines:
            live = self._next(lane)
            if live is None:
                return
            live.is_hosted = True
            if lane != "sensor":
                self.running_coroutines += 1
                self._take(live.spec.pool, live.spec.slots)
                _enter_run(live)
            yield Grant(live)

    def _grant_workers(self, commit_us: float) -> Iterator[Grant]:
        idle = [worker for worker in self.workers if worker.is_idle]
        while idle:
            live = self._next(Body.FUNCTION.value)
            if live is None:
                return
            worker = _best_idle(idle, live.run.row.version)
            idle.remove(worker)
            self._occupy(worker, live)
            yield Grant(live, worker.number)
        horizon = max(_LEAST_CLAIM_US, 2 * commit_us)
        for worker in self.workers:
            yield from self._claim(worker, horizon)

    def _claim(self, worker: Worker, horizon: float) -> Iterator[Grant]:
        """Claim behind a running try what is expected to fit into the horizon."""
        if worker.current is None:
            return
        expected = worker.expected_us()
        while len(worker.claims) < CLAIM_LIMIT and expected < horizon:
            live = self._next_like(worker, horizon - expected)
            if live is None:
                return
            expected += _expected(live)
            live.worker = worker.number
            live.is_claimed = True
            worker.claims.append(live)
            yield Grant(live, worker.number, is_claimed=True)

    def _occupy(self, worker: Worker, live: Live) -> None:
        spec = live.spec
        worker.current = live
        worker.version = live.run.row.version
        worker.pool, worker.weight = spec.pool, spec.slots
        live.worker = worker.number
        self._take(spec.pool, spec.slots)
        _enter_run(live)

    # ── the queues ──────────────────────────────────────────────────────────────────────

    def _next(self, lane: str) -> Live | None:
        """Take the best entry of a lane whose pool has room for it."""
        while True:
            queue = self._best_queue(lane)
            if queue is None:
                return None
            live = _draw(queue)
            if live is not None:
                return live

    def _best_queue(self, lane: str) -> list[tuple[int, int, int, Live | Group]] | None:
        best = None
        for (kind, pool), queue in self._queues.items():
            if kind != lane or not _clean(queue):
                continue
            weight = queue[0][3].run.spec.tasks[queue[0][3].position].slots
            if self._has_room(pool, weight) and (best is None or queue[0] < best[0]):
                best = queue
        return best

    def _next_like(self, worker: Worker, fits_us: float) -> Live | None:
        """Take the head of the worker's own queue if it can follow there."""
        queue = self._queues.get((Body.FUNCTION.value, worker.pool))
        if queue is None or not _clean(queue):
            return None
        entry = queue[0][3]
        spec = entry.run.spec.tasks[entry.position]
        alike = entry.run.row.version == worker.version and spec.slots == worker.weight
        expected = entry.run.durations[entry.position] or _UNKNOWN_US
        if not alike or expected > fits_us:
            return None
        return _draw(queue)

    def _has_room(self, pool: str, weight: int) -> bool:
        row = self.pools.get(pool)
        return row is None or self._used.get(pool, 0) + weight <= row.slots

    def _take(self, pool: str, weight: int) -> None:
        self._used[pool] = self._used.get(pool, 0) + weight

    def _give_back(self, pool: str, weight: int) -> None:
        self._used[pool] = self._used.get(pool, 0) - weight

    def _leave(self, live: Live) -> None:
        self._give_back(live.spec.pool, live.spec.slots)
        _leave_run(live)

    def used(self, pool: str) -> int:
        """Return how many slots of a pool are taken."""
        return self._used.get(pool, 0)

    def waiting(self) -> int:
        """Return how many entries wait; a group counts as its fresh children."""
        total = 0
        for queue in self._queues.values():
            for _, _, _, entry in queue:
                total += entry.width - entry.cursor if isinstance(entry, Group) else 1
        return total


def _is_hosted_sensor(spec: TaskSpec) -> bool:
    return spec.sensor is not None and spec.body is Body.COROUTINE


def _expected(live: Live) -> float:
    return max(live.run.durations[live.position] or _UNKNOWN_US, _SHORTEST_US)


def _best_idle(idle: list[Worker], version: str) -> Worker:
    for worker in idle:
        if worker.version == version:
            return worker
    return next((worker for worker in idle if not worker.version), idle[0])


def _clean(queue: list[tuple[int, int, int, Live | Group]]) -> bool:
    """Drop what no longer waits from the head; whether anything is left that may start."""
    while queue:
        entry = queue[0][3]
        if not _still_waits(entry):
            heapq.heappop(queue)
        elif not _admits(entry):
            heapq.heappop(queue)
            entry.run.blocked.append(entry)
        else:
            return True
    return False


def _still_waits(entry: Live | Group) -> bool:
    run = entry.run
    if run.is_forgotten or run.row.quarantine is not None or not run.state.is_live:
        return False
    if isinstance(entry, Group):
        return entry.has_fresh
    hosted_again = entry.state is TaskState.SENSING and not entry.is_hosted
    queued = entry.state is TaskState.QUEUED and entry.worker < 0 and not entry.is_hosted
    return queued or hosted_again


def _admits(entry: Live | Group) -> bool:
    """Whether the limits of its run let it start; a resumed task is past its window."""
    run = entry.run
    spec = run.spec.tasks[entry.position]
    in_all, at_once = run.spec.max_active_tasks, spec.max_active_tis_per_dagrun
    if in_all is not None and run.running >= in_all:
        return False
    if at_once is not None and run.running_at.get(entry.position, 0) >= at_once:
        return False
    if isinstance(entry, Group) and spec.window is not None:
        return entry.unfinished < spec.window
    return True


def _draw(queue: list[tuple[int, int, int, Live | Group]]) -> Live | None:
    """Take one task from the head; a group stays until its last fresh child is drawn."""
    entry = queue[0][3]
    if isinstance(entry, Live):
        heapq.heappop(queue)
        return entry
    index = entry.cursor
    live = Live(entry.run, entry.first_task_no + index, entry.position, index)
    entry.cursor = index + 1
    if not entry.has_fresh:
        heapq.heappop(queue)
    return live


def _enter_run(live: Live) -> None:
    run = live.run
    run.running += 1
    if live.spec.max_active_tis_per_dagrun is not None:
        run.running_at[live.position] = run.running_at.get(live.position, 0) + 1


def _leave_run(live: Live) -> None:
    run = live.run
    run.running -= 1
    if live.spec.max_active_tis_per_dagrun is not None:
        run.running_at[live.position] -= 1
