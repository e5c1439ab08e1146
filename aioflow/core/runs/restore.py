"""Restoring of runs from their rows, one page at a time.

Tasks that only wait are packed as their rows are read and never become objects. So a restart with
a hundred thousand of them needs little more memory than they take. Nothing is decided here.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from aioflow.core.state.execution_timeout import stored_instants
from aioflow.core.state.memory import Memory
from aioflow.core.state.pages import Pages, Rows, packed
from aioflow.core.state.streams import StreamOutput
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance, TriggerInstance
from aioflow.core.tasks import retry_budget, stream_expand
from aioflow.core.tasks.recount import recount
from aioflow.core.triggers import event_stream
from aioflow.model.rows import EventRow, ExpansionRow, TaskRow, TriggerRow
from aioflow.model.states import TaskState, TriggerState
from aioflow.protocol.recovery import LiveRun, Progress

__all__ = ("Restoring", "restore")

_decode = msgspec.msgpack.Decoder(TaskRow).decode

_CLEARED = frozenset({TaskState.PENDING, TaskState.REMOVED})
"""States of rows whose task was reset, or no longer exists."""


def restore(rows: LiveRun, memory: Memory) -> Run:
    """Build a run from all of its rows and add it to memory.

    Raises:
        KeyError: If its version is not loaded; the engine loads versions first.
    """
    restoring = Restoring(rows, memory)
    restoring.take(rows)
    return restoring.finish()


class Restoring:
    """A run being restored: first all tasks, then their triggers, then ``finish``.

    Args:
        rows: The run and its rows other than tasks and triggers.

    Raises:
        KeyError: As ``restore``.
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
            run.groups[expansion.position] = MappedTask(run, expansion)
            run.states[expansion.position] = TaskState.RUNNING
        for task_no, count in rows.items:
            run.items[task_no] = StreamOutput(count)
        for task_no, width in rows.widths:
            run.widths[task_no - rows.run.first_task_no] = width
        for event in rows.events:
            self._events[event.trigger_no].append(event)

    def take(self, rows: LiveRun) -> None:
        """Add rows of tasks, of triggers, or of both."""
        retry_budget.recount(self.run, rows.tasks)
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
        """Complete the run and add it to memory. No more rows may follow.

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
        memory.packing.loose.update(run.active_tasks.objects)
        memory.packing.runs.loose[run.run_no] = run
        memory.packing.fold(with_runs=False)  # the run has yet to continue
        return run

    def take_ended(self, rows: LiveRun) -> None:
        """Add task rows of an ended run. Triggers that hosts have yet to release are not affected.

        Raises:
            ValueError: If a task has not ended.
        """
        retry_budget.recount(self.run, rows.tasks)
        for task in rows.tasks:
            if task.state in _CLEARED:
                self._take_cleared(task)
            elif task.state.is_live:
                raise ValueError(f"task {task.task_no} of an ended run is {task.state.label}")
            else:
                self._count(task)
                self._note_end(task)

    def look_back(self) -> Run:
        """Compute tallies and mapped tasks from the task states, and return the run.

        An ended run needs nothing else.
        """
        for expansion in self._expansions:
            stream_expand.restore(self.run, expansion)
        recount(self.run)
        return self.run

    def _take_cleared(self, row: TaskRow) -> None:
        """Add a task row that was reset, or whose task was replaced or removed."""
        run, group = self.run, None
        if row.map_index >= 0:
            group = run.groups.get(row.position)
            if group is None or row.task_no - group.first_task_no != row.map_index:
                return  # it was expanded again
        if row.state is TaskState.PENDING:
            run.cleared.put(row.task_no, row.start_no)
            return
        if group is not None and row.map_index < group.width:
            group.note(row.map_index, row.state)
        if group is None or group.is_loop:
            run.removed[row.task_no] = row.start_no

    def _count(self, row: TaskRow) -> None:
        if row.map_index >= 0:
            self.run.groups[row.position].note(row.map_index, row.state)
        else:
            self.run.states[row.position] = row.state

    def _note_end(self, row: TaskRow) -> None:
        if row.map_index < 0 and row.position in self.run.widths:
            self.run.source_starts[row.position] = row.start_no

    def _add(self, row: TaskRow) -> None:
        task = TaskInstance(self.run, row.task_no, row.position, row.map_index)
        task.state = task.stored_state = row.state
        task.start_no = task.stored_start = row.start_no
        task.try_number = row.try_number
        task.interruptions = row.interruptions
        task.deadline_at = row.deadline_at
        task.queued_at = row.queued_at
        task.started_at = row.started_at
        task.due_at, task.ends_at = stored_instants(task.spec, row, self._memory.shift)
        task.failure = row.failure
        self.run.active_tasks[row.task_no] = task
        self._memory.active_tasks[row.task_no] = task
        if task.spec.streams:
            self._memory.backpressured[row.task_no] = task  # confirmed items are not known

    def _take_trigger(self, row: TriggerRow) -> None:
        """Add a trigger, packed with its task if it is the task's first and both only wait."""
        memory = self._memory
        body = self._deferred.take(row.task_no)
        if body is not None:
            task = _decode(body)
            streams = self.run.spec.tasks[task.position].streams
            # A trigger already in memory is not packed, because a host may have it.
            if _only_waits(row) and not streams and row.trigger_no not in memory.waits:
                progress = self._progress.get(row.task_no)
                memory.packing.lay(self.run, task, row, progress, memory.shift)
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
        wait.hosting, wait.has_room, wait.version = known.hosting, known.has_room, known.version
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


def _restore_progress(run: Run, progress: Progress) -> None:
    task = run.active_tasks.objects.get(progress.task_no)
    if task is None:  # it has ended, or is packed with its progress
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
    """Return the ordinal of the call that opened the stream of a recorded call; -1 for none."""
    _, mark, ordinal = name.rpartition("#")
    return int(ordinal) if mark else -1
