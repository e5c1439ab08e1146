"""The second level: the real engine, timers, triggerer and SQLite store on a seeded event loop.

Any ready callback may run next, so at every await something else may come in between. Actors and
invariants are those of the first level. The tables of the model mirror the database. The database
is compared with them row by row, and in the end with its journal.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import structlog

from aioflow.core.scheduling.slots import Slots
from aioflow.engine.loop import Engine
from aioflow.errors import Fenced
from aioflow.model.access import Actor
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.states import TaskState
from aioflow.protocol.inputs import FileParsed, Input
from aioflow.protocol.requests import CancelRun, Request, SetPaused, SetPool
from tests.journal_replay import compare_with_replay
from tests.sim import evented, filling, invariants, liveness, misbehaving, past, recovery, stored
from tests.sim.asking import Voters
from tests.sim.broken import Broken
from tests.sim.crowd import Crowd
from tests.sim.disk import KEYS, Disk
from tests.sim.drawing import SECOND as MIX
from tests.sim.drawing import draw, small_turns
from tests.sim.faults import Fault
from tests.sim.files import Files, without_threads
from tests.sim.incarnation import Incarnation, starving
from tests.sim.invariants import Turn
from tests.sim.ledger import Ledger
from tests.sim.loop import SeededLoop, cancelled_in_order
from tests.sim.loop_faults import LoopFaults
from tests.sim.past import stuck
from tests.sim.pipe import host_clock
from tests.sim.reported import Reports
from tests.sim.shaky_store import Crash, ShakyStore
from tests.sim.tables import Tables
from tests.sim.trying import goes_by_itself
from tests.sim.verdict import Verdict, met
from tests.sim.workload import COUNTING, POOLS, SECOND, without

__all__ = ("PEOPLE", "dags_of", "play")

PEOPLE, PEOPLE_REST_US = 60, 10 * SECOND
LONGEST_SECONDS = 4 * 24 * 3600.0
LET_GO_SECONDS = 20_000.0
"""Seconds after which a hung host has been replaced, and its triggers have been released."""

_BEGIN_US = 1_700_000_000 * SECOND


class _Clock:
    """The loop's time, and a wall clock that may step."""

    def __init__(self, loop: SeededLoop) -> None:
        self._loop = loop
        self.offset = _BEGIN_US

    def now(self) -> int:
        return self.monotonic_us() + self.offset

    def monotonic_us(self) -> int:
        return int(self._loop.time() * 1e6)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class _Ended(Exception):
    """A life of the node has ended in an orderly way."""


class LoopNode:
    """Successive nodes on one database, and their clients.

    Attributes:
        given_up: Triggers that a host was ordered to stop because no task waits for them any more.
    """

    def __init__(
        self,
        seed: int,
        loop: SeededLoop,
        left_out: frozenset[Fault] = frozenset(),
        dropped: tuple[tuple[int, int], ...] = (),
        trace: Callable[[str], None] | None = None,
        people: int = PEOPLE,
    ) -> None:
        self.rng = random.Random(seed)
        self.faults = LoopFaults(seed, left_out)
        self.ledger, self.tables = Ledger(), Tables()
        self.points: Counter[str] = Counter()
        self.has_people = True
        self.turns = 0
        self.broken: Broken | None = None
        self.digest = hashlib.sha256()
        self.clock = _Clock(loop)
        self.seed = self._seed = seed
        self._trace = trace
        self.dags = draw(seed, self.rng, MIX).dags
        for dag, task_index in dropped:
            self.dags[dag] = without(self.dags[dag], task_index)
        self._loop = loop
        self._life = 0
        self._lives: list[Incarnation] = []
        self._before: invariants.Before | None = None
        self._looked_at = -1
        self._crowd = Crowd(self)
        self._voters = Voters(self)
        self._services: Any = None
        self._people_left = people
        self._reports = Reports(self)
        self.given_up: set[int] = set()

    # ── interface for the actors ────────────────────────────────────────────────────────

    def wall(self) -> int:
        return self.clock.now()

    def after(self, delay_us: int, function: Callable[[], None]) -> None:
        life = self._life
        self._loop.call_later(delay_us / 1e6, lambda: function() if life == self._life else None)

    def say(self, report: Input) -> None:
        self._incarnation.say(self._reports.as_real(report))

    def spec_of(self, run_no: int, task_index: int) -> TaskSpec:
        return self.tables.spec_of_run(run_no).tasks[task_index]

    # ── interface for the invariants ────────────────────────────────────────────────────

    @property
    def _incarnation(self) -> Incarnation:
        return self._lives[-1]

    @property
    def engine(self) -> Engine:
        return self._incarnation.engine

    @property
    def memory(self) -> Any:
        return self.engine.memory

    @property
    def slots(self) -> Slots:
        return self.engine.slots

    def committed(self, batch: Batch) -> None:
        """Check all invariants for a batch that the engine now believes to be durable."""
        self.turns += 1
        self.digest.update(msgspec.msgpack.encode(batch))
        for row in batch.new_decisions:
            self._voters.notice(row)
        if self._trace is not None:
            self._tell(batch)
        turn = Turn(batch, [], self._before or invariants.Before({}, {}))
        try:
            self._check(batch, turn)
        except Broken as exc:
            self.found(exc)

    def _tell(self, batch: Batch) -> None:
        assert self._trace is not None
        self._trace(f"── commit {batch.number} at {self.clock.monotonic_us() / 1e6:.6f}")
        for task_no, state in batch.steps:
            self._trace(f"   step {task_no} {state.label}")
        for change in (*batch.new_runs, *batch.run_changes, *batch.trigger_changes):
            self._trace(f"   {change}")

    def _check(self, batch: Batch, turn: Turn) -> None:
        if self.tables.commit_no != batch.number:
            raise Broken("durable", f"acts on {batch.number}, stored {self.tables.commit_no}")
        invariants.check(self, turn)
        for change in batch.run_changes:
            if change.quarantine is not None and change.run_no not in self._reports.spoilt:
                raise Broken("quarantine", f"run {change.run_no}: {change.quarantine}")
        begins_anew = any(state is TaskState.PENDING for _, state in batch.steps)
        is_drawn = self.rng.random() < 0.05
        if (is_drawn or self._life != self._looked_at) and not begins_anew:  # settled afterwards
            self._looked_at = self._life  # so each life is checked soon after its restart
            recovery.memory_is_what_rows_say(self)
            liveness.slots_are_what_tasks_hold(self)

    def found(self, broken: Broken) -> None:
        """Record a violation and end the simulation."""
        self.broken = self.broken or broken
        self._over.set()

    def applied(self, batch: Batch) -> None:
        """Mirror a batch that the database has applied, whether or not the engine learns of it."""
        if batch.number != self.tables.commit_no:
            self._before = invariants.before(self, batch)
        self.tables.commit(batch)
        past.note_begun(self.tables, batch)
        self.ledger.record(batch)

    # ── the life of a node ──────────────────────────────────────────────────────────────

    async def live(self, disk: Disk, files: Files) -> None:
        """Run one incarnation after another, until everything has ended."""
        self.files = files
        store: Any = ShakyStore(disk, self)
        self._over = anyio.Event()
        try:
            while not self._over.is_set():
                disk.use_keys(self._keys_of_a_life())
                await self._live_once(store)
        finally:
            for life in self._lives:
                life.children.bury()
        if self.broken is not None:
            raise self.broken
        differences = await compare_with_replay(disk.store)
        if differences:
            raise Broken("I1 journal", "; ".join(differences[:5]))

    def _keys_of_a_life(self) -> tuple[bytes, ...]:
        """Return the keys of the next life: both, or only the second, which is not enough."""
        self._is_keyless = self.faults.happens("key lost")
        if self._is_keyless:
            self.points["key lost"] += 1
            return KEYS[1:]
        return KEYS

    async def _live_once(self, store: Any) -> None:
        self._life += 1
        self.tables.lose_children(self.ledger.take_open())
        self._lives.append(Incarnation(self, store))
        try:
            async with anyio.create_task_group() as services:
                await self._incarnation.start(services)
                services.start_soon(self._end_early)
                services.start_soon(self._outside, services)
                try:
                    await self._over.wait()
                finally:
                    self._services = None
                services.cancel_scope.cancel()
        except* (Crash, Fenced, _Ended):
            self.points["restart"] += 1

    async def _end_early(self) -> None:
        """Stop the node early in some lives, with or without draining."""
        drains, ends = self.faults.happens("drained"), self.faults.happens("ended at once")
        if not drains and not ends:
            return
        await anyio.sleep(self.rng.random() * 300)
        if drains:
            await self._incarnation.drain()
        raise _Ended

    async def _outside(self, services: Any) -> None:
        """Send the requests of clients, and then wait until everything has ended."""
        self._services = services
        self._voters.arrive()
        for spec in self.dags:
            self.say(
                FileParsed(file=spec.file, version=f"v-{spec.dag_id}", dags=(spec,), sources={})
            )
        while self._people_left > 0:
            self._people_left -= 1
            await anyio.sleep(self.rng.randint(1, PEOPLE_REST_US) / 1e6)
            if self.faults.happens("clock steps"):
                self.clock.offset += self.rng.choice((6, -2)) * 3600 * SECOND
            for request in self._crowd.requests():
                services.start_soon(self._crowd.ask, request)
        self.faults.healed = True
        if self._is_keyless:
            raise _Ended
        self._voters.arrive()
        await anyio.sleep(60)  # earlier requests are answered by then
        for name in POOLS[1:]:
            wide = self.rng.random() < 0.5
            await self._crowd.ask(
                SetPool(name=name, slots=4, include_deferred=wide and name == COUNTING)
            )
        for spec in self.dags:  # no new runs, only the existing ones
            is_paused = spec.if_paused != "stop" and spec.trigger is None
            await self._crowd.ask(SetPaused(dag_id=spec.dag_id, paused=is_paused))
        await self._everything_ends()
        self._over.set()

    def ask(self, request: Request, by: Actor | None = None) -> None:
        """Send a request of a client, without waiting for its response."""
        if self._services is not None:
            self._services.start_soon(self._crowd.ask, request, by)

    def _is_owing(self) -> bool:
        tables = self.tables
        is_left = bool(tables.unfinished() or tables.deletions)
        is_left |= any(map(goes_by_itself, tables.outbox.values()))
        return is_left or evented.expects_more(self) or filling.expects_more(self)

    async def _everything_ends(self) -> None:
        until = self._loop.time() + LONGEST_SECONDS
        engine = self._incarnation.engine
        while self._is_owing() or engine.waiting_inputs:
            if self._loop.time() > until:
                self.found(Broken("liveness", recovery.unfinished(self)))
                return
            waiting = {*stuck(self)}
            if self._loop.time() > until - LONGEST_SECONDS / 2:  # what ends has ended by then
                waiting |= starving(self._incarnation.triggerers.values(), self.tables)
                waiting |= self._incarnation.restarting()
            for run_no in self.tables.unfinished():
                run = self.tables.runs[run_no]
                held = run.quarantine is not None or run_no in waiting
                if held and run.state.is_live:
                    await self._crowd.ask(CancelRun(run_id=run.run_id))
            await anyio.sleep(60)
        until = self._loop.time() + LET_GO_SECONDS
        while self.memory.waits and self._loop.time() < until:
            await anyio.sleep(60)
        await anyio.sleep(60)
        try:
            recovery.nothing_left(self)
            self._incarnation.nothing_left()
            self.files.nothing_left(self.tables.deleted)
        except Broken as exc:
            self.found(exc)

    def verdict(self, seed: int, broken: Broken | None) -> Verdict:
        self.points.update(met(self.tables, self.ledger))
        for kind, count in Counter(kind for kind, _ in self.faults.happened).items():
            self.points[kind] = max(self.points[kind], count)
        return Verdict(
            seed=seed,
            steps=self.turns,
            digest=self.digest.hexdigest(),
            points=self.points,
            broken=None if broken is None else str(broken),
            faults=self.faults.happened,
        )


def play(
    seed: int,
    left_out: frozenset[Fault] = frozenset(),
    dropped: tuple[tuple[int, int], ...] = (),
    trace: Callable[[str], None] | None = None,
    people: int = PEOPLE,
) -> Verdict:
    """Run one seed; see ``model.play``. The trace shows the commits.

    Args:
        people: Number of requests, after which everything must end.
    """
    loop = SeededLoop(random.Random(f"loop {seed}"))
    node = LoopNode(seed, loop, left_out, dropped, trace, people)
    loop.set_exception_handler(lambda _, context: _fence_broke(node, context))
    misbehaving.Misbehaving.payloads = itertools.count()
    misbehaving.Misbehaving.killed = set()
    broken: Broken | None = None
    with (
        tempfile.TemporaryDirectory(prefix="aioflow-sim-") as folder,
        _logs(is_traced=trace is not None),
        host_clock(node.wall),
        cancelled_in_order(),
        small_turns(seed),
        without_threads(),
    ):
        disk = Disk(Path(folder))
        try:
            loop.run_until_complete(node.live(disk, Files(Path(folder, "results"))))
            stored.canaries_are_sealed(Path(folder))
        except Broken as exc:
            broken = exc
        except Exception as exc:  # noqa: BLE001 - whatever ends the engine is what we look for
            broken = node.broken or Broken("raised", repr(_cause(exc)), exc)
        except (SystemExit, KeyboardInterrupt) as exc:
            if exc.args != misbehaving.DRAWN:
                raise
            broken = Broken("fence", f"what a trigger raises ends its host: {exc!r}", exc)
        finally:
            loop.close()
            disk.close()
    return node.verdict(seed, broken)


def _cause(exc: BaseException) -> BaseException:
    """Return the first exception inside nested groups."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc


def dags_of(seed: int) -> list[DagSpec]:
    """Return the DAGs of a seed."""
    return draw(seed, random.Random(seed), MIX).dags


@contextmanager
def _logs(*, is_traced: bool) -> Iterator[None]:
    """Set the level of both logging systems: structlog in the engine, logging in the triggerer."""
    level = logging.INFO if is_traced else logging.CRITICAL
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    loggers = [logging.getLogger(name) for name in ("aioflow", "asyncio")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(level + 1)
    try:
        yield
    finally:
        structlog.reset_defaults()
        for logger, its_level in zip(loggers, before, strict=True):
            logger.setLevel(its_level)


def _fence_broke(node: LoopNode, context: dict[str, Any]) -> None:
    problem = context.get("exception")
    if problem is not None:
        node.found(Broken("raised", f"{context['message']}: {problem!r}", problem))
