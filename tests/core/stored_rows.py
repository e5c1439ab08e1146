"""The tables as dictionaries, with the guards of the database and the reads of the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from aioflow.core import notes
from aioflow.core.repair import mark
from aioflow.core.repair.clear import asks, key_of, needed
from aioflow.core.runs import backfills, idempotency
from aioflow.core.runs.restore import RunRestore
from aioflow.core.scheduling import clock_steps
from aioflow.core.state.memory import Memory
from aioflow.core.triggers.votes import decision_nos
from aioflow.model.batch import Batch
from aioflow.model.dag import BackfillRow
from aioflow.model.decisions import DecisionRow
from aioflow.model.notes import NoteKey, NoteRow
from aioflow.model.pool_usage import PoolUsageKey, PoolUsageRow
from aioflow.model.rows import (
    DeletionRow,
    EventRow,
    ItemRow,
    NamedEventRow,
    OutboxRow,
    RecordRow,
    RunRow,
    TaskRow,
    TriggerRow,
    TryWorkerRow,
)
from aioflow.model.states import RecordState, TaskState, TriggerState
from aioflow.model.triggers import DagEventRow, DagTriggerChanges, DagTriggerRow, EventOutcome
from aioflow.protocol.inputs import CoroutineProgress, Input, LiveRun
from aioflow.protocol.outbox import ENGINE_KINDS
from aioflow.protocol.reports import TriggerFired
from tests.net_changes import net_is_reachable

__all__ = ("Rows", "recall", "rows_of")


class Rows:
    """The tables as dictionaries. A guard that does not hold raises an ``AssertionError``."""

    def __init__(self) -> None:
        self.drained: set[int] = set()
        self.runs: dict[int, RunRow] = {}
        self.tasks: dict[int, TaskRow] = {}
        self.expansions: dict[tuple[int, int], Any] = {}
        self.triggers: dict[int, TriggerRow] = {}
        self.records: dict[tuple[int, int], RecordRow] = {}
        self.decisions: dict[int, DecisionRow] = {}
        self.notes: dict[NoteKey, NoteRow] = {}
        self.pool_usage: dict[PoolUsageKey, PoolUsageRow] = {}
        self.results: dict[int, Any] = {}
        self.events: dict[tuple[int, int], EventRow] = {}
        self.named_events: dict[int, NamedEventRow] = {}
        self.items: dict[tuple[int, int], ItemRow] = {}
        self.tries: list[Any] = []
        self._tried: set[tuple[int, int]] = set()
        self.try_workers: dict[tuple[int, int], TryWorkerRow] = {}
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
        self.dag_events_ever: Counter[int] = Counter()
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
        self._apply_tries(batch)
        self._apply_triggers(batch)
        self._apply_decisions(batch)
        self.notes.update({row.key: row for row in batch.notes})
        for noted in batch.gone_notes:
            self.notes.pop(noted, None)
        self.pool_usage.update({(row.pool, row.start): row for row in batch.pool_usage})
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
        for run_no, old, new in batch.run_versions:
            assert self.runs[run_no].version == old
            assert new in self.versions
            self.runs[run_no] = msgspec.structs.replace(self.runs[run_no], version=new)
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
            assert event.sequence == self.dag_events_ever[event.trigger_no]
            self.dag_events_ever[event.trigger_no] += 1
            assert event.key is None or event.key not in {row.key for row in known}
            self.dag_events[event.event_no] = event
        for change in changes.outcomes:
            held = self.dag_events[change.event_no]
            assert held.outcome is EventOutcome.HELD
            self.dag_events[change.event_no] = msgspec.structs.replace(
                held, outcome=change.outcome, run_no=change.run_no, reason=change.reason
            )

    def erase(self, table: str, gone: Collection[tuple[Any, ...]]) -> None:
        """Delete rows by their keys."""
        if table == "history":
            return
        if table == "try":
            self.tries = [row for row in self.tries if (row.task_no, row.start_no) not in gone]
            self._tried = {(row.task_no, row.start_no) for row in self.tries}
            return
        rows = self.by_key(table)
        for key in gone:
            rows.pop(key if len(key) > 1 else key[0], None)

    def by_key(self, table: str) -> dict[Any, Any]:
        """Return the rows of a table in which rows are erased. Single-column keys are bare."""
        found: dict[str, dict[Any, Any]] = {
            "stream_item": self.items,
            "record": self.records,
            "decision": self.decisions,
            "note": self.notes,
            "pool_usage": self.pool_usage,
            "try_worker": self.try_workers,
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
        """Return the runs that users see: all runs except those being deleted."""
        return (run for run in self.runs.values() if run.run_no not in self.deletions)

    def owed(self) -> tuple[list[OutboxRow], dict[str, tuple[int, int]]]:
        """Return what a restart reads from the outbox; see ``Snapshot``."""
        counts: dict[str, tuple[int, int]] = {}
        for row in sorted(self.outbox.values(), key=lambda row: -row.outbox_no):
            if row.kind not in ENGINE_KINDS:
                counts[row.kind] = counts.get(row.kind, (0, 0))[0] + 1, row.outbox_no
        return [row for row in self.outbox.values() if row.kind in ENGINE_KINDS], counts

    def found_owed(self, wanted: dict[str, tuple[int, int]]) -> dict[str, list[OutboxRow]]:
        """Return the outbox rows that ``engine.prefetch`` reads."""
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
            key = (expansion.run_no, expansion.task_index)
            assert key not in self.expansions
            self.expansions[key] = expansion
        for grown in batch.expansion_changes:
            row = self.expansions[grown.run_no, grown.task_index]
            assert row.is_open
            assert row.width == grown.was <= grown.width
            self.expansions[grown.run_no, grown.task_index] = msgspec.structs.replace(
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
        for task_no, run_no, label in batch.labels:
            assert self.tasks[task_no].run_no == run_no
            self.labels[task_no] = label

    def _apply_tries(self, batch: Batch) -> None:
        self.tries.extend(batch.new_tries)
        for ended in batch.new_tries:
            key = (ended.task_no, ended.start_no)
            assert key not in self._tried, "a start has a second row of its try"
            self._tried.add(key)
        for at in batch.try_workers:
            assert (at.task_no, at.start_no) not in self.try_workers, "a start began twice"
            assert at.start_no <= self.tasks[at.task_no].start_no
            self.try_workers[at.task_no, at.start_no] = at

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

    def _apply_decisions(self, batch: Batch) -> None:
        for row in batch.new_decisions:
            assert row.decision_no not in self.decisions
            assert self.triggers[row.decision_no].state is TriggerState.WAITING
            self.decisions[row.decision_no] = row
        for change in batch.decision_votes:
            row = self.decisions[change.decision_no]
            assert (row.vote_count, row.outcome) == (change.was, None)
            self.decisions[change.decision_no] = msgspec.structs.replace(
                row, votes=change.votes, vote_count=change.vote_count
            )
        for end in batch.decision_ends:
            row = self.decisions[end.decision_no]
            assert row.outcome is None, "a decision ended twice"
            self.decisions[end.decision_no] = msgspec.structs.replace(
                row, outcome=end.outcome, answer=end.answer, ended_at=end.ended_at
            )

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
        """Return how many items each task of a run has yielded, as the database would."""
        counts: dict[int, int] = {}
        for item in self.items.values():
            if item.run_no == run_no:
                counts[item.task_no] = counts.get(item.task_no, 0) + 1
        return list(counts.items())

    def progress(self, task_no: int) -> CoroutineProgress:
        """Return how many durable calls of a task are recorded, as the database would."""
        rows = [row for _, row in sorted(self.records.items()) if row.task_no == task_no]
        failed = [row.ordinal for row in rows if row.state is RecordState.FAILED]
        opened = [row for row in rows if row.state is RecordState.OPEN]
        return CoroutineProgress(
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


def rows_of(table: Mapping[Any, Any], run_no: int) -> list[Any]:
    """Return the rows of a run, sorted by key. Only these rows are sorted, not the table."""
    return [table[key] for key in sorted(key for key, row in table.items() if row.run_no == run_no)]


def _recall_notes(inputs: Iterable[Input], rows: Rows, memory: Memory) -> None:
    memory.noted_runs, memory.notes = {}, {}
    for request in notes.asks(inputs):
        for run in rows.seen():
            if run.run_id == request.run_id:
                memory.noted_runs[run.run_id] = run
                key = (run.run_no, request.task_index, request.map_index)
                if key in rows.notes:
                    memory.notes[key] = rows.notes[key]


def recall(inputs: Iterable[Input], memory: Memory, rows: Any) -> None:
    """Read the rows that a turn needs, as ``engine.prefetch`` does from a database."""
    memory.answered = {}
    memory.known_keys = set()
    if any(isinstance(entry, TriggerFired) for entry in inputs):
        events = rows.dag_events.values()
        memory.known_keys = {(row.trigger_no, row.key) for row in events if row.key is not None}
    run_ids, keys = idempotency.requested_runs(inputs)
    named = []
    if run_ids or keys:
        named = [
            run
            for run in rows.runs.values()
            if run.run_id in run_ids or run.key in keys.get(run.dag_id, ())
        ]
    idempotency.remember_existing_runs(
        [(run, run.run_no in rows.deletions) for run in named], memory
    )
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
            loading = RunRestore(found, memory)
            loading.take_ended(found)
            memory.loaded[request.run_id, key] = loading.look_back()
    decided = decision_nos(inputs)
    memory.decisions = {no: rows.decisions[no] for no in decided if no in rows.decisions}
    _recall_notes(inputs, rows, memory)
    memory.prefetched_tasks = {number: rows.tasks[number] for number in needed(inputs, memory)}
    memory.found_fire_times = {}
    begun = {(row.dag_id, row.key): row.backfill_no for row in rows.backfills.values() if row.key}
    memory.keyed_backfills = {
        asked: begun[asked] for asked in backfills.keys(inputs) if asked in begun
    }
    for backfill, dates in backfills.wanted(inputs, memory):
        dated = (run for run in rows.seen() if run.logical_date in dates)
        runs = [run for run in dated if run.dag_id == backfill.dag_id]
        backfills.found(backfill, dates, runs, memory)
    memory.found_ahead = {}
    for entry in clock_steps.wanted(inputs):
        made = [run for run in rows.seen() if run.dag_id == entry.dag_id]
        clock_steps.found(
            entry, [run for run in made if run.logical_date in entry.fire_times], memory
        )
    marks = list(mark.asks(inputs))
    seen = {run.run_id: run for run in rows.seen()} if marks else {}
    memory.prefetched_runs = {
        request.run_id: seen[request.run_id]
        for request in marks
        if request.run_id in seen and mark.is_row_needed(request, memory)
    }
    for run in memory.prefetched_runs.values():
        for spec in rows.versions[run.version].dags:
            memory.add_plan(run.version, spec)
