"""The first level: ``core.step.decide`` over dictionaries, with actors on virtual time.

A seed is the life of one node: DAGs, clients, processes and crashes, followed by a period without
faults in which everything must end. Faults may hit every commit, and all invariants are checked
after each of them.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from aioflow.core import outbox, rollback
from aioflow.core.runs.restore import restore_run
from aioflow.core.scheduling.ready import Ready
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.memory import Memory
from aioflow.errors import RequestError
from aioflow.model.access import Actor
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.protocol.commands import ForgetRun
from aioflow.protocol.effects import (
    Acknowledge,
    AssignTrigger,
    ConfirmCall,
    ConfirmEvents,
    DeliverOutbox,
    Effect,
    RecallTries,
    ReleaseTrigger,
    RetireWorker,
    SetWorkerDemand,
    StartHost,
    StartTry,
    StopTry,
    WakeAt,
)
from aioflow.protocol.inputs import (
    AssignTriggers,
    ClockStepped,
    ContinueBackfill,
    ContinueRun,
    CreateMissingRuns,
    Drain,
    Input,
    IsolateTriggerClass,
    MigrateTriggers,
    OutboxDelivered,
    OutboxLoaded,
    PauseTriggers,
    PreviousRunLoaded,
    RequestReceived,
    Restarted,
    TimerFired,
)
from aioflow.protocol.reports import (
    CallAnswered,
    Ended,
    EventEmitted,
    ItemYielded,
    NextEventRequested,
    NotSuspended,
    Recalled,
    RecordDropped,
    RunCalled,
    StreamOpened,
    TaskStarted,
    TriggerEnded,
    TriggerFired,
)
from aioflow.protocol.requests import CancelRun, Request, SetPaused, SetPool
from tests.sim import evented, filling, liveness, recovery, remote, stored
from tests.sim.asking import Voters
from tests.sim.broken import Broken
from tests.sim.children import Children
from tests.sim.circle import Circle, Crash, Paused
from tests.sim.drawing import FIRST, draw, small_turns
from tests.sim.erasing import Eraser
from tests.sim.faults import Fault, Faults
from tests.sim.ledger import Ledger
from tests.sim.owing import what_is_owed_is_read
from tests.sim.past import nobody_waits_for_what_ended_well, stuck
from tests.sim.people import People
from tests.sim.tables import Tables
from tests.sim.themes import louder
from tests.sim.trying import goes_by_itself
from tests.sim.verdict import Verdict, met
from tests.sim.wheel import Watch, Wheel, resumed
from tests.sim.workload import COUNTING, POOLS, SECOND, without

__all__ = ("Node", "play")

CPU_SLOTS, ASYNC_SLOTS = 3, 4
STORMY_TURNS, TURNS = 400, 100_000
STORM_US = 3 * 3600 * SECOND
LONGEST_US = 90 * 24 * 3600 * SECOND
_EPOCH_START = 1_700_000_000 * SECOND
_CALLS = CallAnswered | EventEmitted | NextEventRequested | NotSuspended | RecordDropped | RunCalled
_CALLS |= StreamOpened
_NUMBERED = TaskStarted | Ended | ItemYielded | Recalled | TriggerFired | TriggerEnded | _CALLS
"""Reports that name their start or assignment."""


class Shuffled(Ready):
    """A ready queue that puts tasks of equal priority in random order."""

    def __init__(self, rng: random.Random, retained: Container[int]) -> None:
        super().__init__(retained)
        self._rng = rng

    def offer(self, entry: Any) -> None:
        """See ``Ready``."""
        self._age = self._rng.getrandbits(62)
        super().offer(entry)


class Node:
    """One node on dictionaries, its processes and its clients."""

    def __init__(
        self,
        seed: int,
        left_out: frozenset[Fault] = frozenset(),
        dropped: tuple[tuple[int, int], ...] = (),
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self._seed = self.seed = seed
        self.faults = Faults(self.rng, left_out, louder(seed, 1))
        self.ledger = Ledger()
        self.tables = Tables()
        self.points: Counter[str] = Counter()
        self.has_people = True
        self.turns = 0
        drawn = draw(seed, self.rng, FIRST)
        self.dags, self.dated, self.has_past = drawn.dags, drawn.dated, drawn.has_past
        for dag, task_index in dropped:
            self.dags[dag] = without(self.dags[dag], task_index)
        self.mono = 0
        self.newest_epoch = 0
        self.wall_is_steady = True
        self.seen_at: tuple[int, int] | None = None
        self._is_shuffled = self.rng.random() < 0.3
        self._trace = trace
        self._digest = hashlib.sha256()
        self._wall_offset = _EPOCH_START
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._tickets = itertools.count(1)
        self._next_number = 1
        self._people = People(self)
        self._voters = Voters(self)
        self._is_stopping = False
        self._freed: set[int] = set()

    # ── interface for the actors ────────────────────────────────────────────────────────

    def wall(self) -> int:
        """Return the wall time. The wall clock may step."""
        return self.mono + self._wall_offset

    def after(self, delay_us: int, function: Callable[[], None]) -> None:
        """Call ``function`` after the delay, unless the node and its children have died by then."""
        epoch = self.newest_epoch

        def unless_crashed() -> None:
            if epoch == self.newest_epoch:
                function()

        self._plan(delay_us, unless_crashed)

    def _plan(self, delay_us: int, function: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.mono + delay_us, next(self._order), function))

    def say(self, report: Input) -> None:
        """Put a report into the inbox."""
        self.circle.inbox.append(report)

    def ask(self, request: Request, by: Actor | None = None) -> int:
        """Put a request into the inbox. Return the ticket of its answer."""
        ticket = next(self._tickets)
        self.say(RequestReceived(ticket, request, by))
        return ticket

    def answered(self, ticket: int) -> None:
        """Pass on the news that the request with this ticket was answered."""
        self._eraser.answered(ticket)

    def spec_of(self, run_no: int, task_index: int) -> TaskSpec:
        """See ``actors.Stage``."""
        return self.tables.spec_of_run(run_no).tasks[task_index]

    # ── interface for the circle and the invariants ─────────────────────────────────────

    @property
    def memory(self) -> Memory:
        """The memory of the current incarnation."""
        return self.circle.memory

    @property
    def slots(self) -> Slots:
        """The slots of the current incarnation."""
        return self.circle.slots

    @property
    def children(self) -> Children:
        """The processes of the current incarnation."""
        return self._children

    def lease_numbers(self, count: int) -> int:
        """Return the first of ``count`` unused numbers."""
        first, self._next_number = self._next_number, self._next_number + count
        return first

    def arm(self, due: TimerFired, at: int) -> None:
        """Arm a timer."""
        self._wheel.arm(due, at=at, steady=self.steady)

    def pause(self, paused: Paused) -> None:
        """Pause an incarnation; it resumes long after another one has taken over."""
        self._plan(self.rng.randint(1, 600 * SECOND), paused.wake)

    def stop(self) -> None:
        """End the node after a drain. Another one begins later."""
        self._is_stopping = True

    def count(self, outcome: str, kinds: Iterable[str]) -> None:
        """Count the outcome of a commit for each kind of its inputs."""
        for kind in kinds:
            self.points[f"{outcome} / {kind}"] += 1

    # ── the life of an incarnation ──────────────────────────────────────────────────────

    def _start_up(self) -> None:
        """Build the memory from the rows only, without processes and timers."""
        tables = self.tables
        epoch = self.newest_epoch = tables.claim()
        memory = Memory(epoch=epoch)
        memory.commit_no = tables.commit_no
        self.steady = resumed(self)
        memory.shift = self.steady.read().shift
        slots = Slots(cpu_slots=CPU_SLOTS, async_slots=ASYNC_SLOTS, remote_limits=remote.LIMITS)
        slots.pools = dict(tables.pools)
        if self._is_shuffled:
            slots.ready = Shuffled(self.rng, slots.pool_holds)
        self.circle = Circle(self, memory, slots, epoch)
        self._eraser = Eraser(self)
        self._wheel = Wheel()
        self.watch = Watch(tables, self.steady)
        self._children = Children(self, self._seed, CPU_SLOTS, lambda: slots)
        rollback.recall_catalog(memory, list(tables.dags.values()), list(tables.files.values()))
        outbox.begin(memory, *tables.owed())
        for version in tables.versions.values():
            memory.stored_versions.add(version.version)
            for spec in version.dags:
                memory.add_plan(version.version, spec)
        unfinished = tables.unfinished()
        memory.stray_triggers = [
            row for row in tables.triggers.values() if row.run_no not in unfinished
        ]
        evented.begin(memory, tables)
        filling.restore(memory, tables)
        for run_no in unfinished:
            restore_run(tables.live_run(run_no), memory)

    def _bring_up(self) -> None:
        """Start new incarnations until one survives its first turn."""
        dead = [entry for entry in self.ledger.spoken if isinstance(entry, _NUMBERED)]
        while True:
            self.tables.lose_children(self.ledger.take_open())
            has_crashed, self._is_stopping = not self._is_stopping, False
            self._start_up()
            try:
                self.circle.turn([Restarted(has_crashed=has_crashed)])
            except Crash:
                continue
            break
        self._children.come_up()
        if dead and self.faults.happens("report of the dead"):
            late = self.rng.sample(dead, min(len(dead), 10))
            self.after(self.rng.randint(0, 10 * SECOND), partial(self.circle.late.extend, late))
        self._people.arrive()
        self._voters.arrive()

    def _heal(self) -> None:
        """End all faults. From now on everything must end."""
        self.faults.healed = True
        drains = any(isinstance(entry, Drain) for entry in self.circle.inbox)
        if drains or self._is_stopping or not self.slots.is_open:
            self._bring_up()  # a stopping node never answers requests
        self._voters.arrive()
        for name in POOLS[1:]:
            wide = self.rng.random() < 0.5
            self.ask(SetPool(name=name, slots=4, include_deferred=wide and name == COUNTING))
        # Runs started by events, and some triggers, do not continue while their DAG is paused.
        awake = {spec.dag_id for spec in self.dags if spec.if_paused == "stop" or spec.trigger}
        for dag_id in self.tables.dags:  # no new runs, only the existing ones
            self.ask(SetPaused(dag_id=dag_id, paused=dag_id not in awake))

    # ── turns ───────────────────────────────────────────────────────────────────────────

    def live(self) -> None:
        """Run the period with faults, and then the period without.

        Raises:
            Broken: If an invariant was violated.
        """
        self._bring_up()
        while self.turns < STORMY_TURNS and self.mono < STORM_US and self._go_on():
            pass
        self._heal()
        self._go_on()
        epoch, healed_at = self.newest_epoch, self.mono
        self._come_to_an_end(healed_at)
        self._settle()
        # A trigger without keys yields all of its events again when it is reassigned. Such an event
        # may start a run after the expected number of runs was reached, and that run has to end as
        # well.
        while self._is_owing():
            self._come_to_an_end(healed_at)
            self._settle()
        liveness.one_owner(self, epoch)
        recovery.nothing_left(self)
        self._children.nothing_left()

    def _come_to_an_end(self, healed_at: int) -> None:
        """Continue until nothing is pending.

        Raises:
            Broken: If that takes too long, or if work is left and nothing more happens.
        """
        while self._is_owing() or self.circle.inbox:
            if self.turns > TURNS or self.mono - healed_at > LONGEST_US:
                raise Broken("L1 ends", f"still unfinished: {recovery.unfinished(self)}")
            if not self._go_on() and not self._free():
                raise Broken("L1 ends", f"nothing will happen: {recovery.unfinished(self)}")

    def _is_owing(self) -> bool:
        """Return whether there is anything left that has to end."""
        tables = self.tables
        is_left = bool(tables.unfinished() or tables.deletions)
        is_left |= any(map(goes_by_itself, tables.outbox.values()))
        return is_left or evented.expects_more(self) or filling.expects_more(self)

    def _free(self) -> bool:
        """Cancel the runs that cannot continue by themselves. Return whether there were any."""
        runs = self.tables.runs
        held = {no for no in self.tables.unfinished() if runs[no].quarantine is not None}
        held = (held | set(stuck(self))) - self._freed
        self._freed.update(held)
        for run_no in sorted(held):
            self.ask(CancelRun(run_id=self.tables.runs[run_no].run_id))
        return bool(held)

    def _settle(self) -> None:
        """Let the hosts confirm their remaining events."""
        until = self.mono + 10 * SECOND
        while self.circle.inbox or (self._events and self._events[0][0] <= until):
            self._go_on()

    def _go_on(self) -> bool:
        """Process the next event. Return whether there was one."""
        circle = self.circle
        try:
            if self._is_stopping:
                self.points["stop"] += 1
                self._bring_up()
                return True
            if self.faults.happens("clock steps"):
                self.wall_is_steady = False
                self._wall_offset += self.rng.choice((6, -2)) * 3600 * SECOND
                self.after(self.rng.randint(0, 30 * SECOND), partial(self.say, ClockStepped()))
            if not circle.inbox and not self._wait():
                return False
            if circle.inbox:
                circle.turn(circle.take())
                self._after_turn()
            if circle.late and circle is self.circle:
                circle.take_late()
        except Crash:
            self.points["restart"] += 1
            self._bring_up()
        return True

    def _after_turn(self) -> None:
        """Check now and then that a restart would restore the same memory from the rows."""
        if self.rng.random() < 0.02:
            recovery.memory_is_what_rows_say(self)
            liveness.slots_are_what_tasks_hold(self)
            liveness.triggers_are_hosted(self)
            liveness.hosts_were_given_what_they_have(self)

    def _wait(self) -> bool:
        """Jump to the next event of an actor or the next timer. Return whether there is one."""
        self.pass_until(self.mono)
        if self.circle.inbox:
            return True
        self.watch.look(self.mono)
        if self.rng.random() < 0.1:
            liveness.nothing_waits_beside_a_free_slot(self)
            remote.nobody_waits_unasked(self)
            liveness.hosts_were_given_what_they_have(self)
            nobody_waits_for_what_ended_well(self)
            what_is_owed_is_read(self)
        at = self._events[0][0] if self._events else None
        due = self._wheel.next_at(mono=self.mono, wall=self.wall())
        if at is None or (due is not None and due < at):
            at = due
        if at is None:
            return False
        self.pass_until(at)
        return True

    def pass_until(self, at: int) -> None:
        """Let time pass, and process everything that becomes due."""
        self.mono = max(self.mono, at)
        while self._events and self._events[0][0] <= self.mono:
            heapq.heappop(self._events)[2]()
        self.circle.inbox.extend(self._wheel.take(mono=self.mono, wall=self.wall()))

    def note(self, inputs: Iterable[Input], batch: Batch, effects: Sequence[Effect]) -> None:
        """Add a turn to the digest and the trace."""
        self._eraser.committed(batch)
        for row in batch.new_decisions:
            self._voters.notice(row)
        encoded = msgspec.msgpack.encode(batch)
        stored.canaries_stay_in_kwargs(batch, encoded)
        self._digest.update(encoded)
        self._digest.update(repr([type(effect).__name__ for effect in effects]).encode())
        if self._trace is not None:
            self._trace(f"── turn {self.turns} at {self.mono / 1e6:.6f}")
            for entry in inputs:
                self._trace(f"   in   {entry}")
            for task_no, state in batch.steps:
                self._trace(f"   step {task_no} {state.label}")
            for effect in effects:
                self._trace(f"   out  {effect}")

    # ── effects ─────────────────────────────────────────────────────────────────────────

    def act(self, effects: Sequence[Effect]) -> None:
        """Perform the effects of a committed turn."""
        for effect in effects:
            match effect:
                case AssignTrigger() | ReleaseTrigger() | ConfirmEvents():
                    self._children.tell_trigger_hosts(effect)
                case StartTry() | StopTry() | RecallTries() | ConfirmCall() | ForgetRun():
                    self._children.tell_task_hosts(effect)
                case SetWorkerDemand() | RetireWorker():
                    self._children.far.tell(effect)
                case StartHost():
                    self._children.start_host(effect.role)
                case WakeAt():
                    self.arm(effect.due, effect.due.at if effect.at is None else effect.at)
                case DeliverOutbox():
                    number = effect.outbox_no
                    self.after(
                        self.rng.randint(0, SECOND), partial(self.say, OutboxDelivered(number))
                    )
                case (
                    RequestReceived()
                    | ContinueRun()
                    | AssignTriggers()
                    | PreviousRunLoaded()
                    | IsolateTriggerClass()
                ):
                    self.say(effect)
                case (
                    ContinueBackfill()
                    | CreateMissingRuns()
                    | OutboxLoaded()
                    | MigrateTriggers()
                    | PauseTriggers()
                ):
                    self.say(effect)
                case Acknowledge(ticket=ticket, error=error):
                    if error is not None and not isinstance(error, RequestError):
                        raise Broken("request", repr(error))
                    self.answered(ticket)
                case _:
                    pass

    def verdict(self, seed: int, broken: Broken | None) -> Verdict:
        """Return the verdict on the seed."""
        self.points.update(met(self.tables, self.ledger))
        return Verdict(
            seed=seed,
            steps=self.turns,
            digest=self._digest.hexdigest(),
            points=self.points,
            broken=None if broken is None else str(broken),
            faults=self.faults.happened,
        )


def play(
    seed: int,
    left_out: frozenset[Fault] = frozenset(),
    dropped: tuple[tuple[int, int], ...] = (),
    trace: Callable[[str], None] | None = None,
) -> Verdict:
    """Run one seed. The verdict reports a violated invariant or an exception."""
    node = Node(seed, left_out, dropped, trace)
    broken = None
    with small_turns(seed):
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
    return draw(seed, rng, FIRST).dags
