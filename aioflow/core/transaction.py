"""The net changes of a turn, collected while the turn is decided.

The journal contains every step. Each row is written only once, in the last state that was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from aioflow.core import callbacks
from aioflow.core.history import HistoryUpdates
from aioflow.core.outbox import OutboxUpdates
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.accounts import AccountUpdates
from aioflow.core.state.dag_triggers import DagTriggerUpdates
from aioflow.core.state.graph import DagVersion
from aioflow.core.state.id_block import IdBlock
from aioflow.core.state.memory import Memory
from aioflow.core.state.packed import PackedTask, TaskShape
from aioflow.core.state.task_instance import (
    Expansions,
    Fire,
    MappedTask,
    Run,
    TaskInstance,
    TriggerInstance,
    stored_due,
)
from aioflow.core.transitions import IllegalMove, is_legal, is_legal_run
from aioflow.model.access import Actor
from aioflow.model.batch import Batch
from aioflow.model.dag import BackfillRow, DagSpec
from aioflow.model.decisions import (
    PERSON,
    DecisionEnd,
    DecisionOutcome,
    DecisionRow,
    DecisionVotes,
)
from aioflow.model.ids import RunNo
from aioflow.model.notes import NoteKey, NoteRow
from aioflow.model.rows import (
    ItemRow,
    NamedEventRow,
    PoolRow,
    RecordChange,
    RecordRow,
    RunChange,
    RunRow,
    TaskChange,
    TaskRow,
    TriggerChange,
    TriggerRow,
)
from aioflow.model.states import Failure, RecordState, RunState, TaskState, TriggerState
from aioflow.model.timestamps import Moment, Timestamp
from aioflow.protocol.commands import EventsStored
from aioflow.protocol.effects import AssignTrigger, ConfirmEvents, Effect, ReleaseTrigger, WakeAt
from aioflow.protocol.inputs import ContinueRun, TimerFired

__all__ = ("BATCH_ROWS", "Transaction")

BATCH_ROWS = 10_000
"""Number of row changes after which remaining work is postponed to the next batch."""


class Transaction:
    """The changes of one turn, collected while the turn is decided.

    Attributes:
        slots: Worker slots and pools of the node.
        at: The time at which the whole turn happens.
        now, steady: The wall time of the turn, for everything that people read and schedule, and
            its steady time, for durations.
        step: How far the wall clock has stepped since the previous turn.
        random: Returns a random number from [0, 1).
        runs: Every run that the turn touched. They are read again if the batch is refused.
        ended_runs: Runs that ended in this turn.
        outbox: Changes of the outbox.
        dag_triggers: Changes of the triggers that start runs.
        accounts: Changes of accounts, tokens and sessions, and new audit entries.
        history: Additions of the turn to the history of runs and tasks.
        eased_dags: DAGs with fewer live or queued runs than before, whose triggers may continue.
        asset_events: Asset events emitted in this turn, for the DAGs that depend on these assets.
        checked_dags: DAGs whose triggers were checked and whose pending asset events may start a
            run.
        ended_tasks: Tasks that ended and for which the next run may have waited.
        recheck_dags: DAGs whose next queued run must be re-checked because its predecessor ended or
            was deleted.
        fires: Trigger events that the turn consumes.
        noted_runs: Runs whose notes were written or deleted.
        actor: The author of the request that is being executed, if any.
        pools_before: The previous state of the pools that the turn changed.
        was_drained: Whether the node was drained before the turn; ``None`` if the turn does not
            change that.
        evaluated: Number of children evaluated in this turn for the first time since they expanded.
        strays: Trigger rows of ended runs that the turn deletes.
        pruned: DAG versions that are unused once the batch is durable.
    """

    def __init__(
        self,
        memory: Memory,
        slots: Slots,
        *,
        at: Moment,
        random: Callable[[], float],
        numbers: IdBlock,
    ) -> None:
        self.memory = memory
        self.slots = slots
        self.at, self.now, self.steady = at, at.now, at.steady
        self.step = 0
        self.random = random
        self.numbers = numbers
        self.batch = Batch(number=memory.commit_no + 1, at=at.now, steady_at=at.steady)
        self.effects: list[Effect] = []
        self.runs: dict[RunNo, Run] = {}
        self.ended_runs: list[Run] = []
        self.fires: list[Fire] = []
        self.eased_dags: set[str] = set()
        self.asset_events: list[NamedEventRow] = []
        self.checked_dags: list[str] = []
        self.outbox = OutboxUpdates(memory, numbers.take, self.effects)
        self.dag_triggers = DagTriggerUpdates(memory.dag_triggers)
        self.expansions = Expansions(self.batch)
        self.accounts = AccountUpdates(memory.accounts, numbers.take)
        self.history = HistoryUpdates()
        self.ended_tasks: list[tuple[Run, int]] = []
        self.recheck_dags: set[str] = set()
        self.pools_before: dict[str, PoolRow | None] = {}
        self.was_drained: bool | None = None
        self.evaluated = 0
        self.strays: list[TriggerRow] = []
        self.pruned: dict[tuple[str, str], DagVersion] = {}
        self._backfills: dict[int, BackfillRow | None] = {}
        self._refused: dict[str, dict[str, tuple[DagSpec, str]]] | None = None
        self._tasks: dict[int, TaskInstance] = {}
        self._slot_changes: dict[int, TaskInstance] = {}
        self._withdrawn: set[int] = set()
        self._new_runs: dict[RunNo, Run] = {}
        self._runs_before: dict[RunNo, RunRow] = {}
        self._waits: dict[int, tuple[TriggerInstance, TriggerRow | None]] = {}
        self._dropped: list[tuple[TriggerInstance, TriggerRow]] = []
        self._postponed: set[RunNo] = set()
        self._assignments: dict[int, tuple[TriggerInstance, tuple[int, str, str, bool]]] = {}
        self._packed_assignments: dict[int, tuple[PackedTask, TaskShape]] = {}
        self._streams: dict[int, tuple[TriggerInstance, int, int]] = {}
        self._confirmations: dict[int, EventsStored] = {}
        self._new_records: dict[tuple[int, int], RecordRow] = {}
        self._record_changes: dict[tuple[int, int], RecordChange] = {}
        self.actor: Actor | None = None
        self.noted_runs: dict[RunNo, RunRow] = {}
        self._notes: dict[NoteKey, NoteRow | None] = {}
        self._new_decisions: dict[int, DecisionRow] = {}
        self._votes: dict[int, DecisionVotes] = {}
        self._decision_ends: dict[int, DecisionEnd] = {}

    @property
    def is_full(self) -> bool:
        """Whether work that can wait should be postponed to the next turn."""
        return len(self._tasks) >= BATCH_ROWS

    def touch(self, task: TaskInstance) -> None:
        """Record that the row of a task changes, even if its state does not."""
        self._tasks[task.task_no] = task
        self.runs[task.run.run_no] = task.run

    def note_slot(self, task: TaskInstance) -> None:
        """Record that the slot of a task changes while its row does not."""
        self._slot_changes[task.task_no] = task
        self.runs[task.run.run_no] = task.run

    def move(self, task: TaskInstance, state: TaskState) -> None:
        """Move a task to another state.

        Raises:
            IllegalMove: If the transition table does not contain the step.
        """
        if not is_legal(task.state, state):
            raise IllegalMove(
                f"task {task.name} of run {task.run.row.run_id} cannot go from "
                f"{task.state.label} to {state.label}"
            )
        task.state = state
        self.batch.steps.append((task.task_no, state))
        if task.map_index >= 0:
            task.run.groups[task.task_index].note(task.map_index, state)
        if (called := task.spec.callbacks) is not None:
            self.outbox.call_back(
                task.run.row.dag_id, callbacks.task_callback(task, called, self.now)
            )
        self.touch(task)

    def new_run(self, run: Run) -> None:
        """Record a new run."""
        self._new_runs[run.run_no] = run
        self.runs[run.run_no] = run

    def change_run(
        self,
        run: Run,
        *,
        state: RunState | None = None,
        ended_at: Timestamp | None = None,
        started_at: Timestamp | None = None,
        quarantine: str | None = None,
        is_reported: bool = True,
    ) -> None:
        """Change a run's row. Columns for which no value is passed do not change.

        Args:
            is_reported: Whether the run's callback for the new state is called.

        Raises:
            IllegalMove: If the transition table does not contain the step.
        """
        row = self._moving(run, state)
        if state is not None and is_reported:
            self.outbox.call_back(row.dag_id, callbacks.run_callback(run, state, self.now))
        if ended_at is not None and row.started_at is not None:
            ended_at = max(ended_at, row.started_at)  # the clock may have been set back
        run.row = msgspec.structs.replace(
            row,
            state=row.state if state is None else state,
            started_at=row.started_at if started_at is None else started_at,
            ended_at=row.ended_at if ended_at is None else ended_at,
            quarantine=row.quarantine if quarantine is None else quarantine,
        )

    def reopen_run(self, run: Run) -> None:
        """Queue an ended run again."""
        row = self._moving(run, RunState.QUEUED)
        run.row = msgspec.structs.replace(
            row, state=RunState.QUEUED, ended_at=None, quarantine=None
        )

    def clear_end_time(self, run: Run) -> None:
        """Clear the end time of an ended run. The run keeps its final state."""
        run.row = msgspec.structs.replace(self._moving(run, None), ended_at=None)

    def _moving(self, run: Run, state: RunState | None) -> RunRow:
        row = run.row
        self.runs[run.run_no] = run
        if state is not None and not is_legal_run(row.state, state):
            raise IllegalMove(f"run {row.run_id} cannot go from {row.state.label} to {state.label}")
        self._runs_before.setdefault(run.run_no, row)
        return row

    def put_backfill(self, row: BackfillRow) -> None:
        """Store a backfill that starts, advances or ends. Only active ones remain in memory."""
        backfills, number = self.memory.backfills, row.backfill_no
        self._backfills.setdefault(number, backfills.pop(number, None))
        if row.state == "running":
            backfills[number] = row
        self.batch.backfills.append(row)

    def new_wait(self, wait: TriggerInstance) -> None:
        """Record a new trigger row."""
        self.memory.waits[wait.row.trigger_no] = wait
        self._waits[wait.row.trigger_no] = (wait, None)
        self.runs[wait.run.run_no] = wait.run

    def move_wait(
        self,
        wait: TriggerInstance,
        state: TriggerState,
        *,
        event: bytes | None = None,
        key: str | None = None,
        failure: Failure | None = None,
    ) -> None:
        """Change the state of a trigger row, and store its event if it fired."""
        self._waits.setdefault(wait.row.trigger_no, (wait, wait.row))
        self.runs[wait.run.run_no] = wait.run
        if state is TriggerState.FIRED and wait.row.state is TriggerState.WAITING:
            self.history.trigger_fired(wait, self.now)
        wait.row = msgspec.structs.replace(
            wait.row, state=state, event=event, event_key=key, failure=failure
        )

    def record_assignment(self, wait: TriggerInstance) -> None:
        """Record the previous assignment of a trigger that is being reassigned.

        A rollback restores it, because the effects of a turn that is rolled back reach no host.
        """
        was = (wait.assignment_id, wait.role, wait.version, wait.has_capacity)
        number = wait.row.trigger_no
        self._assignments.setdefault(number, (wait, was))
        if wait.stream is not None:
            self._streams.setdefault(number, (wait, wait.stream.index, wait.stream.confirmed))

    def record_packed_assignment(self, was: PackedTask, form: TaskShape) -> None:
        """Record the previous assignment of a packed trigger, like ``record_assignment``."""
        self._packed_assignments.setdefault(was.trigger_no, (was, form))

    def change_stream(self, wait: TriggerInstance) -> None:
        """Record that events of a trigger are stored or consumed."""
        self.runs[wait.run.run_no] = wait.run
        if wait.row.trigger_no not in self._streams and wait.stream is not None:
            self._streams[wait.row.trigger_no] = (wait, wait.stream.index, wait.stream.confirmed)

    def confirm_events(self, confirmed: EventsStored) -> None:
        """Confirm the stored events to a trigger, so that it continues.

        Only the last call of a turn for the same trigger has an effect.
        """
        self._confirmations[confirmed.trigger_no] = confirmed

    def drop_wait(self, wait: TriggerInstance) -> None:
        """Delete a trigger row and drop it from memory."""
        number = wait.row.trigger_no
        if wait.stream is not None and wait.stream.next_sequence:
            self.batch.gone_events.append(number)
        self._confirmations.pop(number, None)
        if wait.row.class_path == PERSON and wait.row.state is TriggerState.WAITING:
            self.end_decision(number, "withdrawn", None)
        _, before = self._waits.pop(number, (wait, wait.row))
        if before is None:
            self._withdraw(number)
        else:
            self._dropped.append((wait, before))
            self.batch.trigger_changes.append(TriggerChange(number, before.state, None, None, None))
        self.memory.waits.pop(number, None)

    def put_note(self, key: NoteKey, row: NoteRow | None, run: RunRow) -> None:
        """Write a note, or delete it if ``row`` is ``None``. The last call in a turn wins."""
        self._notes[key] = row
        self.noted_runs[run.run_no] = run
        self.memory.notes.pop(key, None)
        if row is not None:
            self.memory.notes[key] = row

    def new_decision(self, row: DecisionRow) -> None:
        """Record a decision for which a task starts to wait."""
        self._new_decisions[row.decision_no] = row

    def vote(self, change: DecisionVotes) -> None:
        """Record the votes on a decision."""
        first = self._votes.get(change.decision_no, change)
        self._votes[change.decision_no] = msgspec.structs.replace(change, was=first.was)

    def end_decision(
        self, decision_no: int, outcome: DecisionOutcome, answer: bytes | None
    ) -> None:
        """Record the end of a decision. Only the first end in a turn has an effect."""
        end = DecisionEnd(decision_no, outcome, answer, self.now)
        self._decision_ends.setdefault(decision_no, end)

    def _withdraw(self, trigger_no: int) -> None:
        """Cancel the assignment of a trigger that was both created and deleted in this turn.

        If the assignment were sent, a host would run a trigger that has no row.
        """
        if self._assignments.pop(trigger_no, None) is not None:
            self._withdrawn.add(trigger_no)

    def _is_withdrawn(self, effect: Effect) -> bool:
        match effect:
            case AssignTrigger():
                return effect.host.trigger_no in self._withdrawn
            case ReleaseTrigger():
                return effect.end.trigger_no in self._withdrawn
            case _:
                return False

    def change_group(self, group: MappedTask, was: int) -> None:
        """Record that an open mapped task is created, grows or is closed.

        ``was`` is its previous width, or -1 if it is created.
        """
        self.runs[group.run.run_no] = group.run
        self.expansions.change(group, was)

    def new_item(self, task: TaskInstance, index: int, payload: bytes) -> None:
        """Store an item that a task yields."""
        self.runs[task.run.run_no] = task.run
        number, run_no = task.task_no, task.run.run_no
        item = ItemRow(task_no=number, item_index=index, run_no=run_no, payload=payload)
        self.batch.new_items.append(item)

    def new_record(self, task: TaskInstance, row: RecordRow) -> None:
        """Store the record of a durable call."""
        self._new_records[row.task_no, row.ordinal] = row
        self.runs[task.run.run_no] = task.run
        task.recorded = row.ordinal + 1

    def answer_record(
        self, task: TaskInstance, answer: bytes | None, failure: Failure | None = None
    ) -> None:
        """Store the answer or the failure of a task's open record, which is its last record."""
        state = RecordState.ANSWERED if failure is None else RecordState.FAILED
        change = RecordChange(task.task_no, task.recorded - 1, state, answer, failure)
        self._record_changes[change.task_no, change.ordinal] = change
        self.runs[task.run.run_no] = task.run

    def drop_records(self, task: TaskInstance, first: int = 0) -> None:
        """Delete the records of durable calls from ``first`` on, as if they had never been made."""
        for key in ((task.task_no, ordinal) for ordinal in range(first, task.recorded)):
            self._record_changes.pop(key, None)
            if self._new_records.pop(key, None) is None:
                self.batch.dropped_records.append(key)
        self.runs[task.run.run_no] = task.run
        task.recorded = min(first, task.recorded)
        if task.first_failed >= first:
            task.first_failed = -1
        task.open_kind = ""

    def wake_task(self, task: TaskInstance, at: Timestamp | None) -> None:
        """Set a timer for a task. Do nothing if ``at`` is ``None``."""
        if at is not None:
            self.effects.append(WakeAt(TimerFired(at, task.task_no)))

    def wake_dag(self, dag_id: str, fire_time: Timestamp, at: Timestamp) -> None:
        """Set a timer at ``at`` for a fire time of a DAG."""
        self.effects.append(WakeAt(TimerFired(fire_time, dag_id=dag_id), at))

    def wake_run(self, run_no: RunNo, at: Timestamp) -> None:
        """Set a timer for a run."""
        self.effects.append(WakeAt(TimerFired(at, run_no=run_no)))

    def task_ended(self, run: Run, task_index: int) -> None:
        """Record that a task and all its children have ended. The next run may have waited."""
        if run.row.dag_id in self.memory.run_sequences:
            self.ended_tasks.append((run, task_index))

    def postpone(self, run: Run) -> None:
        """Continue with this run in the next turn."""
        if run.run_no not in self._postponed:
            self._postponed.add(run.run_no)
            self.effects.append(ContinueRun(run.run_no))

    @property
    def refused(self) -> dict[str, dict[str, tuple[DagSpec, str]]]:
        """``memory.refused``, to be changed. A copy is made first, for a rollback."""
        if self._refused is None:
            self._refused = {name: dict(files) for name, files in self.memory.refused.items()}
        return self.memory.refused

    @property
    def touched(self) -> Iterable[TaskInstance]:
        """The tasks whose rows or slots the turn changes."""
        return (*self._tasks.values(), *self._slot_changes.values())

    @property
    def waits_before(self) -> Iterable[TriggerRow]:
        """The previous values of the trigger rows that the turn moves or deletes."""
        return [row for _, row in (*self._waits.values(), *self._dropped) if row is not None]

    def close(self) -> Batch:
        """Return the complete batch. Call ``mark_durable`` once the batch is durable."""
        for task in self._tasks.values():
            self._close_task(task)
        for run in self._new_runs.values():
            self.batch.new_runs.append(run.row)
            self.history.run_changed(run.row, None)
        for run_no, was in self._runs_before.items():
            if run_no not in self._new_runs:
                self._close_run(self.runs[run_no].row, was)
        for wait, before in self._waits.values():
            self._close_wait(wait.row, None if before is None else before.state)
        self.expansions.close()
        self.dag_triggers.close(self.batch.of_dags)
        self.accounts.close(self.batch, self.now)
        if self._withdrawn:
            self.effects[:] = [one for one in self.effects if not self._is_withdrawn(one)]
        self.effects.extend(ConfirmEvents(confirmed) for confirmed in self._confirmations.values())
        self.batch.new_outbox.extend(self.outbox.new)
        self.batch.done_outbox.extend(self.outbox.done)
        self.batch.new_records.extend(self._new_records.values())
        self.batch.record_changes.extend(self._record_changes.values())
        # Most turns have no such changes, and some turns have little else to do, so skip these
        # steps.
        if self._new_decisions or self._votes or self._decision_ends:
            self._close_decisions()
        if self._notes:
            self._close_notes()
        if self.history.is_pending:
            self.batch.history.extend(self.history.rows(self.now))
        return self.batch

    def mark_durable(self) -> None:
        """Record that the batch is durable, so that the decided state is now the stored state."""
        self.accounts.mark_durable()
        self.memory.shift += self.step
        waits, pending = TaskState.DEFERRED, TaskState.PENDING
        waiting: list[TaskInstance] = []
        for task in self._tasks.values():
            task.stored_state = task.state
            task.stored_start = task.start_no
            task.stored_slot = (task.worker, task.is_claimed, task.is_hosted)
            if task.state is waits:
                waiting.append(task)
            elif task.state is pending:
                task.run.cleared.put(task.task_no, task.start_no)
        for task in self._slot_changes.values():
            task.stored_slot = (task.worker, task.is_claimed, task.is_hosted)
        self.memory.packing.pack_waiting(waiting, self.runs)

    def roll_back(self) -> None:
        """Undo the changes in memory to triggers, the outbox, accounts, backfills and DAG versions.

        ``core.rollback`` restores the rest, such as runs and pools.
        """
        self.memory.dag_versions.update(self.pruned)
        self.outbox.roll_back()
        self.dag_triggers.roll_back()
        self.accounts.roll_back()
        for event in self.batch.named_events:
            if event.request is not None:
                self.memory.event_requests.pop((event.name, event.request), None)
        backfills = self.memory.backfills
        for backfill_no, backfill in self._backfills.items():
            backfills.pop(backfill_no, None)
            if backfill is not None:
                backfills[backfill_no] = backfill
        if self._refused is not None:
            self.memory.refused = self._refused
        for wait, index, confirmed in self._streams.values():
            if wait.stream is not None:
                wait.stream.index, wait.stream.confirmed = index, confirmed
        for wait, was in self._assignments.values():
            wait.assignment_id, wait.role, wait.version, wait.has_capacity = was
        waits = self.memory.waits
        for wait, before in (*self._waits.values(), *self._dropped):
            if before is None:
                waits.pop(wait.row.trigger_no, None)
            else:
                wait.row = before
                waits[before.trigger_no] = wait
        for packed, form in self._packed_assignments.values():
            self.memory.packing.change_back(packed, form)

    def _close_decisions(self) -> None:
        """Add the changes of decisions. A decision that starts and ends in a turn gets no row."""
        batch, new, ends = self.batch, self._new_decisions, self._decision_ends
        batch.new_decisions.extend(row for number, row in new.items() if number not in ends)
        batch.decision_votes.extend(self._votes.values())
        batch.decision_ends.extend(end for number, end in ends.items() if number not in new)

    def _close_notes(self) -> None:
        """Add the notes that were written and deleted."""
        self.batch.notes.extend(row for row in self._notes.values() if row is not None)
        self.batch.gone_notes.extend(key for key, row in self._notes.items() if row is None)

    def _close_task(self, task: TaskInstance) -> None:
        if task.state >= TaskState.SUCCESS and task.stored_state < TaskState.SUCCESS:
            self.history.task_ended(task)
        if task.stored_state is TaskState.PENDING and not task.stored_start:
            self.batch.new_tasks.append(
                TaskRow(
                    task_no=task.task_no,
                    run_no=task.run.row.run_no,
                    task_index=task.task_index,
                    map_index=task.map_index,
                    state=task.state,
                    try_number=task.try_number,
                    start_no=task.start_no,
                    interruptions=task.interruptions,
                    due_at=stored_due(task),
                    deadline_at=task.deadline_at,
                    queued_at=task.queued_at,
                    started_at=task.started_at,
                    ended_at=task.ended_at,
                    failure=task.failure,
                )
            )
        else:
            self.batch.task_changes.append(
                TaskChange(
                    task.task_no,
                    task.stored_state,
                    task.stored_start,
                    task.state,
                    task.try_number,
                    task.start_no,
                    task.interruptions,
                    stored_due(task),
                    task.deadline_at,
                    task.queued_at,
                    task.started_at,
                    task.ended_at,
                    task.failure,
                )
            )

    def _close_run(self, row: RunRow, was: RunRow) -> None:
        self.history.run_changed(row, was)
        self.batch.run_changes.append(
            RunChange(
                row.run_no, was.state, row.state, row.started_at, row.ended_at, row.quarantine
            )
        )

    def _close_wait(self, row: TriggerRow, was: TriggerState | None) -> None:
        if was is None:
            self.batch.new_triggers.append(row)
        else:
            self.batch.trigger_changes.append(
                TriggerChange(row.trigger_no, was, row.state, row.event, row.event_key, row.failure)
            )
