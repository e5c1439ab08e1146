"""A node without I/O: ``decide`` over dictionaries that guard like the database does."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import msgspec

from aioflow.api.layout import absent_state
from aioflow.backfills import BackfillRow
from aioflow.core import backfilling, lanes, mark, owing, past, taken, undo
from aioflow.core.clear import asks, key_of, needed
from aioflow.core.draft import Draft
from aioflow.core.line import Ended, last_rounds, order_of, stored_as
from aioflow.core.memory import Memory
from aioflow.core.numbers import NumberBlock
from aioflow.core.restoring import Restoring, restore
from aioflow.core.slots import Slots
from aioflow.core.transitions import net_is_reachable
from aioflow.core.turn import decide
from aioflow.dag_triggers import DagEventRow, DagTriggerChanges, DagTriggerRow, Fate
from aioflow.effects import Acknowledge, Again, Deliver, Effect, StartTry, StopTry, WakeAt
from aioflow.inputs import (
    Asked,
    FileParsed,
    HostUp,
    Input,
    Restarted,
)
from aioflow.messages import Failed, Succeeded
from aioflow.model import DagSpec, Failure, RecordState, TaskSpec, TaskState
from aioflow.owed import KEPT
from aioflow.requests import CreateRun
from aioflow.rows import (
    Batch,
    DeletionRow,
    EventRow,
    ItemRow,
    NamedEventRow,
    OutboxRow,
    RecordRow,
    RunRow,
    TaskRow,
    TriggerRow,
)
from aioflow.unfinished import LiveRun, Progress

SECOND = 1_000_000


def _instant(wake: WakeAt) -> int:
    return wake.due.at if wake.at is None else wake.at


class Rows:
    """The tables, as dictionaries. A guard that does not hold is an assertion."""

    def __init__(self) -> None:
        self.drained: set[int] = set()
        self.runs: dict[int, RunRow] = {}
        self.tasks: dict[int, TaskRow] = {}
        self.expansions: dict[tuple[int, int], Any] = {}
        self.triggers: dict[int, TriggerRow] = {}
        self.records: dict[tuple[int, int], RecordRow] = {}
        self.results: dict[int, Any] = {}
        self.events: dict[tuple[int, int], EventRow] = {}
        self.named_events: dict[int, NamedEventRow] = {}
        self.items: dict[tuple[int, int], ItemRow] = {}
        self.tries: list[Any] = []
        self.labels: dict[int, str] = {}
        self.dags: dict[str, Any] = {}
        self.files: dict[str, Any] = {}
        self.versions: dict[str, Any] = {}
        self.outbox: dict[int, OutboxRow] = {}
        self.was_owed: dict[int, str] = {}
        self.clears: dict[tuple[int, str | None], int] = {}
        self.deletions: dict[int, DeletionRow] = {}
        self.dag_triggers: dict[int, DagTriggerRow] = {}
        self.dag_events: dict[int, DagEventRow] = {}
        self.backfills: dict[int, BackfillRow] = {}
        self.commit_no = 0

    def apply(self, batch: Batch) -> None:
        for node_no, at in batch.drained:
            (self.drained.add if at is not None else self.drained.discard)(node_no)
        assert batch.number == self.commit_no + 1
        self.commit_no = batch.number
        for version in batch.new_versions:
            assert version.version not in self.versions
            self.versions[version.version] = version
        self.dags.update({row.dag_id: row for row in batch.dags})
        self.files.update({row.file: row for row in batch.dag_files})
        for run in batch.new_runs:
            assert run.run_no not in self.runs
            self.runs[run.run_no] = run
        self._apply_tasks(batch)
        self._apply_triggers(batch)
        self._apply_records(batch)
        for change in batch.run_changes:
            run = self.runs[change.run_no]
            assert run.state is change.was
            self.runs[change.run_no] = msgspec.structs.replace(
                run,
                state=change.state,
                started_at=change.started_at,
                ended_at=change.ended_at,
                quarantine=change.quarantine,
            )
        for event in batch.named_events:
            assert event.event_no not in self.named_events
            self.named_events[event.event_no] = event
        self._apply_of_dags(batch.of_dags)
        self.backfills.update({row.backfill_no: row for row in batch.backfills})
        for deletion in batch.new_deletions:
            assert deletion.run_no not in self.deletions
            self.deletions[deletion.run_no] = deletion
        self.outbox.update({row.outbox_no: row for row in batch.new_outbox})
        self.was_owed.update({row.outbox_no: row.kind for row in batch.new_outbox})
        for number in batch.done_outbox:
            del self.outbox[number]
        for run_no, key, cleared in batch.new_clears:
            assert (run_no, key) not in self.clears
            self.clears[run_no, key] = cleared
        for table, keys in batch.erased.items():
            self.erase(table, set(keys))

    def _apply_of_dags(self, changes: DagTriggerChanges) -> None:
        for row in changes.triggers:
            self.dag_triggers[row.trigger_no] = row
        for row in changes.moved:
            fields = self.dag_triggers[row.trigger_no].kwargs
            self.dag_triggers[row.trigger_no] = msgspec.structs.replace(row, kwargs=fields)
        for event in changes.events:
            known = [row for row in self.dag_events.values() if row.trigger_no == event.trigger_no]
            assert event.event_no not in self.dag_events
            assert event.sequence == len(known)
            assert event.key is None or event.key not in {row.key for row in known}
            self.dag_events[event.event_no] = event
        for change in changes.fates:
            held = self.dag_events[change.event_no]
            assert held.fate is Fate.HELD
            self.dag_events[change.event_no] = msgspec.structs.replace(
                held, fate=change.fate, run_no=change.run_no, reason=change.reason
            )

    def erase(self, table: str, gone: Collection[tuple[Any, ...]]) -> None:
        """Delete rows by their keys."""
        if table == "try":
            self.tries = [row for row in self.tries if (row.task_no, row.start_no) not in gone]
            return
        rows = self.by_key(table)
        for key in gone:
            rows.pop(key if len(key) > 1 else key[0], None)

    def by_key(self, table: str) -> dict[Any, Any]:
        """The rows of a table that rows are erased in; keys of one column are bare."""
        found: dict[str, dict[Any, Any]] = {
            "stream_item": self.items,
            "record": self.records,
            "result": self.results,
            "map_label": self.labels,
            "task": self.tasks,
            "expansion": self.expansions,
            "named_event": self.named_events,
            "dag_event": self.dag_events,
            "journal": {},
            "clear_request": self.clears,
            "run": self.runs,
            "deletion": self.deletions,
        }
        return found[table]

    def seen(self) -> Iterator[RunRow]:
        """The runs that people see: all but those that are being deleted."""
        return (run for run in self.runs.values() if run.run_no not in self.deletions)

    def owed(self) -> tuple[list[OutboxRow], dict[str, tuple[int, int]]]:
        """What a restart learns of the outbox, see ``Snapshot``."""
        counts: dict[str, tuple[int, int]] = {}
        for row in sorted(self.outbox.values(), key=lambda row: -row.outbox_no):
            if row.kind not in KEPT:
                counts[row.kind] = counts.get(row.kind, (0, 0))[0] + 1, row.outbox_no
        return [row for row in self.outbox.values() if row.kind in KEPT], counts

    def found_owed(self, wanted: dict[str, tuple[int, int]]) -> dict[str, list[OutboxRow]]:
        """What ``recalling`` reads of it."""
        return {
            kind: [
                self.outbox[number]
                for number in sorted(self.outbox)
                if number > after and self.outbox[number].kind == kind
            ][:limit]
            for kind, (after, limit) in wanted.items()
        }

    def _apply_tasks(self, batch: Batch) -> None:
        for row in batch.new_tasks:
            assert row.task_no not in self.tasks
            assert row.run_no in self.runs
            self.tasks[row.task_no] = row
        steps = set(batch.steps)
        for change in batch.task_changes:
            row = self.tasks[change.task_no]
            assert (row.state, row.start_no) == (change.was, change.was_start_no)
            is_cleared = (change.task_no, TaskState.PENDING) in steps
            way = (change.was, change.state)
            assert is_cleared or net_is_reachable(*way), way
            values = msgspec.structs.asdict(change)
            values.pop("was")
            values.pop("was_start_no")
            self.tasks[change.task_no] = msgspec.structs.replace(row, **values)
        for gone_expansion in batch.gone_expansions:
            del self.expansions[gone_expansion]
        for expansion in batch.new_expansions:
            key = (expansion.run_no, expansion.position)
            assert key not in self.expansions
            self.expansions[key] = expansion
        for grown in batch.expansion_changes:
            row = self.expansions[grown.run_no, grown.position]
            assert row.is_open
            assert row.width == grown.was <= grown.width
            self.expansions[grown.run_no, grown.position] = msgspec.structs.replace(
                row, width=grown.width, is_open=grown.is_open
            )
        for item in batch.new_items:
            before = [index for task_no, index in self.items if task_no == item.task_no]
            assert sorted(before) == list(range(item.item_index))
            self.items[item.task_no, item.item_index] = item
        for gone in batch.gone_items:
            self.items = {key: row for key, row in self.items.items() if key[0] != gone}
        for number in batch.gone_results:
            self.results.pop(number, None)
        for result in batch.results:
            self.results[result.task_no] = result
        self.tries.extend(batch.new_tries)
        if batch.new_tries:
            keys = [(row.task_no, row.start_no) for row in self.tries]
            assert len(set(keys)) == len(keys), "a start has a second row of its try"
        for task_no, run_no, label in batch.labels:
            assert self.tasks[task_no].run_no == run_no
            self.labels[task_no] = label

    def _apply_triggers(self, batch: Batch) -> None:
        for row in batch.new_triggers:
            assert row.trigger_no not in self.triggers
            self.triggers[row.trigger_no] = row
        for change in batch.trigger_changes:
            row = self.triggers[change.trigger_no]
            assert row.state is change.was
            if change.state is None:
                del self.triggers[change.trigger_no]
            else:
                self.triggers[change.trigger_no] = msgspec.structs.replace(
                    row,
                    state=change.state,
                    event=change.event,
                    event_key=change.event_key,
                    failure=change.failure,
                )
        self._apply_events(batch)

    def _apply_events(self, batch: Batch) -> None:
        for event in batch.new_events:
            before = [sequence for number, sequence in self.events if number == event.trigger_no]
            assert sorted(before) == list(range(event.sequence))
            self.events[event.trigger_no, event.sequence] = event
        for key in batch.consumed_events:
            assert self.events[key].payload is not None
            self.events[key] = msgspec.structs.replace(self.events[key], payload=None)
        for gone in batch.gone_events:
            self.events = {key: row for key, row in self.events.items() if key[0] != gone}

    def _apply_records(self, batch: Batch) -> None:
        for key in batch.dropped_records:
            del self.records[key]
        for row in batch.new_records:
            before = [ordinal for task_no, ordinal in self.records if task_no == row.task_no]
            assert sorted(before) == list(range(row.ordinal))
            self.records[row.task_no, row.ordinal] = row
        for change in batch.record_changes:
            row = self.records[change.task_no, change.ordinal]
            assert row.state is RecordState.OPEN
            self.records[change.task_no, change.ordinal] = msgspec.structs.replace(
                row, state=change.state, answer=change.answer, failure=change.failure
            )

    def item_counts(self, run_no: int) -> list[tuple[int, int]]:
        """How many items each task of a run has given on, as the database would say it."""
        counts: dict[int, int] = {}
        for item in self.items.values():
            if item.run_no == run_no:
                counts[item.task_no] = counts.get(item.task_no, 0) + 1
        return list(counts.items())

    def progress(self, task_no: int) -> Progress:
        """How far a task's record goes, as the database would say it."""
        rows = [row for _, row in sorted(self.records.items()) if row.task_no == task_no]
        failed = [row.ordinal for row in rows if row.state is RecordState.FAILED]
        opened = [row for row in rows if row.state is RecordState.OPEN]
        return Progress(
            task_no=task_no,
            count=len(rows),
            first_failed=min(failed, default=-1),
            open_kind=opened[-1].kind if opened else "",
            open_name=opened[-1].name if opened else "",
        )

    def live_run(self, run_no: int) -> LiveRun:
        return LiveRun(
            run=self.runs[run_no],
            tasks=sorted(
                (row for row in self.tasks.values() if row.run_no == run_no),
                key=lambda row: row.task_no,
            ),
            expansions=[e for (no, _), e in self.expansions.items() if no == run_no],
            widths=[
                (result.task_no, result.width)
                for result in self.results.values()
                if result.run_no == run_no and result.width is not None
            ],
            triggers=[row for row in self.triggers.values() if row.run_no == run_no],
            items=self.item_counts(run_no),
            progress=[
                self.progress(task_no)
                for task_no in sorted({n for n, _ in self.records})
                if self.tasks[task_no].run_no == run_no
            ],
            events=[row for _, row in sorted(self.events.items()) if row.run_no == run_no],
        )

    def unfinished(self) -> list[int]:
        return [run_no for run_no, run in self.runs.items() if run.ended_at is None]


def recall(inputs: Iterable[Input], memory: Memory, rows: Any) -> None:
    """What ``recalling`` does with a database."""
    memory.answered = {}
    memory.known_keys = {
        (row.trigger_no, row.key) for row in rows.dag_events.values() if row.key is not None
    }
    run_ids, keys = taken.asked(inputs)
    named = [
        run
        for run in rows.runs.values()
        if run.run_id in run_ids or run.key in keys.get(run.dag_id, ())
    ]
    taken.remember([(run, run.run_no in rows.deletions) for run in named], memory)
    for request in asks(inputs):
        runs = [run for run in rows.seen() if run.run_id == request.run_id]
        if not runs:
            continue
        (run,) = runs
        key = key_of(request)
        cleared = rows.clears.get((run.run_no, key))
        if cleared is not None:
            memory.answered[request.run_id, key or ""] = (cleared, run.state)
        elif run.ended_at is not None:
            for spec in rows.versions[run.version].dags:
                memory.add_plan(run.version, spec)
            found = rows.live_run(run.run_no)
            loading = Restoring(found, memory)
            loading.take_ended(found)
            memory.loaded[request.run_id, key] = loading.look_back()
    memory.recalled = {number: rows.tasks[number] for number in needed(inputs, memory)}
    memory.found_slots = {}
    begun = {(row.dag_id, row.key): row.backfill_no for row in rows.backfills.values() if row.key}
    memory.keyed_backfills = {
        asked: begun[asked] for asked in backfilling.keys(inputs) if asked in begun
    }
    for backfill, dates in backfilling.wanted(inputs, memory):
        dated = (run for run in rows.seen() if run.logical_date in dates)
        runs = [run for run in dated if run.dag_id == backfill.dag_id]
        backfilling.found(backfill, dates, runs, memory)
    seen = {run.run_id: run for run in rows.seen()}
    memory.recalled_runs = {
        request.run_id: seen[request.run_id]
        for request in mark.asks(inputs)
        if request.run_id in seen and mark.is_row_needed(request, memory)
    }
    for run in memory.recalled_runs.values():
        for spec in rows.versions[run.version].dags:
            memory.add_plan(run.version, spec)


class World:
    """A node on dictionaries: takes inputs, remembers what was started and what is armed."""

    def __init__(self, *, cpu_slots: int = 2, async_slots: int = 1000, chance: float = 0.0) -> None:
        self.rows = Rows()
        self.now = 1_700_000_000 * SECOND
        self.cpu_slots, self.async_slots = cpu_slots, async_slots
        self.chance = chance
        self.epoch = 0
        self._tickets = itertools.count()
        self.first_number = 1
        self.batches: list[Batch] = []
        self.start_up()

    def start_up(self) -> None:
        """A new incarnation: memory from rows alone."""
        self.epoch += 1
        self.memory = Memory(epoch=self.epoch)
        self.memory.commit_no = self.rows.commit_no
        self.slots = Slots(cpu_slots=self.cpu_slots, async_slots=self.async_slots)
        self.numbers = NumberBlock(self.first_number, self.first_number + 10**9)
        self.first_number += 10**9
        self.effects: list[Effect] = []
        self.starts: dict[int, StartTry] = {}
        self.armed: list[WakeAt] = []
        undo.recall_catalog(
            self.memory,
            list(self.rows.dags.values()),
            list(self.rows.files.values()),
        )
        owing.begin(self.memory, *self.rows.owed())
        self.memory.is_drained = self.memory.node_no in self.rows.drained
        going = (row for row in self.rows.backfills.values() if row.state == "running")
        self.memory.backfills = {row.backfill_no: row for row in going}
        for version in self.rows.versions.values():
            self.memory.stored_versions.add(version.version)
            for spec in version.dags:
                self.memory.add_plan(version.version, spec)
        held = [row for row in self.rows.dag_events.values() if row.fate is Fate.HELD]
        self.memory.standing.restore(self.rows.dag_triggers.values(), held)
        unfinished = self.rows.unfinished()
        self.memory.stray_triggers = [
            row for row in self.rows.triggers.values() if row.run_no not in unfinished
        ]
        for run_no in unfinished:
            restore(self.rows.live_run(run_no), self.memory)

    def restart(self) -> None:
        """Crash, come back, and have every host ready again."""
        self.start_up()
        self.turn(Restarted())
        self.turn(HostUp("async"), HostUp("triggers"))

    def decide(self, inputs: Iterable[Input]) -> tuple[Batch, list[Effect], Draft]:
        inputs = list(inputs)
        self.recall(inputs)
        return decide(
            self.memory,
            self.slots,
            list(inputs),
            now=self.now,
            chance=lambda: self.chance,
            numbers=self.numbers,
        )

    def recall(self, inputs: list[Input]) -> None:
        """What ``recalling`` does with a database."""
        self.memory.found_owed = self.rows.found_owed(lanes.wanted(inputs, self.memory.lanes))
        recall(inputs, self.memory, self.rows)
        for dag_id, orders in past.wanted(inputs, self.memory):
            for order in orders:
                self.memory.lines[dag_id].learn(order, self._ended_before(dag_id, order))

    def _ended_before(self, dag_id: str, order: tuple[int, int]) -> Ended | None:
        dated = [(order_of(run), run) for run in self.rows.seen() if run.dag_id == dag_id]
        found = max(((at, run) for at, run in dated if at is not None and at < order), default=None)
        if found is None or found[1].run_no in self.memory.runs:
            return None
        row = found[1]
        spec = next(s for s in self.rows.versions[row.version].dags if s.dag_id == dag_id)
        of_run = [task for task in self.rows.tasks.values() if task.run_no == row.run_no]
        counts = Counter((task.position, task.state) for task in of_run)
        expansions = [e for (number, _), e in self.rows.expansions.items() if number == row.run_no]
        rounds = [self.rows.tasks[n] for n in last_rounds(spec, expansions) if n in self.rows.tasks]
        return stored_as(row, spec, [(*key, n) for key, n in counts.items()], expansions, rounds)

    def turn(self, *inputs: Input) -> list[Effect]:
        """One turn, and those it asked to be continued in."""
        effects = self._turn(inputs)
        done = list(effects)
        while again := [e for e in effects if isinstance(e, Again)]:
            effects = self._turn(again)
            done.extend(effects)
        return done

    def _turn(self, inputs: Iterable[Input]) -> list[Effect]:
        batch, effects, draft = self.decide(inputs)
        self._commit(batch, draft)
        for effect in effects:
            if isinstance(effect, StartTry):
                self.starts[effect.start.task_no] = effect
            elif isinstance(effect, StopTry):
                self.starts.pop(effect.task_no, None)
            elif isinstance(effect, WakeAt):
                self.armed.append(effect)
        self.effects.extend(effects)
        return effects

    def aside(self, change: Callable[[Draft], None]) -> None:
        """What the engine commits beside its turns."""
        draft = Draft(self.memory, now=self.now, chance=lambda: self.chance, numbers=self.numbers)
        change(draft)
        self._commit(draft.close(), draft)
        self.effects.extend(draft.effects)

    def _commit(self, batch: Batch, draft: Draft) -> None:
        if not batch.is_empty:
            self.batches.append(batch)
            self.rows.apply(batch)
            self.memory.commit_no = batch.number
        draft.settle()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and everything armed come."""
        self.now += int(seconds * SECOND)
        due = [wake for wake in self.armed if _instant(wake) <= self.now]
        self.armed = [wake for wake in self.armed if _instant(wake) > self.now]
        if due:
            self.turn(*(wake.due for wake in due))

    def refuse(self, *inputs: Input) -> None:
        """A turn whose batch is refused: it is taken back, and its inputs come one by one."""
        _, _, draft = self.decide(inputs)
        self.take_back(draft)
        for entry in inputs:
            self.turn(entry)

    def take_back(self, draft: Draft) -> None:
        """What the engine does with a turn that was not committed."""
        places = undo.forget(self.memory, draft)
        undo.restore_pools(draft, self.slots)
        undo.recall_catalog(
            self.memory, list(self.rows.dags.values()), list(self.rows.files.values())
        )
        runs = [
            restore(self.rows.live_run(run_no), self.memory)
            for run_no in draft.runs
            if run_no in self.rows.runs and self.rows.runs[run_no].ended_at is None
        ]
        asking = undo.put_back(runs, places, self.memory, self.slots, draft)
        if asking:
            self.turn(*asking)

    # ── what people do ──────────────────────────────────────────────────────────────────

    def ask(self, request: Any) -> Any:
        ticket = next(self._tickets)
        for effect in self.turn(Asked(ticket, request)):
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
        """Load one DAG of these tasks and start a run of it."""
        self.load(DagSpec(dag_id="dag", file="dag.py", tasks=tasks, **options))
        return self.trigger()

    # ── what children do ────────────────────────────────────────────────────────────────

    def started(self, name: str, map_index: int = -1) -> StartTry | None:
        for effect in self.starts.values():
            spec = self._spec(effect)
            if (spec.task_id, effect.start.map_index) == (name, map_index):
                return effect
        return None

    def _spec(self, effect: StartTry) -> TaskSpec:
        plan = self.memory.plans[effect.info.version, effect.info.dag_id]
        return plan.graph.spec.tasks[effect.start.position]

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
        """Let everything that is started succeed, until nothing more starts."""
        while self.starts:
            reports = [
                Succeeded(e.start.task_no, e.start.start_no, self.now, self.now + 50)
                for e in self.starts.values()
            ]
            self.starts.clear()
            self.turn(*reports)

    # ── what one sees ───────────────────────────────────────────────────────────────────

    def state(self, run_no: int, name: str, map_index: int = -1) -> str:
        """The state a reader sees: without a row, pending."""
        run = self.rows.runs[run_no]
        spec = self.memory.plans[run.version, run.dag_id].graph.spec
        position = [task.task_id for task in spec.tasks].index(name)
        for row in self.rows.tasks.values():
            if (row.run_no, row.position, row.map_index) == (run_no, position, map_index):
                return row.state.label
        return absent_state(run.state).label

    def run_state(self, run_no: int) -> str:
        return self.rows.runs[run_no].state.label

    def alerts(self) -> list[Deliver]:
        return [effect for effect in self.effects if isinstance(effect, Deliver)]
