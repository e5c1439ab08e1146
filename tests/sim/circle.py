"""The engine loop over dictionaries, in which a commit can fail in every possible way.

Each turn is decided, committed and checked; then its effects are performed. If a turn raises or its
batch is refused, it is rolled back as in ``engine``, and its inputs are processed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from aioflow.core import rollback
from aioflow.core.quarantine import (
    DecideWithout,
    FailBackfill,
    QuarantineRuns,
    RefuseRequest,
    RepeatInput,
    RetryTimer,
    consequence,
    quarantine_run,
)
from aioflow.core.repair.clear import portion
from aioflow.core.runs.restore import restore_run, split_restart
from aioflow.core.state import outbox_quota
from aioflow.core.state.id_block import IdBlock
from aioflow.core.state.task_instance import Run
from aioflow.core.step import TURN_INPUTS, TurnFailed, decide
from aioflow.core.transaction import Transaction
from aioflow.errors import BatchRefused, Fenced
from aioflow.model.batch import Batch
from aioflow.model.rows import FROM_START
from aioflow.model.states import TaskState
from aioflow.protocol.effects import Effect
from aioflow.protocol.inputs import ContinueRun, Input, RequestReceived, TimerFired
from aioflow.protocol.reports import (
    Awaiting,
    CallAnswered,
    Deferred,
    EventEmitted,
    EventsHandled,
    Failed,
    ItemYielded,
    NextEventRequested,
    NotSuspended,
    RecordDropped,
    RunCalled,
    SensorNotReady,
    Skipped,
    StreamOpened,
    Succeeded,
    TriggerFired,
)
from aioflow.protocol.requests import CancelRun, CreateRun
from tests.core.stored_rows import recall
from tests.sim import invariants, liveness, operating, past, recovery, stored, trying
from tests.sim.broken import Broken
from tests.sim.invariants import Turn
from tests.sim.people import UNREADABLE_DATE
from tests.sim.tables import changed_tasks, check_content
from tests.sim.workload import SECOND

__all__ = ("Circle", "Crash", "Paused")

RARE = {
    "OutboxDelivered",
    "NotSuspended",
    "SensorNotReady",
    "Recalled",
    "RecordDropped",
    "Skipped",
} | {
    *(
        "EventEmitted",
        "EventsHandled",
        "ItemYielded",
        "RunCalled",
        "NextEventRequested",
        "StreamOpened",
        "PreviousRunLoaded",
        "IsolateTriggerClass",
        "AlertRaised",
        "MigrateTriggers",
        "BodyReturned",
        "ResultWriteFailed",
        "TriggerCapacityChanged",
        "LoopBlocked",
        "PauseTriggers",
        "WorkerUnresponsive",
        "WorkerUp",
        "WorkerGone",
        "WorkerIdle",
        "ExecutorUnavailable",
    ),
    *("ContinueRun", "Drain", "FileBroken", "FileDeleted", "HostLost", "HostUp", "Restarted"),
}
RARELY, OFTEN = 1.0, 12.0
AGAIN = 2.0
"""Upper bound of the factor for failures that may hit the same commit several times."""

_NUMBERS_AT_ONCE = 1 << 20
_POISON = "a time that is none"
_BLAMED = (
    RequestReceived
    | TimerFired
    | Succeeded
    | Failed
    | Skipped
    | SensorNotReady
    | Deferred
    | EventsHandled
    | ItemYielded
    | TriggerFired
    | Awaiting
    | CallAnswered
    | StreamOpened
    | NextEventRequested
    | EventEmitted
    | RunCalled
    | NotSuspended
    | RecordDropped
)
"""Inputs that may be refused for good, because a run or a request can report their loss."""


Refusal: TypeAlias = Literal["perhaps", "never", "always"]
"""Whether a batch that could be stored is refused nevertheless."""


class Crash(Exception):
    """Raised where the node dies."""


class _Refused(Exception):
    """A batch was refused; carries the transaction that produced it."""

    def __init__(self, tx: Transaction) -> None:
        super().__init__("refused")
        self.tx = tx


class Paused:
    """An incarnation that does not know that another one took over while it was paused."""

    def __init__(self, circle: Circle, batch: Batch | None, kinds: Sequence[str]) -> None:
        self._circle = circle
        self._batch = batch
        self._kinds = kinds

    def wake(self) -> None:
        """Continue as if nothing had happened. The write must be fenced."""
        circle = self._circle
        batch = self._batch if self._batch is not None else circle.next_batch()
        if batch is None or batch.is_empty:
            return
        node = circle.node
        try:
            node.tables.commit(batch, circle.epoch)
            past.note_begun(node.tables, batch)
        except Fenced:
            node.points["fenced write"] += 1
            for kind in self._kinds:
                node.points[f"fenced / {kind}"] += 1
            return
        raise Broken("I3 epoch", f"an old node wrote batch {batch.number}")


def _kinds_of(inputs: Sequence[Input]) -> list[str]:
    """Return the names of the input types of a turn, without duplicates."""
    return sorted({type(entry).__name__ for entry in inputs})


class Circle:
    """The memory of one incarnation, and its turns."""

    def __init__(self, node: Any, memory: Any, slots: Any, epoch: int) -> None:
        self.node = node
        self.memory, self.slots, self.epoch = memory, slots, epoch
        self.inbox: list[Input] = []
        self.late: list[Input] = []
        self._numbers = IdBlock(0, 0)

    # ── inputs ──────────────────────────────────────────────────────────────────────────

    def take(self) -> list[Input]:
        """Return the inputs of the next turn: all that are pending, or only some of them."""
        node = self.node
        count = portion(self.inbox, TURN_INPUTS, self.memory)
        if count > 1 and node.faults.happens("turn cut"):
            count = node.rng.choice((1, node.rng.randint(1, count)))
        taken, self.inbox = self.inbox[:count], self.inbox[count:]
        return [self._perhaps_poisoned(entry) for entry in taken]

    def _perhaps_poisoned(self, entry: Input) -> Input:
        if isinstance(entry, Succeeded) and self.node.faults.happens("input poisoned"):
            poison: Any = _POISON
            return msgspec.structs.replace(entry, at=poison)
        return entry

    def next_batch(self) -> Batch | None:
        """Return the next batch of an incarnation that wrongly believes it owns the database."""
        count = portion(self.inbox, TURN_INPUTS, self.memory)
        inputs, self.inbox = self.inbox[:count], []
        try:
            return self._decide(inputs)[0]
        except TurnFailed:
            return None

    # ── turns ───────────────────────────────────────────────────────────────────────────

    def turn(self, inputs: list[Input]) -> None:
        """Run a turn; if it fails, run one turn per input."""
        self.node.turns += 1
        try:
            self._decide_and_commit(inputs)
        except (TurnFailed, _Refused) as exc:
            self._isolate(inputs, exc)
        invariants.successes_are_heard(self.node, inputs)

    def take_late(self) -> None:
        """Check that late reports of an earlier incarnation's processes change nothing."""
        late, self.late = self.late, []
        batch, _, _ = self._decide_and_commit(late, "never")
        self.node.points["report of the dead"] += len(late)
        granted = {row.task_no for row in batch.new_triggers if row.ordinal == FROM_START}
        usual = {TaskState.QUEUED, TaskState.RUNNING, TaskState.SENSING}
        moved = [no for no, state in batch.steps if state not in usual and no not in granted]
        wrote = (
            *(batch.new_tries, batch.results, batch.trigger_changes, batch.new_events),
            *(batch.new_records, batch.record_changes, batch.dropped_records, batch.run_changes),
            *(batch.of_dags, batch.backfills),
        )
        if moved or any(wrote) or len(batch.new_triggers) > len(granted):
            raise Broken("late", f"reports of the dead were heard: {late}")

    def _decide_and_commit(
        self, inputs: Sequence[Input], refusal: Refusal = "perhaps", *, granting: bool = True
    ) -> tuple[Batch, list[Effect], Transaction]:
        node = self.node
        paused = {row.dag_id for row in self.memory.dags.values() if row.paused}
        claims, trials = invariants.claimed(self.slots), [self.memory.trial]
        batch, effects, tx = self._decide(inputs, granting=granting)
        trials.append(self.memory.trial)
        before = invariants.before(node, batch)
        invariants.paused_dags_start_no_scheduled_run(paused, inputs, batch)
        if not batch.is_empty or tx.step:
            self._commit(batch, tx, _kinds_of(inputs), refusal)
        tx.mark_durable()
        node.note(inputs, batch, effects)
        invariants.check(node, Turn(batch, effects, before))
        invariants.claims_of_what_ends_are_stopped(node, claims, inputs, effects)
        trying.suspects_are_hosted_in_turn(node, trials, effects)
        operating.answers_hold(node, inputs, batch, effects)
        if not batch.is_empty:
            stored.writes_are_of_the_newest_epoch(node)
        self._everyone_is_answered(inputs, effects)
        node.act(effects)
        node.ledger.over.update(
            row.task_no for row in changed_tasks(batch) if not row.state.is_live
        )
        node.watch.note(batch)
        self._perhaps_cancel_what_is_claimed()
        return batch, effects, tx

    def _perhaps_cancel_what_is_claimed(self) -> None:
        """Cancel a claimed try now and then: claims are too brief to be hit by chance."""
        claims = [task for worker in self.slots.all_workers for task in worker.claims]
        if claims and self.node.faults.happens("cancel while claimed"):
            self.node.ask(CancelRun(run_id=claims[0].run.row.run_id))

    def _decide(
        self, inputs: Sequence[Input], *, granting: bool = True
    ) -> tuple[Batch, list[Effect], Transaction]:
        memory, tables = self.memory, self.node.tables
        memory.loaded_outbox = tables.found_owed(outbox_quota.wanted(inputs, memory.outbox_quotas))
        recall(inputs, self.memory, self.node.tables)
        needed = self.memory.numbers_needed * TURN_INPUTS + TURN_INPUTS
        if self._numbers.left < needed:
            count = max(2 * needed, _NUMBERS_AT_ONCE)
            first = self.node.lease_numbers(count)
            self._numbers = IdBlock(first, first + count)
        past.learn(self.node.tables, self.memory, inputs)
        return decide(
            self.memory,
            self.slots,
            inputs,
            at=self.node.steady.read(),
            random=self.node.rng.random,
            numbers=self._numbers,
            granting=granting,
        )

    def _everyone_is_answered(self, inputs: Sequence[Input], effects: Sequence[Effect]) -> None:
        asked = {entry.ticket for entry in inputs if isinstance(entry, RequestReceived)}
        answered = {getattr(effect, "ticket", None) for effect in effects} - {None}
        if asked != answered:
            raise Broken("I12 answers", f"asked {asked}, answered {answered}")

    # ── commit ──────────────────────────────────────────────────────────────────────────

    def _commit(self, batch: Batch, tx: Transaction, kinds: list[str], refusal: Refusal) -> None:
        """Commit a batch, with every possible kind of failure."""
        node = self.node
        times = OFTEN if RARE.intersection(kinds) else RARELY

        def happens(kind: str, outcome: str, times: float = 1.0) -> bool:
            if not node.faults.happens(kind, times):
                return False
            node.count(outcome, kinds)
            return True

        again = min(times, AGAIN)
        while happens("commit fails", "failed", again):
            node.pass_until(node.mono + node.rng.randint(0, SECOND))
        if self._is_refused(batch, refusal, times):
            node.count("refused", kinds)
            raise _Refused(tx)
        if happens("crash before", "crash before", times):
            raise Crash
        if node.faults.happens("node pauses", times):
            node.pause(Paused(self, batch, kinds))
            raise Crash
        node.tables.commit(batch, self.epoch)
        node.seen_at = batch.at, batch.at if batch.steady_at is None else batch.steady_at
        past.note_begun(node.tables, batch)
        while happens("reply lost", "reply lost", again):
            node.pass_until(node.mono + node.rng.randint(0, SECOND))
            node.tables.commit(batch, self.epoch)
        node.ledger.record(batch)
        if happens("crash after", "crash after", times):
            raise Crash
        if node.faults.happens("node pauses", times):
            node.pause(Paused(self, batch, kinds))  # without a reply, it will retry the commit
            raise Crash
        if happens("commit delayed", "delayed", again):
            node.pass_until(node.mono + node.rng.choice((100, 10_000, SECOND)))
        node.count("ok", kinds)
        self.memory.commit_no = batch.number

    def _is_refused(self, batch: Batch, refusal: Refusal, times: float) -> bool:
        try:
            check_content(batch)
        except BatchRefused:
            return True
        if refusal == "perhaps":
            return self.node.faults.happens("batch refused", 0.2 * times)
        return refusal == "always"

    # ── rollback ────────────────────────────────────────────────────────────────────────

    def _isolate(self, inputs: list[Input], exc: TurnFailed | _Refused) -> None:
        """See ``Engine._isolate``. Check that the failure was planned by a fault."""
        self._must_be_meant(inputs, exc)
        self._roll_back(exc.tx)
        for entry in [part for whole in inputs for part in split_restart(whole, self.memory)]:
            is_blamed = isinstance(entry, _BLAMED) and self.node.faults.happens("refused for good")
            try:
                self._decide_and_commit([entry], "always" if is_blamed else "never", granting=False)
            except (TurnFailed, _Refused) as alone:
                self._must_be_meant([entry], alone)
                self._roll_back(alone.tx)
                self._blame(entry, alone)
        self._decide_and_commit([], "never")
        liveness.triggers_are_hosted(self.node)

    def _must_be_meant(self, inputs: Sequence[Input], exc: TurnFailed | _Refused) -> None:
        meant = any(_is_poison(entry) or self._follows_what_was_lost(entry) for entry in inputs)
        if isinstance(exc, TurnFailed) and not meant:
            raise exc

    def _follows_what_was_lost(self, entry: Input) -> bool:
        """Return whether the input is a coroutine's call in a quarantined run.

        An earlier input of the run was lost, so the call may be refused as well.
        """
        if not isinstance(entry, Awaiting):
            return False
        row = self.node.tables.tasks.get(entry.task_no)
        return row is not None and self.node.tables.is_held(row.run_no)

    def _roll_back(self, tx: Transaction) -> None:
        """See ``Engine._roll_back``. Check that the memory matches the rows afterwards."""
        node, memory = self.node, self.memory
        slots_before = rollback.forget(memory, tx)
        rollback.restore_pools(tx)
        tables = node.tables
        rollback.recall_catalog(memory, list(tables.dags.values()), list(tables.files.values()))
        runs = [
            restore_run(tables.live_run(run_no), memory)
            for run_no in tx.runs
            if run_no in tables.runs and tables.runs[run_no].ended_at is None
        ]
        self.inbox.extend(rollback.restore_slots(runs, slots_before, memory, tx))
        recovery.memory_is_what_rows_say(node)
        liveness.slots_are_what_tasks_hold(node)

    def _blame(self, entry: Input, exc: TurnFailed | _Refused) -> None:
        """See ``Engine._blame``."""
        node = self.node
        node.points["refused for good"] += 1
        rollback.free_slot(entry, self.memory, self.slots)
        match consequence(entry, exc, node.steady.read(), self.memory):
            case RefuseRequest(answer=answer):
                node.answered(answer.ticket)
            case RetryTimer(timer=timer):
                node.arm(timer.due, at=timer.at)
            case RepeatInput(input=instead):
                node.say(instead)
            case QuarantineRuns(runs=runs):
                self._quarantine(entry, runs)
            case (
                FailBackfill() | DecideWithout() as other
            ):  # no such input is refused for good here
                raise Broken("blame", f"{entry} leads to {other}")

    def _quarantine(self, entry: Input, runs: list[Run]) -> None:
        node = self.node
        quarantine = Transaction(
            self.memory,
            self.slots,
            at=node.steady.read(),
            random=node.rng.random,
            numbers=self._numbers,
        )
        for run in runs:
            if run.run_no != _run_of(entry, node):
                raise Broken("blame", f"run {run.run_no} is held still for {entry}")
            quarantine_run(run, type(entry).__name__, quarantine)
        batch = quarantine.close()
        if not batch.is_empty:
            before = invariants.before(node, batch)
            node.tables.commit(batch, self.epoch)
            self.memory.commit_no = batch.number
            quarantine.mark_durable()
            node.note([entry], batch, quarantine.effects)
            invariants.check(node, Turn(batch, quarantine.effects, before))
            node.act(quarantine.effects)
        for run in runs:
            node.say(ContinueRun(run.run_no))


def _is_poison(entry: Input) -> bool:
    if isinstance(entry, RequestReceived):
        request = entry.request
        return isinstance(request, CreateRun) and request.logical_date == UNREADABLE_DATE
    return isinstance(entry, Succeeded) and isinstance(entry.at, str)


def _run_of(entry: Input, node: Any) -> int | None:
    if isinstance(entry, TimerFired) and entry.run_no >= 0:
        return entry.run_no
    task_no, trigger_no = getattr(entry, "task_no", None), getattr(entry, "trigger_no", -1)
    if trigger_no >= 0:
        row = node.tables.triggers.get(trigger_no)
        return None if row is None else row.run_no
    row = node.tables.tasks.get(task_no)
    return None if row is None else row.run_no
