"""A node without I/O: ``decide`` over dictionaries with the guards of the database."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from aioflow.api.task_instances import absent_state
from aioflow.core import outbox, rollback
from aioflow.core.runs import previous
from aioflow.core.runs.restore import restore_run
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state import outbox_quota
from aioflow.core.state.id_block import IdBlock
from aioflow.core.state.memory import Memory
from aioflow.core.state.run_sequence import EndedRun, last_rounds, run_key, stored_as
from aioflow.core.step import decide
from aioflow.core.transaction import Transaction
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.states import Failure
from aioflow.model.timestamps import Moment
from aioflow.model.triggers import EventOutcome
from aioflow.protocol.effects import (
    Acknowledge,
    Again,
    DeliverOutbox,
    Effect,
    StartTry,
    StopTry,
    WakeAt,
)
from aioflow.protocol.inputs import (
    ClockStepped,
    FileParsed,
    HostUp,
    Input,
    RequestReceived,
    Restarted,
)
from aioflow.protocol.reports import Failed, Succeeded
from aioflow.protocol.requests import CreateRun
from tests.core.stored_rows import Rows, recall

SECOND = 1_000_000


def instant(wake: WakeAt) -> int:
    return wake.due.at if wake.at is None else wake.at


class World:
    """A node over dictionaries. It handles inputs, and records started tasks and armed timers."""

    def __init__(self, *, cpu_slots: int = 2, async_slots: int = 1000, random: float = 0.0) -> None:
        self.rows = Rows()
        self.now = 1_700_000_000 * SECOND
        self.cpu_slots, self.async_slots = cpu_slots, async_slots
        self.random = random
        self.shift = 0
        self.epoch = 0
        self._tickets = itertools.count()
        self.first_number = 1
        self.batches: list[Batch] = []
        self.start_up()

    def start_up(self) -> None:
        """Start a new incarnation, with a memory restored from the rows alone."""
        self.epoch += 1
        self.memory = Memory(epoch=self.epoch)
        self.memory.commit_no = self.rows.commit_no
        self.memory.shift = self.shift
        self.slots = Slots(cpu_slots=self.cpu_slots, async_slots=self.async_slots)
        self.numbers = IdBlock(self.first_number, self.first_number + 10**9)
        self.first_number += 10**9
        self.effects: list[Effect] = []
        self.starts: dict[int, StartTry] = {}
        self.armed: list[WakeAt] = []
        rollback.recall_catalog(
            self.memory,
            list(self.rows.dags.values()),
            list(self.rows.files.values()),
        )
        outbox.begin(self.memory, *self.rows.owed())
        self.memory.is_drained = self.memory.node_no in self.rows.drained
        going = (row for row in self.rows.backfills.values() if row.state == "running")
        self.memory.backfills = {row.backfill_no: row for row in going}
        for version in self.rows.versions.values():
            self.memory.stored_versions.add(version.version)
            for spec in version.dags:
                self.memory.add_plan(version.version, spec)
        held = [row for row in self.rows.dag_events.values() if row.outcome is EventOutcome.HELD]
        self.memory.dag_triggers.restore(self.rows.dag_triggers.values(), held)
        unfinished = self.rows.unfinished()
        self.memory.stray_triggers = [
            row for row in self.rows.triggers.values() if row.run_no not in unfinished
        ]
        for run_no in unfinished:
            restore_run(self.rows.live_run(run_no), self.memory)

    def restart(self) -> None:
        """Crash, restart without the armed timers, and report every host as ready."""
        self.armed.clear()
        self.start_up()
        self.turn(Restarted(has_crashed=True))
        self.turn(HostUp("async"), HostUp("triggers"))

    def decide(self, inputs: Iterable[Input]) -> tuple[Batch, list[Effect], Transaction]:
        inputs = list(inputs)
        self.recall(inputs)
        return decide(
            self.memory,
            self.slots,
            list(inputs),
            at=self.moment,
            random=lambda: self.random,
            numbers=self.numbers,
        )

    def recall(self, inputs: list[Input]) -> None:
        """Read the rows that a turn needs, as ``engine.prefetch`` does from a database."""
        self.memory.loaded_outbox = self.rows.found_owed(
            outbox_quota.wanted(inputs, self.memory.outbox_quotas)
        )
        recall(inputs, self.memory, self.rows)
        for dag_id, orders in previous.wanted(inputs, self.memory):
            for order in orders:
                self.memory.run_sequences[dag_id].learn(order, self._ended_before(dag_id, order))

    def _ended_before(self, dag_id: str, order: tuple[int, int]) -> EndedRun | None:
        dated = [(run_key(run), run) for run in self.rows.seen() if run.dag_id == dag_id]
        found = max(((at, run) for at, run in dated if at is not None and at < order), default=None)
        if found is None or found[1].run_no in self.memory.runs:
            return None
        row = found[1]
        spec = next(s for s in self.rows.versions[row.version].dags if s.dag_id == dag_id)
        of_run = [task for task in self.rows.tasks.values() if task.run_no == row.run_no]
        counts = Counter((task.task_index, task.state) for task in of_run)
        expansions = [e for (number, _), e in self.rows.expansions.items() if number == row.run_no]
        rounds = [self.rows.tasks[n] for n in last_rounds(spec, expansions) if n in self.rows.tasks]
        return stored_as(row, spec, [(*key, n) for key, n in counts.items()], expansions, rounds)

    def turn(self, *inputs: Input) -> list[Effect]:
        """Run a turn, and the further turns that continue it."""
        effects = self._turn(inputs)
        done = list(effects)
        while again := [e for e in effects if isinstance(e, Again)]:
            effects = self._turn(again)
            done.extend(effects)
        return done

    def _turn(self, inputs: Iterable[Input]) -> list[Effect]:
        batch, effects, tx = self.decide(inputs)
        self._commit(batch, tx)
        for effect in effects:
            if isinstance(effect, StartTry):
                self.starts[effect.start.task_no] = effect
            elif isinstance(effect, StopTry):
                self.starts.pop(effect.task_no, None)
            elif isinstance(effect, WakeAt):
                self.armed.append(effect)
        self.effects.extend(effects)
        return effects

    def aside(self, change: Callable[[Transaction], None]) -> None:
        """Commit a change that the engine makes outside its turns."""
        tx = Transaction(
            self.memory,
            self.slots,
            at=self.moment,
            random=lambda: self.random,
            numbers=self.numbers,
        )
        change(tx)
        self._commit(tx.close(), tx)
        self.effects.extend(tx.effects)

    def _commit(self, batch: Batch, tx: Transaction) -> None:
        if not batch.is_empty:
            self.batches.append(batch)
            self.rows.apply(batch)
            self.memory.commit_no = batch.number
        tx.mark_durable()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and fire the timers that become due."""
        self.now += int(seconds * SECOND)
        due = [wake for wake in self.armed if self._has_come(wake)]
        self.armed = [wake for wake in self.armed if not self._has_come(wake)]
        if due:
            self.turn(*(wake.due for wake in due))

    def _has_come(self, wake: WakeAt) -> bool:
        return instant(wake) <= (self.now if wake.due.dag_id else self.moment.steady)

    @property
    def moment(self) -> Moment:
        steady = self.now - self.shift
        return Moment(self.now, steady, steady, self.shift)

    def set_clock(self, seconds: float) -> None:
        """Step the wall clock. A turn notices the step."""
        self.now += int(seconds * SECOND)
        self.shift += int(seconds * SECOND)
        self.turn(ClockStepped())

    def refuse(self, *inputs: Input) -> None:
        """Run a turn whose batch is refused: roll it back, and repeat its inputs one by one."""
        _, _, tx = self.decide(inputs)
        self.take_back(tx)
        for entry in inputs:
            self.turn(entry)

    def take_back(self, tx: Transaction) -> None:
        """Roll back a turn that was not committed, as the engine does."""
        places = rollback.forget(self.memory, tx)
        rollback.restore_pools(tx)
        rollback.recall_catalog(
            self.memory, list(self.rows.dags.values()), list(self.rows.files.values())
        )
        runs = [
            restore_run(self.rows.live_run(run_no), self.memory)
            for run_no in tx.runs
            if run_no in self.rows.runs and self.rows.runs[run_no].ended_at is None
        ]
        asking = rollback.restore_slots(runs, places, self.memory, tx)
        if asking:
            self.turn(*asking)

    # ── requests of users ───────────────────────────────────────────────────────────────

    def ask(self, request: Any) -> Any:
        ticket = next(self._tickets)
        for effect in self.turn(RequestReceived(ticket, request)):
            if isinstance(effect, Acknowledge) and effect.ticket == ticket:
                if effect.error is not None:
                    raise effect.error
                return effect.answer
        raise AssertionError("not answered")

    def load(self, *specs: DagSpec, version: str = "v1", file: str = "dag.py") -> None:
        self.turn(FileParsed(file=file, version=version, dags=specs, sources={}))
        if "async" not in self.memory.hosts_up:
            self.turn(HostUp("async"), HostUp("triggers"))

    def trigger(self, dag_id: str = "dag", **fields: Any) -> int:
        run_id, _ = self.ask(CreateRun(dag_id=dag_id, **fields))
        return next(no for no, run in self.rows.runs.items() if run.run_id == run_id)

    def begin(self, *tasks: TaskSpec, **options: Any) -> int:
        """Load one DAG with these tasks, and start a run of it."""
        self.load(DagSpec(dag_id="dag", file="dag.py", tasks=tasks, **options))
        return self.trigger()

    # ── reports of children ─────────────────────────────────────────────────────────────

    def started(self, name: str, map_index: int = -1) -> StartTry | None:
        for effect in self.starts.values():
            spec = self._spec(effect)
            if (spec.task_id, effect.start.map_index) == (name, map_index):
                return effect
        return None

    def _spec(self, effect: StartTry) -> TaskSpec:
        dag_version = self.memory.dag_versions[effect.info.version, effect.info.dag_id]
        return dag_version.graph.spec.tasks[effect.start.task_index]

    def succeed(self, name: str, map_index: int = -1, **fields: Any) -> list[Effect]:
        effect = self.started(name, map_index)
        assert effect is not None, f"{name}[{map_index}] has not been started"
        start = self.starts.pop(effect.start.task_no).start
        return self.turn(
            Succeeded(start.task_no, start.start_no, self.now, self.now + 50, **fields)
        )

    def fail(
        self, name: str, map_index: int = -1, *, reason: str = "raised", **fields: Any
    ) -> list[Effect]:
        effect = self.started(name, map_index)
        assert effect is not None, f"{name}[{map_index}] has not been started"
        start = self.starts.pop(effect.start.task_no).start
        failure = Failure(type="ValueError", message="no", reason=reason)
        return self.turn(
            Failed(start.task_no, start.start_no, self.now, self.now + 50, failure, **fields)
        )

    def finish_all(self) -> None:
        """Let all started tasks succeed until no more tasks start."""
        while self.starts:
            reports = [
                Succeeded(e.start.task_no, e.start.start_no, self.now, self.now + 50)
                for e in self.starts.values()
            ]
            self.starts.clear()
            self.turn(*reports)

    # ── observations ────────────────────────────────────────────────────────────────────

    def state(self, run_no: int, name: str, map_index: int = -1) -> str:
        """Return the state that a reader sees, including that of a task without a row."""
        run = self.rows.runs[run_no]
        spec = self.memory.dag_versions[run.version, run.dag_id].graph.spec
        task_index = [task.task_id for task in spec.tasks].index(name)
        for row in self.rows.tasks.values():
            if (row.run_no, row.task_index, row.map_index) == (run_no, task_index, map_index):
                return row.state.label
        return absent_state(run.state).label

    def run_state(self, run_no: int) -> str:
        return self.rows.runs[run_no].state.label

    def alerts(self) -> list[DeliverOutbox]:
        return [effect for effect in self.effects if isinstance(effect, DeliverOutbox)]
