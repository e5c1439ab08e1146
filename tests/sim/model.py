"""The first level: ``core.turn.decide`` over dictionaries, with actors on virtual time.

A seed is a life of one node: DAGs, people, processes, crashes, and in the end a time in which
nothing goes wrong any more and everything must come to its end. Every commit is a place where
things go wrong, and everything that must hold is checked after it.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from aioflow.core import undo
from aioflow.core.draft import Draft
from aioflow.core.memory import Memory, NumberBlock
from aioflow.core.run import restore
from aioflow.core.slots import Slots
from aioflow.core.turn import TURN_INPUTS, decide
from aioflow.errors import RequestError
from aioflow.inputs import (
    Acknowledge,
    Asked,
    CancelRun,
    Continue,
    CreateRun,
    Deliver,
    Delivered,
    Due,
    Effect,
    EndHosting,
    FileParsed,
    HostTrigger,
    Input,
    RecallTries,
    Restarted,
    SetPaused,
    SetPool,
    StartTry,
    StopTry,
    WakeAt,
)
from aioflow.model import DagSpec, TaskSpec, TaskState
from aioflow.rows import Batch
from tests.sim import invariants, recovery
from tests.sim.actors import AsyncHost, TriggerHost, Worker
from tests.sim.broken import Broken
from tests.sim.faults import Fault, Faults
from tests.sim.invariants import Turn
from tests.sim.ledger import Ledger
from tests.sim.tables import Tables, changed_tasks
from tests.sim.workload import POOLS, SECOND, make_dags, without

__all__ = ("Node", "Verdict", "play")

CPU_SLOTS, ASYNC_SLOTS = 3, 4
STORMY_TURNS, TURNS = 400, 20_000
STORM_US = 3 * 3600 * SECOND
LONGEST_US = 90 * 24 * 3600 * SECOND
_EPOCH_START = 1_700_000_000 * SECOND


class Verdict(msgspec.Struct, kw_only=True):
    """What became of a seed."""

    seed: int
    steps: int
    digest: str
    points: Counter[str]
    broken: str | None = None
    faults: list[Fault] = []


class _Crash(Exception):
    """The node dies now."""


class Node:
    """One node on dictionaries, its processes, and the people before it."""

    def __init__(
        self,
        seed: int,
        left_out: frozenset[Fault] = frozenset(),
        dropped: tuple[tuple[int, int], ...] = (),
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.faults = Faults(self.rng, left_out)
        self.ledger = Ledger()
        self.tables = Tables()
        self.points: Counter[str] = Counter()
        self.turns = 0
        self._dags = make_dags(self.rng)
        for dag, position in dropped:
            self._dags[dag] = without(self._dags[dag], position)
        self._trace = trace
        self._digest = hashlib.sha256()
        self._mono, self._wall_offset = 0, _EPOCH_START
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._tickets = itertools.count(1)
        self._next_number = 1
        self._requests_left = self.rng.randint(1, 12)
        self._epoch = 0
        self._keys = [f"key{number}" for number in range(4)]
        self._start_up()

    # ── a stage for the actors ──────────────────────────────────────────────────────────

    def wall(self) -> int:
        """The wall time; it may step."""
        return self._mono + self._wall_offset

    def after(self, delay_us: int, function: Callable[[], None]) -> None:
        """Call it then, unless the node has crashed by then: its children die with it."""
        epoch = self._epoch

        def unless_crashed() -> None:
            if epoch == self._epoch:
                function()

        heapq.heappush(self._events, (self._mono + delay_us, next(self._order), unless_crashed))

    def say(self, report: Input) -> None:
        """Put it into the inbox."""
        self.inbox.append(report)

    def spec_of(self, effect: StartTry) -> TaskSpec:
        """The task of a start."""
        plan = self.memory.plans[effect.info.version, effect.info.dag_id]
        return plan.graph.spec.tasks[effect.start.position]

    # ── the life of an incarnation ──────────────────────────────────────────────────────

    def _start_up(self) -> None:
        """Memory from rows alone, no process, nothing armed."""
        self._epoch += 1
        tables = self.tables
        memory = self.memory = Memory(epoch=self._epoch)
        memory.commit_no = tables.commit_no
        self.slots = Slots(cpu_slots=CPU_SLOTS, async_slots=ASYNC_SLOTS)
        self.slots.pools = dict(tables.pools)
        self.numbers = NumberBlock(self._next_number, self._next_number + 10**9)
        self._next_number += 10**9
        self._timers: list[tuple[int, int, Due]] = []
        self.inbox: list[Input] = []
        self._workers = [Worker(self) for _ in range(CPU_SLOTS)]
        self._async, self._triggers = AsyncHost(self), TriggerHost(self)
        undo.recall_catalog(memory, list(tables.dags.values()), list(tables.files.values()))
        memory.outbox = {row.outbox_no: (row.kind, row.body) for row in tables.outbox.values()}
        for version in tables.versions.values():
            memory.stored_versions.add(version.version)
            for spec in version.dags:
                memory.add_plan(version.version, spec)
        unfinished = tables.unfinished()
        memory.stray_triggers = [
            row for row in tables.triggers.values() if row.run_no not in unfinished
        ]
        for run_no in unfinished:
            restore(tables.live_run(run_no), memory)

    def _bring_up(self) -> None:
        """A new incarnation, until one survives its first turn."""
        while True:
            self.tables.lose_children(self.ledger.take_open())
            self._start_up()
            try:
                self._turn([Restarted()])
            except _Crash:
                continue
            break
        for host in (self._async, self._triggers):
            self.after(self.rng.randint(0, 3 * SECOND), host.come_up)
        self.after(0, self._parse)
        self._arm_people()

    def _parse(self) -> None:
        for spec in self._dags:
            self.say(
                FileParsed(file=spec.file, version=f"v-{spec.dag_id}", dags=(spec,), sources={})
            )

    def _arm_people(self) -> None:
        if not self.faults.healed:
            self.after(self.rng.randint(1, 20 * SECOND), self._person)

    # ── people ──────────────────────────────────────────────────────────────────────────

    def _person(self) -> None:
        """Somebody asks for something; more often than not for a run."""
        rng = self.rng
        if self._requests_left > 0:
            self._requests_left -= 1
            dag_id = rng.choice(self._dags).dag_id
            key = rng.choice((None, rng.choice(self._keys)))
            self._ask(CreateRun(dag_id=dag_id, key=key))
            if rng.random() < 0.2:
                self._ask(CreateRun(dag_id=dag_id, key=key))
        if self.faults.happens("operator"):
            self._operate()
        self._arm_people()

    def _operate(self) -> None:
        rng = self.rng
        runs = [self.tables.runs[no].run_id for no in self.tables.unfinished()]
        match rng.choice(("cancel", "pause", "resume", "pool", "pool")):
            case "cancel" if runs:
                self._ask(CancelRun(run_id=rng.choice(runs)))
            case "pause" | "resume" as verb:
                dag_id = rng.choice(self._dags).dag_id
                self._ask(SetPaused(dag_id=dag_id, paused=verb == "pause"))
            case _:
                self._ask(SetPool(name=rng.choice(POOLS[1:]), slots=rng.choice((None, 1, 2, 3))))

    def _ask(self, request: Any) -> None:
        self.say(Asked(next(self._tickets), request))

    def _heal(self) -> None:
        """From now on nothing goes wrong: everything must come to its end."""
        self.faults.healed = True
        for name in POOLS[1:]:
            self._ask(SetPool(name=name, slots=4))
        for spec in self._dags:
            self._ask(
                SetPaused(dag_id=spec.dag_id, paused=True)
            )  # no more runs, but those there are

    # ── the circle ──────────────────────────────────────────────────────────────────────

    def live(self) -> None:
        """Live through the storm and the calm after it.

        Raises:
            Broken: If something did not hold that must.
        """
        self._bring_up()
        while self.turns < STORMY_TURNS and self._mono < STORM_US and self._go_on():
            pass
        self._heal()
        healed_at = self._mono
        while self.tables.unfinished() or self.inbox or self.tables.outbox:
            if self.turns > TURNS or self._mono - healed_at > LONGEST_US:
                raise Broken("liveness", f"still unfinished: {recovery.unfinished(self)}")
            if not self._go_on():
                raise Broken("liveness", f"nothing will happen: {recovery.unfinished(self)}")
        self._settle()
        recovery.nothing_left(self)

    def _settle(self) -> None:
        """Let the hosts confirm what they still have."""
        until = self._mono + 10 * SECOND
        while self.inbox or (self._events and self._events[0][0] <= until):
            self._go_on()

    def _go_on(self) -> bool:
        """Let the next thing happen; whether there was one."""
        try:
            if self.faults.happens("clock steps"):
                self._wall_offset += self.rng.choice((6, -2)) * 3600 * SECOND
            if not self.inbox and not self._wait():
                return False
            if self.inbox:
                self._turn(self._take())
        except _Crash:
            self.points["restart"] += 1
            self._bring_up()
        return True

    def _wait(self) -> bool:
        """Jump to what comes next, an event of an actor or an instant."""
        at = self._events[0][0] if self._events else None
        if self._timers:
            due = max(self._timers[0][0] - self._wall_offset, self._mono)
            at = due if at is None else min(at, due)
        if at is None:
            return False
        self._pass_until(at)
        return True

    def _pass_until(self, at: int) -> None:
        self._mono = max(self._mono, at)
        while self._events and self._events[0][0] <= self._mono:
            heapq.heappop(self._events)[2]()
        while self._timers and self._timers[0][0] <= self.wall():
            self.inbox.append(heapq.heappop(self._timers)[2])

    def _take(self) -> list[Input]:
        count = min(len(self.inbox), TURN_INPUTS)
        if count > 1 and self.faults.happens("turn cut"):
            count = self.rng.choice((1, self.rng.randint(1, count)))
        taken, self.inbox = self.inbox[:count], self.inbox[count:]
        return taken

    def _turn(self, inputs: list[Input]) -> None:
        self.turns += 1
        batch, effects, draft = decide(
            self.memory,
            self.slots,
            inputs,
            now=self.wall(),
            chance=self.rng.random,
            numbers=self.numbers,
        )
        before = invariants.before(self, batch)
        if not batch.is_empty:
            self._commit(batch, draft, _kind(inputs))
        self._note(inputs, batch, effects)
        invariants.check(self, Turn(batch, effects, before))
        self._act(effects)
        self.after_act()

    def after_act(self) -> None:
        """At random moments the memory must be what a restart would make of the rows."""
        if self.rng.random() < 0.02:
            recovery.memory_is_what_rows_say(self)

    def _commit(self, batch: Batch, draft: Draft, kind: str) -> None:
        """Commit, with all that can go wrong with it."""
        while self.faults.happens("commit fails"):
            self._point("failed", kind)
            self._pass_until(self._mono + self.rng.randint(0, SECOND))
        if self.faults.happens("crash before"):
            self._point("crash before", kind)
            raise _Crash
        self.tables.commit(batch)
        while self.faults.happens("reply lost"):
            self._point("reply lost", kind)
            self._pass_until(self._mono + self.rng.randint(0, SECOND))
            self.tables.commit(batch)
        self._record(batch)
        if self.faults.happens("crash after"):
            self._point("crash after", kind)
            raise _Crash
        if self.faults.happens("commit delayed"):
            self._point("delayed", kind)
            self._pass_until(self._mono + self.rng.choice((100, 10_000, SECOND)))
        self._point("ok", kind)
        self.memory.commit_no = batch.number
        draft.settle()

    def _point(self, outcome: str, kind: str) -> None:
        self.points[f"{outcome} / {kind}"] += 1

    def _record(self, batch: Batch) -> None:
        for row in changed_tasks(batch):
            if row.state is TaskState.SUCCESS:
                self.ledger.recorded.add(row.task_no)
        for wait in batch.new_triggers:
            if wait.deadline_at is not None:
                self.ledger.deadlines.add(wait.trigger_no)

    def _note(self, inputs: Iterable[Input], batch: Batch, effects: list[Effect]) -> None:
        self._digest.update(msgspec.msgpack.encode(batch))
        self._digest.update(repr([type(effect).__name__ for effect in effects]).encode())
        if self._trace is not None:
            self._trace(f"── turn {self.turns} at {self._mono / 1e6:.6f}")
            for entry in inputs:
                self._trace(f"   in   {entry}")
            for task_no, state in batch.steps:
                self._trace(f"   step {task_no} {state.label}")
            for effect in effects:
                self._trace(f"   out  {effect}")

    # ── effects ─────────────────────────────────────────────────────────────────────────

    def _act(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case StartTry():
                    host = self._async if effect.worker < 0 else self._workers[effect.worker]
                    host.start(effect)
                case StopTry():
                    stopped = self._async if effect.worker < 0 else self._workers[effect.worker]
                    stopped.stop((effect.task_no, effect.start_no))
                case RecallTries():
                    self._workers[effect.worker].recall(effect.tries)
                case HostTrigger():
                    self._triggers.host(effect)
                case EndHosting():
                    self._triggers.end(effect.end)
                case WakeAt():
                    heapq.heappush(self._timers, (effect.due.at, next(self._order), effect.due))
                case Deliver():
                    number = effect.outbox_no
                    self.after(self.rng.randint(0, SECOND), partial(self.say, Delivered(number)))
                case Continue():
                    self.say(effect)
                case Acknowledge(error=error) if error is not None:
                    if not isinstance(error, RequestError):
                        raise Broken("request", repr(error))
                case _:
                    pass

    def verdict(self, seed: int, broken: Broken | None) -> Verdict:
        """Sum it up."""
        self.points["fenced repeat"] += self.tables.fenced
        self.points["retry"] += sum(row.try_number > 1 for row in self.tables.tasks.values())
        self.points["event consumed"] += len(self.tables.fired)
        self.points["run ended"] += len(self.tables.runs) - len(self.tables.unfinished())
        return Verdict(
            seed=seed,
            steps=self.turns,
            digest=self._digest.hexdigest(),
            points=self.points,
            broken=None if broken is None else str(broken),
            faults=self.faults.happened,
        )


def _kind(inputs: list[Input]) -> str:
    """Name a turn by the inputs in it: one kind, or several."""
    kinds = {type(entry).__name__ for entry in inputs}
    return kinds.pop() if len(kinds) == 1 else "several"


def play(
    seed: int,
    left_out: frozenset[Fault] = frozenset(),
    dropped: tuple[tuple[int, int], ...] = (),
    trace: Callable[[str], None] | None = None,
) -> Verdict:
    """Live one seed; a broken promise, or a defect raised, is told in the verdict."""
    node = Node(seed, left_out, dropped, trace)
    broken = None
    try:
        node.live()
    except Broken as exc:
        broken = exc
    except Exception as exc:  # noqa: BLE001 - whatever core raises is what we look for
        broken = Broken("raised", f"{type(exc).__name__}: {exc}", exc)
    return node.verdict(seed, broken)


def dags_of(seed: int) -> list[DagSpec]:
    """Return the DAGs of a seed."""
    rng = random.Random(seed)
    Faults(rng)
    return make_dags(rng)
