"""The second level: the real engine, timers and SQLite store on a loop whose order is a seed's.

The actors and the invariants are those of the first level. A table of dictionaries is kept
beside the database; in the end the database is compared with its journal.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import structlog

from aioflow.core.draft import Draft
from aioflow.core.slots import Slots
from aioflow.engine import Engine
from aioflow.errors import RequestError
from aioflow.inputs import (
    CancelRun,
    CreateRun,
    Deliver,
    Delivered,
    EndHosting,
    FileParsed,
    HostTrigger,
    Input,
    RecallTries,
    Request,
    SetPaused,
    SetPool,
    StartTry,
    StopTry,
)
from aioflow.model import RunState, TaskSpec, TaskState
from aioflow.rows import Batch
from aioflow.store.replay import compare
from tests.sim import invariants, recovery
from tests.sim.actors import AsyncHost, TriggerHost, Worker
from tests.sim.broken import Broken
from tests.sim.faults import Fault, Faults
from tests.sim.invariants import Turn
from tests.sim.ledger import Ledger
from tests.sim.loop import SeededLoop
from tests.sim.model import Verdict
from tests.sim.shaky_store import Crash, ShakyStore, open_inline, template
from tests.sim.tables import Tables, changed_tasks
from tests.sim.workload import POOLS, SECOND, make_dags

__all__ = ("play",)

CPU_SLOTS, ASYNC_SLOTS = 3, 4
PEOPLE, PEOPLE_REST_US = 60, 10 * SECOND
LONGEST_SECONDS = 90 * 24 * 3600.0
_BEGIN_US = 1_700_000_000 * SECOND


class _Clock:
    """The loop's time, and a wall that may step."""

    def __init__(self, loop: SeededLoop) -> None:
        self._loop = loop
        self.offset = _BEGIN_US

    def now(self) -> int:
        return self.monotonic_us() + self.offset

    def monotonic_us(self) -> int:
        return int(self._loop.time() * 1e6)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class LoopNode:
    """One node after the other on one database; outlets and stage at once."""

    def __init__(self, seed: int, loop: SeededLoop, left_out: frozenset[Fault]) -> None:
        self.rng = random.Random(seed)
        self.faults = Faults(self.rng, left_out)
        self.ledger, self.tables = Ledger(), Tables()
        self.points: Counter[str] = Counter()
        self.turns = 0
        self.broken: Broken | None = None
        self.digest = hashlib.sha256()
        self._dags = make_dags(self.rng)
        self._loop = loop
        self._clock = _Clock(loop)
        self._life = 0
        self._before: invariants.Before | None = None
        self._keys = itertools.cycle((None, "key1", None, "key2"))

    # ── a stage for the actors ──────────────────────────────────────────────────────────

    def wall(self) -> int:
        return self._clock.now()

    def after(self, delay_us: int, function: Callable[[], None]) -> None:
        life = self._life
        self._loop.call_later(delay_us / 1e6, lambda: function() if life == self._life else None)

    def say(self, report: Input) -> None:
        self._engine.report([report])

    def spec_of(self, effect: StartTry) -> TaskSpec:
        plan = self.memory.plans[effect.info.version, effect.info.dag_id]
        return plan.graph.spec.tasks[effect.start.position]

    # ── what the invariants look at ─────────────────────────────────────────────────────

    @property
    def memory(self) -> Any:
        return self._engine.memory

    @property
    def slots(self) -> Slots:
        return self._engine.slots

    # ── outlets ─────────────────────────────────────────────────────────────────────────

    def start_try(self, effect: StartTry) -> None:
        self._guard(lambda: invariants.start_is_stored(self, effect))
        host = self._async if effect.worker < 0 else self._workers[effect.worker]
        host.start(effect)

    def stop_try(self, effect: StopTry) -> None:
        host = self._async if effect.worker < 0 else self._workers[effect.worker]
        host.stop((effect.task_no, effect.start_no))

    def recall(self, effect: RecallTries) -> None:
        self._workers[effect.worker].recall(effect.tries)

    def forget(self, run_no: int) -> None:
        """The actors remember no runs."""

    def host(self, effect: HostTrigger) -> None:
        self._triggers.host(effect)

    def end_hosting(self, effect: EndHosting) -> None:
        self._triggers.end(effect.end)

    def deliver(self, effect: Deliver) -> None:
        self.after(self.rng.randint(0, SECOND), lambda: self.say(Delivered(effect.outbox_no)))

    def committed(self, batch: Batch, draft: Draft) -> None:
        """The engine believes it is durable: everything is checked."""
        self.turns += 1
        self.digest.update(msgspec.msgpack.encode(batch))
        turn = Turn(batch, [], self._before or invariants.Before({}, {}))
        self._guard(lambda: self._check(batch, turn))

    def _check(self, batch: Batch, turn: Turn) -> None:
        if self.tables.commit_no != batch.number:
            raise Broken("durable", f"acts on {batch.number}, stored {self.tables.commit_no}")
        invariants.check(self, turn)
        for row in self.tables.runs.values():
            if row.quarantine is not None:
                raise Broken("quarantine", f"run {row.run_no}: {row.quarantine}")
        if self.rng.random() < 0.05:
            recovery.memory_is_what_rows_say(self)

    def _guard(self, check: Callable[[], None]) -> None:
        """What is found inside the engine's circle must not be taken for a defect of a turn."""
        try:
            check()
        except Broken as exc:
            self.broken = self.broken or exc
            self._over.set()

    def applied(self, batch: Batch) -> None:
        """The database has it, whether the engine will hear or not."""
        if batch.number != self.tables.commit_no:
            self._before = invariants.before(self, batch)
        self.tables.commit(batch)
        for row in changed_tasks(batch):
            if row.state is TaskState.SUCCESS:
                self.ledger.recorded.add(row.task_no)
        self.ledger.deadlines |= {
            row.trigger_no for row in batch.new_triggers if row.deadline_at is not None
        }

    # ── the life of a node ──────────────────────────────────────────────────────────────

    async def live(self, store: Any) -> None:
        """Incarnation after incarnation, until all is over."""
        shaky: Any = ShakyStore(store, self.faults, self.points, self.applied)
        self._over = anyio.Event()
        self._people_left = PEOPLE
        while not self._over.is_set():
            self._life += 1
            self.tables.lose_children(self.ledger.take_open())
            self._engine = Engine(
                shaky,
                Slots(cpu_slots=CPU_SLOTS, async_slots=ASYNC_SLOTS),
                clock=self._clock,
                chance=self.rng.random,
            )
            self._engine.connect(self)
            self._workers = [Worker(self) for _ in range(CPU_SLOTS)]
            self._async, self._triggers = AsyncHost(self), TriggerHost(self)
            try:
                async with anyio.create_task_group() as services:
                    await services.start(self._engine.run)
                    services.start_soon(self._outside, services)
                    await self._over.wait()
                    services.cancel_scope.cancel()
            except* Crash:
                self.points["restart"] += 1
        if self.broken is not None:
            raise self.broken
        differences = await compare(store)
        if differences:
            raise Broken("I1 journal", "; ".join(differences[:5]))

    async def _outside(self, services: Any) -> None:
        """Hosts come up, people ask, and then everything must come to its end."""
        for host in (self._async, self._triggers):
            self.after(self.rng.randint(0, 3 * SECOND), host.come_up)
        for spec in self._dags:
            self.say(
                FileParsed(file=spec.file, version=f"v-{spec.dag_id}", dags=(spec,), sources={})
            )
        while self._people_left > 0:
            self._people_left -= 1
            await anyio.sleep(self.rng.randint(1, PEOPLE_REST_US) / 1e6)
            if self.faults.happens("clock steps"):
                self._clock.offset += self.rng.choice((6, -2)) * 3600 * SECOND
            services.start_soon(self._ask, self._request())
        self.faults.healed = True
        await anyio.sleep(60)  # what was asked before is answered by then
        for name in POOLS[1:]:
            await self._ask(SetPool(name=name, slots=4))
        for spec in self._dags:
            await self._ask(SetPaused(dag_id=spec.dag_id, paused=True))
        await self._everything_ends()
        self._over.set()

    async def _everything_ends(self) -> None:
        until = self._loop.time() + LONGEST_SECONDS
        while self.tables.unfinished() or self._engine.waiting_inputs or self.tables.outbox:
            if self._loop.time() > until:
                self.broken = Broken("liveness", recovery.unfinished(self))
                return
            await anyio.sleep(60)
        await anyio.sleep(30)
        self._guard(lambda: recovery.nothing_left(self))

    def _request(self) -> Request:
        rng = self.rng
        dag_id = rng.choice(self._dags).dag_id
        runs = [self.tables.runs[no].run_id for no in self.tables.unfinished()]
        match rng.choice(("run", "run", "cancel", "pool", "pause", "resume")):
            case "cancel" if runs and self.faults.happens("operator"):
                return CancelRun(run_id=rng.choice(runs))
            case "pool":
                return SetPool(name=rng.choice(POOLS[1:]), slots=rng.choice((None, 1, 2, 3)))
            case "pause" | "resume" as verb:
                return SetPaused(dag_id=dag_id, paused=verb == "pause")
            case _:
                key = next(self._keys)
                if any((row.dag_id, row.key) == (dag_id, key) for row in self.tables.runs.values()):
                    key = None  # the API answers with the run there is
                return CreateRun(dag_id=dag_id, key=key)

    async def _ask(self, request: Request) -> None:
        try:
            answer = await self._engine.ask(request)
        except RequestError:
            return
        if isinstance(request, CreateRun) and isinstance(answer, tuple):
            known = {row.run_id for row in self.tables.runs.values()}
            if answer[0] not in known:
                self.broken = Broken("I12 acknowledged", f"run {answer[0]} is not stored")
                self._over.set()

    def verdict(self, seed: int, broken: Broken | None) -> Verdict:
        ended = Counter(row.state for row in self.tables.runs.values())
        self.points["run ended"] += sum(n for s, n in ended.items() if s >= RunState.SUCCESS)
        self.points["event consumed"] += len(self.tables.fired)
        self.points["fenced repeat"] += self.tables.fenced
        return Verdict(
            seed=seed,
            steps=self.turns,
            digest=self.digest.hexdigest(),
            points=self.points,
            broken=None if broken is None else str(broken),
            faults=self.faults.happened,
        )


_folder = tempfile.TemporaryDirectory(prefix="aioflow-sim-", ignore_cleanup_errors=True)


def play(
    seed: int,
    left_out: frozenset[Fault] = frozenset(),
    trace: Callable[[str], None] | None = None,
) -> Verdict:
    """Live one seed; see ``model.play``. What the engine logs is the trace."""
    level = logging.INFO if trace is not None else logging.CRITICAL
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    loop = SeededLoop(random.Random(f"loop {seed}"))
    node = LoopNode(seed, loop, left_out)
    broken: Broken | None = None
    with tempfile.TemporaryDirectory(prefix="aioflow-sim-") as folder:
        store, close = open_inline(template(Path(_folder.name)), Path(folder))
        try:
            loop.run_until_complete(node.live(store))
        except Broken as exc:
            broken = exc
        except Exception as exc:  # noqa: BLE001 - whatever ends the engine is what we look for
            broken = node.broken or Broken("raised", f"{type(exc).__name__}: {exc!r}", exc)
        finally:
            loop.close()
            close()
            structlog.reset_defaults()
    return node.verdict(seed, broken)
