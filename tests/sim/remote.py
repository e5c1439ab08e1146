"""Workers of another executor, simulated. They start on demand, and may die or be lost at any time.

They keep the guarantees of a backend and of the daemon's side of it, and no others: the death of a
worker is reported before or after the fate of its tries; a try sent to a dead worker is returned; a
lost worker continues its tries, and either comes back or dies.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from aioflow.core.scheduling.ready import _is_full, _is_full_at, still_waits
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.task_instance import TaskInstance
from aioflow.model.dag import Body, DagSpec, TaskSpec
from aioflow.model.states import RunState
from aioflow.model.workers import LOCAL, WorkerLocation, WorkerSpec
from aioflow.protocol.effects import RecallTries, RetireWorker, SetWorkerDemand, StartTry, StopTry
from aioflow.protocol.inputs import (
    ExecutorUnavailable,
    WorkerGone,
    WorkerIdle,
    WorkerUnresponsive,
    WorkerUp,
)
from aioflow.protocol.reports import Recalled
from tests.sim.actors import Line, Stage, Worker
from tests.sim.broken import Broken
from tests.sim.workload import SECOND

__all__ = (
    "FROM",
    "LIMITS",
    "FarWorkers",
    "nobody_waits_unasked",
    "starts_are_stored_with_their_workers",
    "with_executors",
)

FROM = 4_000
"""The first seed that may use them: lower seeds were chosen by tests and planted bugs."""

FAR, FAR_WORKERS = "far", 3
LIMITS = {FAR: FAR_WORKERS}
IDLE_US = 10 * SECOND
_LOST_US = 30 * SECOND


def with_executors(dags: list[DagSpec], seed: int) -> list[DagSpec]:
    """Let some functions run in workers of another executor, in half of the seeds."""
    rng = random.Random(f"executors {seed}")
    if seed < FROM or rng.random() < 0.5:
        return dags
    return [
        msgspec.structs.replace(dag, tasks=tuple(_far(task, rng) for task in dag.tasks))
        for dag in dags
    ]


def _far(task: TaskSpec, rng: random.Random) -> TaskSpec:
    executor = rng.choice((LOCAL, FAR))
    resources = rng.choice(((), (), (("GPU", 1.0),)))
    if executor == LOCAL or task.body is not Body.FUNCTION or task.sensor is not None:
        return task
    return msgspec.structs.replace(task, executor=executor, resources=resources)


class FarWorker(Worker):
    """A worker with one process. After the process has died, the number is never reused."""

    def __init__(self, far: FarWorkers, number: int, spec: WorkerSpec, stage: Stage) -> None:
        super().__init__(stage)
        self.number = number
        self.spec = spec
        self.version = ""
        self.is_dead = False
        self._far = far
        self._idle = 0
        self._note_idle()
        if stage.faults.happens("worker dies"):
            self._plan(stage.rng.randint(0, 60 * SECOND), self._be_lost)

    @property
    def is_busy(self) -> bool:
        return bool(self._bodies)

    def start(self, effect: StartTry) -> None:
        self._idle += 1
        super().start(effect)

    def _end(self, body: Any) -> None:
        super()._end(body)
        self._note_idle()

    def recall(self, keys: tuple[tuple[int, int], ...]) -> None:
        super().recall(keys)
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._bodies:
            self._idle += 1
            self._plan(IDLE_US, partial(self._tell_idle, self._idle))

    def _tell_idle(self, idle: int) -> None:
        if idle == self._idle and not self._bodies:
            self._line.say(WorkerIdle(self.number))
            self._plan(IDLE_US, partial(self._tell_idle, idle))

    def _be_lost(self) -> None:
        now = self._stage.wall()
        self._line.say(WorkerUnresponsive(self.number, now, now + _LOST_US, "no answer"))
        then: Callable[[], None] = self._die
        if self._stage.rng.random() < 0.5:
            then = partial(self._line.say, WorkerUnresponsive(self.number))
        self._plan(self._stage.rng.randint(0, _LOST_US), then)

    def _die(self) -> None:
        if self._stage.rng.random() < 0.5:
            super()._die()
            self.end()
        else:
            self._report_end()
            super()._die()
            self.end()

    def end(self) -> None:
        """End the process, and report its end unless that was reported already."""
        self._report_end()
        self._life += 1
        self._far.gone(self)

    def _report_end(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            self._stage.points["far worker gone"] += 1
            self._line.say(WorkerGone(self.number))


class FarWorkers:
    """A backend, and the daemon's side of it.

    Args:
        slots: Returns the engine's slots, to compare them with the state here.
    """

    def __init__(self, stage: Stage, first_no: int, slots: Callable[[], Slots]) -> None:
        self._stage = stage
        self._slots = slots
        self._numbers = itertools.count(first_no)
        self._line = Line(stage)
        self._workers: dict[int, FarWorker] = {}
        self._starting: list[WorkerSpec] = []
        self._demand: dict[WorkerSpec, int] = {}
        self._refused: set[WorkerSpec] = set()

    def tell(
        self, effect: StartTry | StopTry | RecallTries | SetWorkerDemand | RetireWorker
    ) -> None:
        """Deliver an effect."""
        match effect:
            case StartTry():
                self.start(effect)
            case StopTry():
                self.stop(effect)
            case RecallTries():
                self.recall(effect)
            case SetWorkerDemand():
                self.set_demand(effect)
            case RetireWorker():
                self.retire(effect)

    def set_demand(self, effect: SetWorkerDemand) -> None:
        """Start the workers that are missing."""
        self._demand = {demand.spec: demand.count for demand in effect.demands}
        for spec, count in self._demand.items():
            if not 1 <= count <= FAR_WORKERS or spec.executor != FAR:
                raise Broken("I27 workers", f"{count} workers of {spec} are demanded")
        self._fill()

    def _fill(self) -> None:
        for spec, count in self._demand.items():
            there = [worker.spec for worker in self._workers.values()]
            there += self._starting
            free = FAR_WORKERS - len(there)
            for _ in range(min(free, count - there.count(spec))):
                self._starting.append(spec)
                delay = self._stage.rng.randint(0, 3 * SECOND)
                self._stage.after(delay, partial(self._come_up, spec))

    def _come_up(self, spec: WorkerSpec) -> None:
        if self._stage.faults.happens("worker dies"):
            self._line.say(ExecutorUnavailable(spec, "no such worker now"))
            self._stage.after(30 * SECOND, partial(self._come_up, spec))
            return
        self._starting.remove(spec)
        number = next(self._numbers)
        self._stage.points["far worker up"] += 1
        location = WorkerLocation(f"machine-{number % 3}", f"process {number}")
        self._line.say(WorkerUp(number, spec, location))
        self._workers[number] = FarWorker(self, number, spec, self._stage)

    def gone(self, worker: FarWorker) -> None:
        """Replace a dead worker if it is still demanded."""
        if self._workers.pop(worker.number, None) is not None:
            self._fill()

    def start(self, effect: StartTry) -> None:
        """Run a try in its worker, or return it if the worker is dead."""
        known = self._slots().remote.find(effect.worker)
        if known is None or known.is_leaving or known.is_lost:
            raise Broken("I27 workers", f"worker {effect.worker} gets a try, and may not")
        worker = self._workers.get(effect.worker)
        if worker is None:
            self._stage.points["far try returned"] += 1
            self._line.say(Recalled(((effect.start.task_no, effect.start.start_no),)))
            return
        task = self._stage.spec_of(effect.start.run_no, effect.start.task_index)
        if (task.executor, task.resources) != (worker.spec.executor, worker.spec.resources):
            raise Broken("I27 workers", f"{task.task_id} runs in a worker of {worker.spec}")
        if worker.version not in {"", effect.info.version}:
            raise Broken("I27 workers", f"a worker of {worker.version} gets another version")
        worker.version = effect.info.version
        worker.start(effect)

    def stop(self, effect: StopTry) -> None:
        """Stop a try at once."""
        if effect.worker in self._workers:
            self._workers[effect.worker].stop((effect.task_no, effect.start_no))

    def recall(self, effect: RecallTries) -> None:
        """Return those of the given tries that have not begun."""
        if effect.worker in self._workers:
            self._workers[effect.worker].recall(effect.tries)

    def retire(self, effect: RetireWorker) -> None:
        """End an idle worker."""
        worker = self._workers.get(effect.worker)
        if worker is not None:
            if worker.is_busy:
                raise Broken("I27 workers", f"worker {effect.worker} is retired with its tries")
            self._stage.after(0, worker.end)

    def nothing_left(self) -> None:
        """Check that no try is left at the end of a seed.

        Raises:
            Broken: If a worker still has a try.
        """
        busy = [worker.number for worker in self._workers.values() if worker.is_busy]
        if busy:
            raise Broken("nothing left", f"the far workers {busy} have tries")


def starts_are_stored_with_their_workers(node: Any, turn: Any) -> None:
    """I28: check that a start in a remote worker is stored with its worker once the start begins.

    An unclaimed start begins when it is sent, a claimed start when its task is seen running.
    """
    known, first = node.tables.try_workers, len(node.slots.workers)
    begun = {(one.start.task_no, one.start.start_no) for one in turn.starts if not one.claimed}
    far = {(one.start.task_no, one.start.start_no) for one in turn.starts if one.worker >= first}
    for task in node.memory.active_tasks.objects.values():
        if task.worker >= first and not task.is_claimed:
            begun.add((task.task_no, task.start_no))
            far.add((task.task_no, task.start_no))
    if lacking := (begun & far) - known.keys():
        raise Broken("I28 workers of starts", f"{lacking} began in a worker that is not stored")
    for row in turn.batch.try_workers:
        if row.executor != FAR or not row.host or not row.worker:
            raise Broken("I28 workers of starts", f"{row} is not a remote worker")


def nobody_waits_unasked(node: Any) -> None:
    """L3: with an empty inbox, check that a worker is demanded while a task waits for one.

    Also check that the first task of a queue does not wait beside an idle worker that fits it.
    """
    slots, memory = node.slots, node.memory
    is_on_trial = memory.trial is not None and memory.trial.groups
    if is_on_trial or not slots.is_open or memory.is_drained or slots.unwritten:
        return
    demanded = slots.remote._demanded or {}
    for spec, pool, queue in slots.ready.remote_queues():
        for _, _, _, entry in queue:
            run = entry.run
            if not _may_start(entry, slots) or run.state is not RunState.RUNNING:
                continue
            if spec not in demanded:
                raise Broken("L3 progress", f"task {entry.task_index} waits, none asks for {spec}")
            idle = [one for one in slots.remote.of_spec(spec) if one.is_idle]
            fits = [one for one in idle if one.version in {"", run.row.version}]
            head = queue[0][3]
            if fits and head is entry:
                raise Broken("L3 progress", f"{fits[0].number} of pool {pool} is idle beside work")


def _may_start(entry: Any, slots: Slots) -> bool:
    """Return whether an entry still waits and, as far as can be seen here, lacks only a worker."""
    run = entry.run
    if not still_waits(entry) or run.spec.max_active_tasks is not None:
        return False
    if _is_full(run) or _is_full_at(entry) or slots.ready.across.is_full(entry):
        return False
    is_kept = isinstance(entry, TaskInstance) and entry.task_no in slots.pool_holds
    return is_kept or slots._has_capacity(entry.spec.pool, entry.spec.slots)
