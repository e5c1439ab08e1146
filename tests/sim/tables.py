"""The tables of ``tests.core.world``, behind the fence, and with the files and the pools."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

from aioflow.errors import BatchRefused
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec
from aioflow.model.rows import (
    EventRow,
    ExpansionRow,
    ItemRow,
    OutboxRow,
    PoolRow,
    RecordRow,
    RunRow,
    TaskChange,
    TaskRow,
    TriggerRow,
)
from aioflow.model.states import NodeState, RunState, TaskState, TriggerState
from aioflow.model.triggers import ASSET
from aioflow.protocol.inputs import LiveRun
from aioflow.protocol.outbox import (
    ALERT,
    CLEAR,
    DEADLINE,
    Alert,
    Callback,
    Clearing,
    Deadline,
    is_callback,
)
from aioflow.store.ownership import confirm_applied
from tests.core.stored_rows import Rows, rows_of
from tests.sim.script import UNSTORABLE

__all__ = ("Numbers", "Tables", "changed_tasks", "check_content")


def changed_tasks(batch: Batch) -> list[TaskRow | TaskChange]:
    """Return the new and the changed task rows of a batch."""
    return [*batch.new_tasks, *batch.task_changes]


def check_content(batch: Batch) -> None:
    """Check that a batch can be stored.

    Raises:
        BatchRefused: If it cannot be stored. A retry does not help.
    """
    if any(row.body == UNSTORABLE for row in batch.results):
        raise BatchRefused("a result nobody can store")


def _clearings(rows: Iterable[OutboxRow]) -> Iterator[Clearing]:
    """Yield the clears and marks that are not completed."""
    for row in rows:
        if row.kind == CLEAR:
            yield msgspec.msgpack.decode(row.body, type=Clearing)


def _owed_of(row: OutboxRow) -> int | None:
    """Return the run that an outbox row belongs to, or ``None`` for an alert."""
    kinds = {CLEAR: Clearing, DEADLINE: Deadline}
    kind = Callback if is_callback(row.kind) else kinds.get(row.kind)
    return None if kind is None else msgspec.msgpack.decode(row.body, type=kind).run_no


class Numbers:
    """Row numbers in use, as ranges. A number is used only once."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def take(self, first: int, count: int) -> None:
        """Reserve a range. An assertion fails if any of its numbers was used before."""
        at = bisect.bisect_right(self._firsts, first)
        assert at == 0 or self._ends[at - 1] <= first, f"number {first} is taken twice"
        assert at == len(self._firsts) or first + count <= self._firsts[at], (
            f"of {count} numbers from {first} some are taken"
        )
        self._firsts.insert(at, first)
        self._ends.insert(at, first + count)


class Tables(Rows):
    """Rows, indexed by run. Applying a batch a second time changes nothing.

    Attributes:
        epoch: The epoch of the node that claimed the tables last.
        accepted: Epoch and number of each batch that was applied under an epoch.
        weights: The usage of each pool when last counted, including deferred tasks.
        weighed: The pools as they were then.
        fired: How often each trigger fired.
        resumptions: How often each task released its slot itself.
        widths: Width of each expansion as first committed; an open expansion grows.
        specs: Every DAG of every version, including those of old runs.
        cut_short: How often each task was queued again while it was running.
        recorders: Tasks that have ever recorded a durable call.
        record_counts: Number of records of each task.
        consumed: Number of consumed events of each stream.
        just_consumed: Task and payload of each event that the last batch consumed for a coroutine.
        opened: Number of expansions that began with a stream.
        handled: Number of events that operators have consumed.
        fenced: Number of batches that arrived again after they had been applied.
        called: Runs that tasks have started, by the wait of the call.
        cleared_runs: Runs in which tasks were cleared.
        marked_runs: Runs in which tasks were marked.
        just_marked: Marks that the last batch has completed.
        said: The final states that runs were marked with.
        ends: The states in which each run has ever ended.
        run_ids: The id of each run, including deleted runs.
        deleted: Deleted runs, including those whose rows are erased.
        filled: Number of runs each backfill has created for each fire time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0
        self.accepted: list[tuple[int, int]] = []
        self.pools: dict[str, PoolRow] = {}
        self.weights: Counter[str] = Counter()
        self.weighed: dict[str, PoolRow] = {}
        self.fired: Counter[int] = Counter()
        self.resumptions: Counter[int] = Counter()
        self.cut_short: Counter[int] = Counter()
        self.recorders: set[int] = set()
        self.record_counts: Counter[int] = Counter()
        self.consumed: Counter[int] = Counter()
        self.just_consumed: list[tuple[int, bytes | None]] = []
        self.fenced = self.opened = self.handled = 0
        self.called: dict[int, int] = {}
        self.beyond: set[int] = set()
        self.timed_out: set[str] = set()
        self.may_be_beyond: set[int] = set()
        self._emitted: set[tuple[str, str] | bytes] = set()
        self._newest_event = self._newest_run = 0
        self.widths: dict[tuple[int, int], int] = {}
        self.specs: dict[tuple[str, str], DagSpec] = {}
        self._numbers = Numbers()
        self.cleared_runs: set[int] = set()
        self.marked_runs: set[int] = set()
        self.just_marked: list[Clearing] = []
        self.said: defaultdict[str, set[RunState]] = defaultdict(set)
        self.ends: defaultdict[int, set[RunState]] = defaultdict(set)
        self.deleted: set[int] = set()
        self.filled: Counter[tuple[int | None, int | None]] = Counter()
        self.run_ids: dict[int, str] = {}
        self._plans: dict[int, tuple[str, str]] = {}
        self._kept: set[tuple[int, int]] = set()
        self._open: dict[int, None] = {}
        self._task_nos: defaultdict[int, list[int]] = defaultdict(list)

    def claim(self) -> int:
        """Return a new epoch. From now on, writes under an earlier epoch are fenced."""
        self.epoch += 1
        return self.epoch

    def commit(self, batch: Batch, epoch: int | None = None) -> None:
        """Apply a batch, unless it was applied before.

        Args:
            epoch: The epoch of the writer, or ``None`` if the caller fences these tables itself.

        Raises:
            Fenced: If the node was claimed under another epoch since.
            StrangeDatabase: If the batch does not follow the last one.
        """
        if batch.number == self.commit_no or (
            epoch is not None and not self._is_next(batch, epoch)
        ):
            node = (self.epoch, self.commit_no, NodeState.ACTIVE)
            confirm_applied(node, epoch=self.epoch if epoch is None else epoch, number=batch.number)
            self.fenced += 1
            return
        if epoch is not None:
            self.accepted.append((epoch, batch.number))
        self._count(batch)
        self.apply(batch)
        self._after(batch)
        alerts = (row.body for row in batch.new_outbox if row.kind == ALERT)
        told = (msgspec.msgpack.decode(body, type=Alert) for body in alerts)
        self.timed_out |= {alert.run_id for alert in told if alert.reason == "run_timeout"}

    def _is_next(self, batch: Batch, epoch: int) -> bool:
        return (self.epoch, self.commit_no + 1) == (epoch, batch.number)

    def _count(self, batch: Batch) -> None:
        self._count_steps(batch)
        for change in batch.trigger_changes:
            if change.state is TriggerState.FIRED and change.was is not TriggerState.FIRED:
                self.fired[change.trigger_no] += 1
        self._count_calls(batch)
        for tried in batch.new_tries:
            key = (tried.task_no, tried.start_no)
            assert key not in self._kept, f"a second row for the try {key}"
            self._kept.add(key)
        self._count_named(batch)
        fire_times = ((run.backfill, run.logical_date) for run in batch.new_runs)
        self.filled.update(fire_time for fire_time in fire_times if fire_time[0] is not None)
        for version in batch.new_versions:
            self.specs.update({(version.version, spec.dag_id): spec for spec in version.dags})
        for first, count in self._ranges(batch):
            self._numbers.take(first, count)

    def _count_steps(self, batch: Batch) -> None:
        reached = {no: self.tasks[no].state for no, _ in batch.steps if no in self.tasks}
        is_cleared = any(state is TaskState.PENDING for _, state in batch.steps)
        before = list(_clearings(self.outbox.values())) if is_cleared else []
        done = {number for number in batch.done_outbox if number in self.outbox}
        gone = {owed.run_no: owed for owed in _clearings(self.outbox[number] for number in done)}
        fresh = {owed.run_no: owed for owed in _clearings(batch.new_outbox)}
        self.just_marked = [
            owed for no, owed in gone.items() if owed.mark is not None and no not in fresh
        ]
        made_anew = {no for no, owed in gone.items() if owed.mark is None and owed.reexpanded}
        self.cleared_runs |= made_anew - fresh.keys()  # possibly none of their tasks had begun
        clearing = {owed.run_no for owed in (*before, *fresh.values()) if owed.mark is None}
        for task_no, state in batch.steps:
            if state is TaskState.PENDING:
                self.resumptions[task_no] = self.cut_short[task_no] = 0
                self.recorders.discard(task_no)
                run_no = self.tasks[task_no].run_no
                (self.cleared_runs if run_no in clearing else self.marked_runs).add(run_no)
            if state in {TaskState.DEFERRED, TaskState.SENSING}:
                self.resumptions[task_no] += 1
            if state is TaskState.QUEUED and reached.get(task_no) is TaskState.RUNNING:
                self.cut_short[task_no] += 1
            reached[task_no] = state

    def _count_calls(self, batch: Batch) -> None:
        self.record_counts.subtract(task_no for task_no, _ in batch.dropped_records)
        self.record_counts.update(row.task_no for row in batch.new_records)
        self.recorders.update(row.task_no for row in batch.new_records)
        fresh = {(row.trigger_no, row.sequence): row for row in batch.new_events}
        self.just_consumed = []
        for trigger_no, sequence in batch.consumed_events:
            assert sequence == self.consumed[trigger_no], f"{sequence} of {trigger_no} is not next"
            self.consumed[trigger_no] += 1
            row = fresh.get((trigger_no, sequence)) or self.events[trigger_no, sequence]
            taken_from = self.triggers[trigger_no]
            if taken_from.ordinal < 0:
                self.handled += 1
            else:
                self.just_consumed.append((taken_from.task_no, row.payload))

    def _count_named(self, batch: Batch) -> None:
        """Check the numbers of named events and runs, and that no event or call is stored twice.

        A new event has a higher number than all existing events and runs, a new run a higher one
        than all existing events.
        """
        for event in batch.named_events:
            what = event.data if event.request is None else (event.name, event.request)
            is_once = event.run_no is not None and not event.name.startswith(ASSET)
            if is_once or event.request is not None:
                assert what not in self._emitted, f"{event} is emitted once more"
                self._emitted.add(what)
            assert event.event_no > max(self._newest_event, self._newest_run), event
        for run in batch.new_runs:
            assert run.run_no > self._newest_event, run
            self._plans[run.run_no] = run.version, run.dag_id
            self.run_ids[run.run_no] = run.run_id
            if not run.state.is_live:
                self.ends[run.run_no].add(run.state)
            if run.caller is not None:
                assert run.caller not in self.called, f"{run} is started once more"
                self.called[run.caller] = run.run_no
        for run_no, _, version in batch.run_versions:
            self._plans[run_no] = version, self._plans[run_no][1]
        numbers = (event.event_no for event in batch.named_events)
        self._newest_event = max(numbers, default=self._newest_event)
        self._newest_run = max((run.run_no for run in batch.new_runs), default=self._newest_run)

    def _ranges(self, batch: Batch) -> Iterator[tuple[int, int]]:
        """Yield the number ranges that a batch uses."""
        for run in batch.new_runs:
            yield run.run_no, 1
            yield run.first_task_no, len(self.specs[run.version, run.dag_id].tasks)
        for expansion in batch.new_expansions:
            before = self.expansions.get((expansion.run_no, expansion.task_index))
            if before is None or before.first_task_no != expansion.first_task_no:
                yield expansion.first_task_no, self._reserved(expansion, batch)
        for trigger in batch.new_triggers:
            yield trigger.trigger_no, 1
        for row in batch.of_dags.triggers:
            if row.trigger_no not in self.dag_triggers:
                yield row.trigger_no, 1
        for tick in batch.of_dags.events:
            yield tick.event_no, 1
        for number in {row.backfill_no for row in batch.backfills} - self.backfills.keys():
            yield number, 1
        for event in batch.named_events:
            yield event.event_no, 1
        for owed in batch.new_outbox:
            yield owed.outbox_no, 1

    def _reserved(self, expansion: ExpansionRow, batch: Batch) -> int:
        """Return how many numbers an expansion uses. An open one reserves up to its limit."""
        if not expansion.is_open:
            return expansion.width
        runs = {row.run_no: row for row in batch.new_runs}
        run = runs.get(expansion.run_no) or self.runs[expansion.run_no]
        return self.specs[run.version, run.dag_id].tasks[expansion.task_index].map_limit

    def _after(self, batch: Batch) -> None:
        for gone in batch.gone_expansions:
            del self.widths[gone]
        for expansion in batch.new_expansions:
            key = (expansion.run_no, expansion.task_index)
            self.opened += expansion.is_open
            width = self.widths.setdefault(key, expansion.width)
            assert width == expansion.width, f"{expansion} was {width} wide"
        for grown in batch.expansion_changes:
            self.widths[grown.run_no, grown.task_index] = grown.width
        for file in batch.gone_files:
            del self.files[file]
        self.pools.update({row.name: row for row in batch.pools})
        for name in batch.gone_pools:
            self.pools.pop(name, None)
        self._open.update({run.run_no: None for run in batch.new_runs if run.ended_at is None})
        for ended in batch.run_changes:
            if ended.ended_at is not None:
                self._open.pop(ended.run_no, None)
            else:
                self._open[ended.run_no] = None
            if not ended.state.is_live:
                self.ends[ended.run_no].add(ended.state)
        for row in batch.new_tasks:
            bisect.insort(self._task_nos[row.run_no], row.task_no)
        for deletion in batch.new_deletions:
            assert self.runs[deletion.run_no].ended_at is not None, deletion
            self.deleted.add(deletion.run_no)

    def erase(self, table: str, gone: Collection[tuple[Any, ...]]) -> None:
        """See ``Rows``. Check that only rows of deleted runs are erased."""
        odd = {key for key in gone if self.run_of(table, key) - self.deletions.keys()}
        assert not odd, f"{odd} of {table} are erased"
        if table == "task":
            for task_no in self.tasks.keys() & {key[0] for key in gone}:
                self._task_nos[self.tasks[task_no].run_no].remove(task_no)
        if table == "expansion":
            for key in gone:
                self.widths.pop(key, None)
        super().erase(table, gone)

    def run_of(self, table: str, key: tuple[Any, ...]) -> set[int]:
        """Return the run of a key in a table, or an empty set if there is no such row."""
        if table in {"run", "deletion", "expansion", "clear_request", "note"}:
            return {key[0]}
        if table == "decision":
            return {self.decisions[key[0]].run_no} if key[0] in self.decisions else set()
        row = self.tasks.get(key[0])
        return set() if row is None else {row.run_no}

    def keys_of(self, table: str, run_no: int) -> list[tuple[Any, ...]]:
        """Return the sorted keys of a run in a table."""
        if table == "try":
            return sorted((row.task_no, row.start_no) for row in self.tries if row.run_no == run_no)
        keys = [key if isinstance(key, tuple) else (key,) for key in self.by_key(table)]
        return sorted(key for key in keys if run_no in self.run_of(table, key))

    def find(self, run_id: str) -> RunRow | None:
        """Return the visible run with this id, or ``None``."""
        return next((run for run in self.seen() if run.run_id == run_id), None)

    def left_of(self, run_no: int) -> list[str]:
        """Return the names of the tables that still have rows of a run."""
        left: dict[str, Iterable[Any]] = {
            "record": self.records.values(),
            "decision": self.decisions.values(),
            "note": self.notes.values(),
            "stream_item": self.items.values(),
            "result": self.results.values(),
            "try": self.tries,
            "try_worker": self.try_workers.values(),
            "task": self.tasks.values(),
            "task_trigger": self.triggers.values(),
            "event": self.events.values(),
            "expansion": self.expansions.values(),
            "run": self.runs.values(),
        }
        names = [name for name, rows in left.items() if any(row.run_no == run_no for row in rows)]
        names += ["map_label"] if self.labels.keys() - self.tasks.keys() else []
        names += ["clear_request"] if any(of == run_no for of, _ in self.clears) else []
        return names + (["outbox"] if run_no in map(_owed_of, self.outbox.values()) else [])

    def lose_children(self, begun: Iterable[tuple[int, int]]) -> None:
        """Account for the death of the node and its children: unreported tries restart uncharged.

        A claimed try begins in its worker before the engine learns of it. A crash in between leaves
        its row queued. Starts are at-least-once.
        """
        for task_no, start_no in begun:
            row = self.tasks.get(task_no)
            if row is not None and row.start_no == start_no and row.state is TaskState.QUEUED:
                self.resumptions[task_no] += 1

    def unfinished(self) -> list[int]:
        """See ``Rows``."""
        return list(self._open)

    def tasks_of(self, run_no: int) -> list[TaskRow]:
        """Return the task rows of a run by number."""
        return [self.tasks[task_no] for task_no in self._task_nos[run_no]]

    def triggers_of(self, run_no: int) -> list[TriggerRow]:
        """Return the trigger rows of a run by number."""
        return rows_of(self.triggers, run_no)

    def live_run(self, run_no: int) -> LiveRun:
        """See ``Rows``."""
        tasks = self.tasks_of(run_no)
        return LiveRun(
            run=self.runs[run_no],
            tasks=tasks,
            expansions=rows_of(self.expansions, run_no),
            widths=[
                (row.task_no, found.width)
                for row in tasks
                if (found := self.results.get(row.task_no)) is not None and found.width is not None
            ],
            triggers=self.triggers_of(run_no),
            progress=[self.progress(row.task_no) for row in tasks if self.records_of(row.task_no)],
            events=rows_of(self.events, run_no),
            items=self.item_counts(run_no),
        )

    def items_of(self, task_no: int) -> list[ItemRow]:
        """Return the items that a task has yielded, in order."""
        return [row for key, row in sorted(self.items.items()) if key[0] == task_no]

    def records_of(self, task_no: int) -> list[RecordRow]:
        """Return the durable calls of a task in order, up to the first gap."""
        found = (self.records.get((task_no, ordinal)) for ordinal in itertools.count())
        return list(itertools.takewhile(lambda row: row is not None, found))  # type: ignore[arg-type]

    def last_record(self, task_no: int) -> RecordRow | None:
        """Return the last durable call of a task."""
        rows = self.records_of(task_no)
        return rows[-1] if rows else None

    def events_of(self, trigger_no: int) -> list[EventRow]:
        """Return the events of a stream in order."""
        return [row for key, row in sorted(self.events.items()) if key[0] == trigger_no]

    def has_batch(self, task_no: int) -> bool:
        """Return whether events are pending that the operator has not consumed."""
        return any(
            self.pending_events(row.trigger_no)
            for row in self.triggers.values()
            if row.task_no == task_no and row.window and row.ordinal < 0
        )

    def pending_events(self, trigger_no: int) -> int:
        """Return how many events of the trigger are not consumed."""
        return sum(row.payload is not None for row in self.events_of(trigger_no))

    def stream_events(self, task_no: int, ordinal: int) -> list[EventRow] | None:
        """Return the events of the stream that a call opened, or ``None`` if it was deleted."""
        for row in self.triggers.values():
            opened = (row.task_no, row.ordinal) == (task_no, ordinal)
            if opened and row.window and row.state is not TriggerState.ENDING:
                return self.events_of(row.trigger_no)
        return None

    def is_held(self, run_no: int) -> bool:
        """Return whether a run is quarantined."""
        run = self.runs.get(run_no)
        return run is not None and run.quarantine is not None

    def has_stored(self, trigger_no: int, key: str) -> bool:
        """Return whether an event with this key is stored."""
        of_dags = self.dag_events.values()
        is_of_dag = any((row.trigger_no, row.key) == (trigger_no, key) for row in of_dags)
        return is_of_dag or any(row.key == key for row in self.events_of(trigger_no))

    def running(self, run_no: int) -> list[TaskRow]:
        """Return the task rows of a run that are in state running."""
        return [row for row in self.tasks_of(run_no) if row.state is TaskState.RUNNING]

    def spec_of_run(self, run_no: int) -> DagSpec:
        """Return the DAG of a run in the run's version, even if the run was deleted."""
        return self.specs[self._plans[run_no]]

    def is_clearing(self, run_no: int) -> bool:
        """Return whether a clear or mark of the run is incomplete."""
        return any(owed.run_no == run_no for owed in _clearings(self.outbox.values()))

    def clearing_of(self, run_no: int) -> set[int]:
        """Return the tasks of a run whose clear or mark is incomplete."""
        found = (owed for owed in _clearings(self.outbox.values()) if owed.run_no == run_no)
        return {task_index for owed in found for task_index in owed.task_indexes}

    def present(self, run_no: int) -> list[TaskRow]:
        """Return the task rows of a run that were neither removed nor replaced."""
        return [row for row in self.tasks_of(run_no) if self._is_present(row)]

    def _is_present(self, row: TaskRow) -> bool:
        if row.map_index < 0:
            return row.state is not TaskState.REMOVED
        expansion = self.expansions.get((row.run_no, row.task_index))
        if expansion is None or row.map_index >= expansion.width:
            return False
        return row.task_no == expansion.first_task_no + row.map_index

    def live_run_nos(self) -> list[int]:
        """Return the numbers of the runs in state running."""
        return [no for no in self.unfinished() if self.runs[no].state is RunState.RUNNING]
