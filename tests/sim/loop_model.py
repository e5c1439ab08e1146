"""The second level: the real engine, timers, triggerer and SQLite store on a loop of a seed.

Any of what is ready may run next, so every await is a place where something else comes in
between. The actors and the invariants are those of the first level. A table of dictionaries
is kept beside the database, which is compared with it row by row, and in the end with its
journal.
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

from aioflow.core.slots import Slots
from aioflow.errors import AioflowError, Fenced, RequestError
from aioflow.inputs import FileParsed, Input
from aioflow.messages import Awaiting, Deferred, StreamOpened, Succeeded
from aioflow.model import DagSpec, TaskSpec, TaskState
from aioflow.requests import CancelRun, CreateRun, DeleteRun, EmitEvent, Request, SetPaused, SetPool
from aioflow.rows import Batch
from aioflow.store.replay import compare
from tests.sim import evented, filling, invariants, misbehaving, past, recovery, stored
from tests.sim.broken import Broken
from tests.sim.disk import KEYS, Disk
from tests.sim.drawing import SECOND as MIX
from tests.sim.drawing import draw, small_turns
from tests.sim.evented import Sender
from tests.sim.faults import Fault
from tests.sim.files import Files, without_threads
from tests.sim.filling import Filler
from tests.sim.incarnation import Incarnation
from tests.sim.invariants import Turn
from tests.sim.ledger import Ledger
from tests.sim.loop import SeededLoop, cancelled_in_order
from tests.sim.loop_faults import LoopFaults
from tests.sim.misbehaving import NAMED
from tests.sim.model import Verdict
from tests.sim.operating import Operator, says
from tests.sim.past import draw_date, stuck
from tests.sim.pipe import host_clock
from tests.sim.script import UNSTORABLE, plan_of
from tests.sim.shaky_store import Crash, ShakyStore
from tests.sim.tables import Tables
from tests.sim.workload import COUNTING, POOLS, SECOND, without

__all__ = ("PEOPLE", "dags_of", "play")

PEOPLE, PEOPLE_REST_US = 60, 10 * SECOND
LONGEST_SECONDS = 4 * 24 * 3600.0
LET_GO_SECONDS = 20_000.0
"""A host that hangs is found out, and what it was to let go of is gone with it."""

_ENDS = ("",) * 8 + ("failed", "skipped")
"""What comes of an event: the task resumes, or ends."""

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


class _Ended(Exception):
    """A life of the node has ended as it was told to."""


class LoopNode:
    """One node after the other on one database, and the people before it."""

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
        self.turns = 0
        self.broken: Broken | None = None
        self.digest = hashlib.sha256()
        self.clock = _Clock(loop)
        self.seed = self._seed = seed
        self._trace = trace
        self._dags = draw(seed, self.rng, MIX).dags
        self._operator = Operator(seed, self.tables)
        self._sender = Sender(seed, self._dags)
        self._filler = Filler(seed, self._dags, self.tables)
        self._dated = random.Random(f"dates {seed}")
        for dag, position in dropped:
            self._dags[dag] = without(self._dags[dag], position)
        self._loop = loop
        self._life = 0
        self._lives: list[Incarnation] = []
        self._before: invariants.Before | None = None
        self._keys = itertools.cycle((None, "key1", None, "key2"))
        self._people_left = people
        self._spoilt: set[int] = set()

    # ── a stage for the actors ──────────────────────────────────────────────────────────

    def wall(self) -> int:
        return self.clock.now()

    def after(self, delay_us: int, function: Callable[[], None]) -> None:
        life = self._life
        self._loop.call_later(delay_us / 1e6, lambda: function() if life == self._life else None)

    def say(self, report: Input) -> None:
        if isinstance(report, Deferred):
            report = self._with_trigger(report)
        elif isinstance(report, Awaiting):
            report = self._with_triggers(report)
        elif isinstance(report, StreamOpened):
            rng = random.Random(f"{self._seed} {report.task_no} {report.start_no} {report.ordinal}")
            path, kwargs = misbehaving.draw_stream(rng, report.kwargs, plan_of(report.kwargs))
            report = msgspec.structs.replace(report, class_path=path, kwargs=kwargs)
        elif isinstance(report, Succeeded) and report.body == UNSTORABLE:
            self._spoilt.add(self.tables.tasks[report.task_no].run_no)
        if isinstance(report, Succeeded):
            self._leave_result(report)
        self._incarnation.say(report)

    def _leave_result(self, report: Succeeded) -> None:
        """What it returned is large, too; of a run that is gone it is said too late."""
        row = self.tables.tasks.get(report.task_no)
        if row is not None and row.run_no not in self.tables.deleted:
            self.files.leave(row.run_no, report.task_no, report.start_no)

    def spec_of(self, run_no: int, position: int) -> TaskSpec:
        return self.tables.spec_of_run(run_no).tasks[position]

    def _with_trigger(self, report: Deferred) -> Deferred:
        """The same one for the same start, however often it is reported."""
        start = f"{self._seed} {report.task_no} {report.start_no}"
        class_path, kwargs = misbehaving.draw(
            random.Random(start),
            report.kwargs,
            badly=self.faults.happens("trigger misbehaves"),
            has_timeout=report.timeout_us is not None,
            ends=random.Random(f"ends {start}").choice(_ENDS),
        )
        return msgspec.structs.replace(report, class_path=class_path, kwargs=kwargs)

    def _with_triggers(self, report: Awaiting) -> Awaiting:
        """See ``_with_trigger``."""
        rng = random.Random(f"{self._seed} {report.task_no} {report.start_no} {report.ordinal}")
        if report.triggers and report.triggers[0][0] == "sim:Named":
            return msgspec.structs.replace(report, triggers=((NAMED, report.triggers[0][1]),))
        badly = self.faults.happens("trigger misbehaves")
        has_timeout = report.timeout_us is not None
        triggers = tuple(
            misbehaving.draw(rng, kwargs, badly=badly, has_timeout=has_timeout)
            for _, kwargs in report.triggers
        )
        return msgspec.structs.replace(report, triggers=triggers)

    # ── what the invariants look at ─────────────────────────────────────────────────────

    @property
    def _incarnation(self) -> Incarnation:
        return self._lives[-1]

    @property
    def memory(self) -> Any:
        return self._incarnation.engine.memory

    @property
    def slots(self) -> Slots:
        return self._incarnation.engine.slots

    def committed(self, batch: Batch) -> None:
        """The engine believes it is durable: everything is checked."""
        self.turns += 1
        self.digest.update(msgspec.msgpack.encode(batch))
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
            if change.quarantine is not None and change.run_no not in self._spoilt:
                raise Broken("quarantine", f"run {change.run_no}: {change.quarantine}")
        begins_anew = any(state is TaskState.PENDING for _, state in batch.steps)
        if self.rng.random() < 0.05 and not begins_anew:  # that is settled after the commit
            recovery.memory_is_what_rows_say(self)

    def found(self, broken: Broken) -> None:
        """Something does not hold: all is over."""
        self.broken = self.broken or broken
        self._over.set()

    def applied(self, batch: Batch) -> None:
        """The database has it, whether the engine will hear or not."""
        if batch.number != self.tables.commit_no:
            self._before = invariants.before(self, batch)
        self.tables.commit(batch)
        past.note_begun(self.tables, batch)
        self.ledger.record(batch)

    # ── the life of a node ──────────────────────────────────────────────────────────────

    async def live(self, disk: Disk, files: Files) -> None:
        """Incarnation after incarnation, until all is over."""
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
        differences = await compare(disk.store)
        if differences:
            raise Broken("I1 journal", "; ".join(differences[:5]))

    def _keys_of_a_life(self) -> tuple[bytes, ...]:
        """Once there was another key, the first is not enough."""
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
                await self._over.wait()
                services.cancel_scope.cancel()
        except* (Crash, Fenced, _Ended):
            self.points["restart"] += 1

    async def _end_early(self) -> None:
        """Somebody stops the node, in one way or the other."""
        drains, ends = self.faults.happens("drained"), self.faults.happens("ended at once")
        if not drains and not ends:
            return
        await anyio.sleep(self.rng.random() * 300)
        if drains:
            await self._incarnation.drain()
        raise _Ended

    async def _outside(self, services: Any) -> None:
        """People ask, and then everything must come to its end."""
        for spec in self._dags:
            self.say(
                FileParsed(file=spec.file, version=f"v-{spec.dag_id}", dags=(spec,), sources={})
            )
        while self._people_left > 0:
            self._people_left -= 1
            await anyio.sleep(self.rng.randint(1, PEOPLE_REST_US) / 1e6)
            if self.faults.happens("clock steps"):
                self.clock.offset += self.rng.choice((6, -2)) * 3600 * SECOND
            request = self._request()
            if self.faults.is_asked():
                services.start_soon(self._ask, request)
            operator = self._operator
            others = (self._sender.event(), self._filler.wish(self.wall()))
            for wish in (operator.clear(), operator.mark(), operator.delete(), *others):
                if wish is not None and self.faults.is_asked():
                    self._note(wish)
                    services.start_soon(self._ask, wish)
        self.faults.healed = True
        if self._is_keyless:
            raise _Ended
        await anyio.sleep(60)  # what was asked before is answered by then
        for name in POOLS[1:]:
            wide = self.rng.random() < 0.5
            await self._ask(SetPool(name=name, slots=4, include_deferred=wide and name == COUNTING))
        for spec in self._dags:  # no more runs, but those there are
            is_paused = spec.if_paused != "stop" and spec.trigger is None
            await self._ask(SetPaused(dag_id=spec.dag_id, paused=is_paused))
        await self._everything_ends()
        self._over.set()

    def _is_owing(self) -> bool:
        tables = self.tables
        is_left = bool(tables.unfinished() or tables.outbox or tables.deletions)
        return is_left or evented.expects_more(self) or filling.expects_more(self)

    async def _everything_ends(self) -> None:
        until = self._loop.time() + LONGEST_SECONDS
        engine = self._incarnation.engine
        while self._is_owing() or engine.waiting_inputs:
            if self._loop.time() > until:
                self.found(Broken("liveness", recovery.unfinished(self)))
                return
            waiting = stuck(self)
            for run_no in self.tables.unfinished():
                run = self.tables.runs[run_no]
                held = run.quarantine is not None or run_no in waiting
                if held and run.state.is_live:
                    await self._ask(CancelRun(run_id=run.run_id))
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

    def _request(self) -> Request:
        rng = self.rng
        dag_id = rng.choice(self._dags).dag_id
        runs = [self.tables.runs[no].run_id for no in self.tables.unfinished()]
        match rng.choice(("run", "run", "cancel", "pool", "pause", "resume", "emit", "emit")):
            case "emit":
                key = next(self._keys)
                if self._has_emitted("t0", key):
                    key = None  # the API answers with the event there is
                return EmitEvent(name="t0", key=None, data=b"\xc0", request=key)
            case "cancel" if runs and self.faults.happens("operator"):
                return CancelRun(run_id=rng.choice(runs))
            case "pool":
                name = rng.choice(POOLS[1:])
                return SetPool(
                    name=name,
                    slots=rng.choice((None, 1, 2, 3)),
                    include_deferred=name == COUNTING and rng.random() < 0.5,
                )
            case "pause" | "resume" as verb:
                return SetPaused(dag_id=dag_id, paused=verb == "pause")
            case _:
                key = next(self._keys)
                if self._has_key(dag_id, key):
                    key = None  # the API answers with the run there is
                return CreateRun(dag_id=dag_id, key=key, logical_date=draw_date(self._dated))

    def _note(self, request: Request) -> None:
        if said := says(request):
            run_id, state = said
            self.tables.said[run_id].add(state)

    def _has_emitted(self, name: str, request: str | None) -> bool:
        rows = self.tables.named_events.values()
        return request is not None and any((r.name, r.request) == (name, request) for r in rows)

    def _has_key(self, dag_id: str, key: str | None) -> bool:
        runs = self.tables.runs.values()
        return key is not None and any((row.dag_id, row.key) == (dag_id, key) for row in runs)

    async def _ask(self, request: Request) -> None:
        try:
            answer = await self._incarnation.engine.ask(request)
        except RequestError:
            return
        except AioflowError as exc:
            # Another one with its key came in between; the API answers with what that made.
            match request:
                case CreateRun():
                    is_there = self._has_key(request.dag_id, request.key)
                case EmitEvent():
                    is_there = self._has_emitted(request.name, request.request)
                case _:
                    is_there = False
            if not is_there:
                self.found(Broken("request", f"{request}: {exc!r}"))
            return
        if isinstance(request, EmitEvent) and isinstance(answer, tuple):
            if answer[0] not in self.tables.named_events:
                self.found(Broken("I12 acknowledged", f"event {answer[0]} is not stored"))
            return
        if isinstance(request, CreateRun) and isinstance(answer, tuple):
            self._is_there(answer[0])
        if isinstance(request, DeleteRun) and self.tables.find(request.run_id) is not None:
            self.found(Broken("I12 acknowledged", f"run {request.run_id} is still seen"))

    def _is_there(self, run_id: str) -> None:
        if run_id not in self.tables.run_ids.values():
            self.found(Broken("I12 acknowledged", f"run {run_id} is not stored"))

    def verdict(self, seed: int, broken: Broken | None) -> Verdict:
        self.points["run ended"] += len(self.tables.ends)
        self.points["run of an event"] += evented.runs_begun(self.tables)
        self.points["run of a backfill"] += len(self.tables.filled)
        self.points["run cleared"] += len(self.tables.cleared_runs)
        self.points["run marked"] += len(self.tables.marked_runs)
        self.points["run deleted"] += len(self.tables.deleted)
        self.points["call answered"] += self.ledger.told.calls
        self.points["event emitted"] += len(self.tables.named_events)
        self.points["event told"] += self.ledger.told.named
        self.points["run called"] += len(self.tables.called)
        self.points["call replayed"] += self.ledger.told.replayed
        self.points["item given on"] += len(self.tables.items)
        self.points["open fan-out"] += self.tables.opened
        self.points["event of a stream"] += self.tables.consumed.total()
        self.points["event consumed"] += len(self.tables.fired)
        self.points["fenced repeat"] += self.tables.fenced
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
    """Live one seed; see ``model.play``. The trace tells what was committed.

    Args:
        people: How many requests are made before everything must come to its end.
    """
    loop = SeededLoop(random.Random(f"loop {seed}"))
    node = LoopNode(seed, loop, left_out, dropped, trace, people)
    loop.set_exception_handler(lambda _, context: _fence_broke(node, context))
    misbehaving.Misbehaving.payloads = itertools.count()
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
        finally:
            loop.close()
            disk.close()
    return node.verdict(seed, broken)


def _cause(exc: BaseException) -> BaseException:
    """The first error in a group of groups."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc


def dags_of(seed: int) -> list[DagSpec]:
    """Return the DAGs of a seed."""
    return draw(seed, random.Random(seed), MIX).dags


@contextmanager
def _logs(*, is_traced: bool) -> Iterator[None]:
    """The engine logs through structlog, the triggerer and what it stands on do not."""
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
