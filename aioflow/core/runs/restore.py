"""Restoration of runs from their rows, one page at a time, after a restart or a rollback.

Tasks that only wait are packed as their rows are read and never become objects. So a restart with a
hundred thousand waiting tasks needs little more memory than the packed tasks. ``RunRestore`` makes
no decisions.

After a restart, ``recovery`` decides how the restored runs continue. If this fails, it is repeated
run by run, so that a run that cannot continue does not block other runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from aioflow.core.runs import deadlines, run_queue
from aioflow.core.runs.recovery import delete_stray_triggers, find_suspects, resume_dags, resume_run
from aioflow.core.runs.task_counts import recount
from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.memory import Memory
from aioflow.core.state.packed_maps import Pages, Rows, packed
from aioflow.core.state.task_instance import (
    MappedTask,
    Run,
    StreamOutput,
    TaskInstance,
    TriggerInstance,
    stored_times,
)
from aioflow.core.tasks import retry_budget, stream_expand
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import event_stream
from aioflow.model.rows import (
    DAMAGED,
    EventRow,
    ExpansionRow,
    RunChange,
    RunRow,
    TaskRow,
    TriggerRow,
)
from aioflow.model.states import TaskState, TriggerState
from aioflow.protocol.inputs import (
    CoroutineProgress,
    DamageFound,
    Input,
    LiveRun,
    Restarted,
)

__all__ = (
    "RunRestore",
    "alert_damage",
    "quarantine_unrestored",
    "quarantine_until_restart",
    "report_quarantine",
    "restarted",
    "restore_run",
    "split_restart",
    "stop_dag_trigger",
)

_decode = msgspec.msgpack.Decoder(TaskRow).decode

_CLEARED = frozenset({TaskState.PENDING, TaskState.REMOVED})
"""States of rows whose task was reset or no longer exists."""


def restore_run(rows: LiveRun, memory: Memory) -> Run:
    """Build a run from all of its rows and add it to memory.

    Raises:
        KeyError: If its version is not loaded; the engine loads versions first.
    """
    restoring = RunRestore(rows, memory)
    restoring.take(rows)
    return restoring.finish()


class RunRestore:
    """A run being restored: first all tasks, then their triggers, then ``finish``.

    Args:
        rows: The run and its rows other than tasks and triggers.

    Raises:
        KeyError: As in ``restore_run``.
    """

    def __init__(self, rows: LiveRun, memory: Memory) -> None:
        run = Run(rows.run, memory.dag_versions[rows.run.version, rows.run.dag_id])
        known = memory.clearings.get(run.run_no)
        run.clearing = None if known is None else known[1]
        self.run = run
        self._memory = memory
        self._expansions: list[ExpansionRow] = rows.expansions
        self._progress = {one.task_no: one for one in rows.progress}
        self._events: defaultdict[int, list[EventRow]] = defaultdict(list)
        self._deferred: Pages[bytes] = Pages(Rows)
        for expansion in rows.expansions:
            run.groups[expansion.task_index] = MappedTask(run, expansion)
            run.states[expansion.task_index] = TaskState.RUNNING
        for task_no, count in rows.items:
            run.items[task_no] = StreamOutput(count)
        for task_no, width in rows.widths:
            run.widths[task_no - rows.run.first_task_no] = width
        for event in rows.events:
            self._events[event.trigger_no].append(event)

    def take(self, rows: LiveRun) -> None:
        """Add rows of tasks, of triggers, or of both."""
        retry_budget.count_retries(self.run, rows.tasks)
        for task in rows.tasks:
            if task.state in _CLEARED:
                self._take_cleared(task)
                continue
            self._count(task)
            if not task.state.is_live:
                self._note_end(task)
            elif task.state is TaskState.DEFERRED:
                self._deferred.put(task.task_no, packed(task))
            else:
                self._add(task)
        if rows.triggers:
            self._memory.add_run(self.run)
            for trigger in sorted(rows.triggers, key=lambda row: row.trigger_no):
                self._take_trigger(trigger)

    def finish(self) -> Run:
        """Finish restoring the run and add it to memory. No rows may be added afterwards.

        Raises:
            ValueError: If a deferred task has no trigger, or a trigger belongs to no waiting task.
        """
        run, memory = self.run, self._memory
        for task_no in self._deferred:
            raise ValueError(f"task {task_no} is deferred, and no trigger of it is there")
        self.look_back()
        memory.add_run(run)
        for progress in self._progress.values():
            _restore_progress(run, progress)
        memory.packing.pack_restored(run)
        return run

    def take_ended(self, rows: LiveRun) -> None:
        """Add task rows of an ended run. Triggers that hosts have not released yet are left alone.

        Raises:
            ValueError: If a task has not ended.
        """
        retry_budget.count_retries(self.run, rows.tasks)
        for task in rows.tasks:
            if task.state in _CLEARED:
                self._take_cleared(task)
            elif task.state.is_live:
                raise ValueError(f"task {task.task_no} of an ended run is {task.state.label}")
            else:
                self._count(task)
                self._note_end(task)

    def look_back(self) -> Run:
        """Compute tallies and mapped tasks from the task states. Return the run.

        An ended run needs no other step.
        """
        for expansion in self._expansions:
            stream_expand.restore(self.run, expansion)
        recount(self.run)
        return self.run

    def _take_cleared(self, row: TaskRow) -> None:
        """Add the row of a task that was reset, replaced or removed."""
        run, group = self.run, None
        if row.map_index >= 0:
            group = run.groups.get(row.task_index)
            if group is None or row.task_no - group.first_task_no != row.map_index:
                return  # the task was expanded again
        if row.state is TaskState.PENDING:
            run.cleared.put(row.task_no, row.start_no)
            return
        if group is not None and row.map_index < group.width:
            group.note(row.map_index, row.state)
        if group is None:
            run.removed[row.task_no] = row.start_no

    def _count(self, row: TaskRow) -> None:
        if row.map_index >= 0:
            self.run.groups[row.task_index].note(row.map_index, row.state)
        else:
            self.run.states[row.task_index] = row.state

    def _note_end(self, row: TaskRow) -> None:
        if row.map_index < 0 and row.task_index in self.run.widths:
            self.run.source_starts[row.task_index] = row.start_no

    def _add(self, row: TaskRow) -> None:
        task = TaskInstance(self.run, row.task_no, row.task_index, row.map_index)
        task.state = task.stored_state = row.state
        task.start_no = task.stored_start = row.start_no
        task.try_number = row.try_number
        task.interruptions = row.interruptions
        task.deadline_at = row.deadline_at
        task.queued_at = row.queued_at
        task.started_at = row.started_at
        task.due_at, task.ends_at = stored_times(task.spec, row, self._memory.shift)
        task.failure = row.failure
        self.run.active_tasks[row.task_no] = task
        self._memory.active_tasks[row.task_no] = task
        if task.spec.streams:
            self._memory.backpressured[row.task_no] = task  # confirmed items are not known

    def _take_trigger(self, row: TriggerRow) -> None:
        """Add a trigger.

        It is packed with its task if it is the first trigger of the task and both only wait.
        """
        memory = self._memory
        body = self._deferred.take(row.task_no)
        if body is not None:
            task = _decode(body)
            streams = self.run.spec.tasks[task.task_index].streams
            # A trigger that is already in memory is not packed, because a host may be running it.
            if _only_waits(row) and not streams and row.trigger_no not in memory.waits:
                progress = self._progress.get(row.task_no)
                memory.packing.add_from_rows(self.run, task, row, progress, memory.shift)
                return
            self._add(task)
        _restore_wait(self.run, row, self._events[row.trigger_no], memory)


def _only_waits(row: TriggerRow) -> bool:
    return row.state is TriggerState.WAITING and not row.window


def _restore_wait(run: Run, row: TriggerRow, events: list[EventRow], memory: Memory) -> None:
    task = run.active_tasks.get(row.task_no)
    known = memory.waits.get(row.trigger_no)
    wait = TriggerInstance(row, run, task)
    if known is not None:
        wait.assignment_id, wait.has_capacity, wait.version = (
            known.assignment_id,
            known.has_capacity,
            known.version,
        )
        wait.role = known.role
    memory.waits[row.trigger_no] = wait
    if row.window:
        wait.stream = event_stream.restore(row, events, known)
    if row.state is TriggerState.ENDING:
        return
    if task is None:
        raise ValueError(f"trigger {row.trigger_no} is of task {row.task_no}, which does not wait")
    if wait.is_handled:
        if task.state is TaskState.DEFERRED:
            task.waits = (*task.waits, wait)
        else:
            task.resumed = wait
    elif wait.stream is not None:
        task.streams = {**task.streams, row.ordinal: wait}
    elif row.ordinal < 0 and row.state is TriggerState.FIRED:
        task.resumed = wait
    else:
        task.waits = (*task.waits, wait)


def _restore_progress(run: Run, progress: CoroutineProgress) -> None:
    task = run.active_tasks.objects.get(progress.task_no)
    if task is None:  # the task has ended, or is packed together with its progress
        return
    task.recorded = progress.count
    task.first_failed = progress.first_failed
    task.open_kind = progress.open_kind
    handled = next((wait for wait in task.waits if wait.is_handled), None)
    if handled is not None and task.open_kind:  # its operator waits in a durable call
        task.waits, task.resumed = tuple(w for w in task.waits if w is not handled), handled
    opened = _stream_of(progress.open_name)
    if opened in task.streams:
        task.waits = (task.streams[opened],)


def _stream_of(name: str) -> int:
    """Return the ordinal after ``#`` in the name of a recorded call; -1 if there is none.

    If the recorded call belongs to a stream, the ordinal identifies the call that opened the
    stream.
    """
    _, mark, ordinal = name.rpartition("#")
    return int(ordinal) if mark else -1


def restarted(entry: Restarted, tx: Transaction) -> None:
    """Handle a restart: continue runs, DAGs and backfills according to their rows. Idempotent."""
    memory = tx.memory
    if entry.runs is None or not entry.runs:
        delete_stray_triggers(tx)
        deadlines.index_deadlines(memory)
        run_queue.count_runs(memory)  # a repeated restart has already counted them
        find_suspects(tx, has_crashed=entry.has_crashed)
    numbers = memory.runs if entry.runs is None else entry.runs
    for run in [memory.runs[number] for number in numbers if number in memory.runs]:
        resume_run(run, tx)
    if entry.runs is None or not entry.runs:
        resume_dags(tx)


def split_restart(entry: Input, memory: Memory) -> Iterable[Input]:
    """Split a restart into inputs that can be handled separately."""
    if not isinstance(entry, Restarted) or entry.runs is not None:
        return [entry]
    return [replace(entry, runs=()), *(Restarted((number,)) for number in memory.runs)]


def quarantine_unrestored(row: RunRow, reason: str, memory: Memory, *, is_damaged: bool) -> None:
    """Isolate a run that could not be restored from its rows, and remove it from memory.

    Args:
        is_damaged: Whether one of its rows is damaged. If so, none of its rows is written.
    """
    was_told = row.quarantine is not None
    _forget_run(row, memory)
    memory.isolated[row.run_no] = replace(row, quarantine=reason)
    if not was_told and not is_damaged:
        memory.untold.append(memory.isolated[row.run_no])


def report_quarantine(row: RunRow, tx: Transaction) -> None:
    """Store the quarantine reason of an isolated run, and alert."""
    change = (row.run_no, row.state, row.state, row.started_at, row.ended_at, row.quarantine)
    tx.batch.run_changes.append(RunChange(*change))
    tx.outbox.alert_of(row, "quarantined", row.quarantine or "")


def alert_damage(entry: DamageFound, tx: Transaction) -> None:
    """Alert about a damaged row. The alert contains its table, key, run and DAG."""
    damage = entry.damage
    memory, run_no = tx.memory, damage.run_no
    row = None if run_no is None else memory.isolated.get(run_no)
    if row is None and run_no is not None and run_no in memory.runs:
        row = memory.runs.peek(run_no).row
    run_id = "" if row is None else row.run_id
    dag_id = (damage.dag_id or "") if row is None else row.dag_id
    tx.outbox.alert(DAMAGED, str(damage), run_id=run_id, dag_id=dag_id)


def quarantine_until_restart(run: Run, reason: str, memory: Memory) -> None:
    """Remove a run from memory and isolate it until the next restart."""
    run.is_forgotten = True
    memory.drop_run(run)
    _forget_run(run.row, memory)
    memory.isolated[run.run_no] = replace(run.row, quarantine=reason)


def stop_dag_trigger(one: DagTrigger) -> None:
    """Stop a DAG's trigger until the next restart, as if it could not be decrypted."""
    one.row = replace(one.row, kwargs=None)
    one.unhost()


def _forget_run(row: RunRow, memory: Memory) -> None:
    for task in [
        task for task in memory.active_tasks.objects.values() if task.run.run_no == row.run_no
    ]:
        del memory.active_tasks[task.task_no]
    for number in [n for n, wait in memory.waits.objects.items() if wait.run.run_no == row.run_no]:
        del memory.waits[number]
    memory.packing.forget_packed(row.run_no)
    memory.backpressured = {
        no: task for no, task in memory.backpressured.items() if task.run.run_no != row.run_no
    }
    broken = memory.runs.pop(row.run_no, None)
    if broken is not None:
        memory.leave_line(broken)
