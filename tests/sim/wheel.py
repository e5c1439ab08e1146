"""Armed instants as ``aioflow.timers`` keeps them, and whether those that came were heeded.

What people schedule follows the wall; what is a length of time is armed once and follows
the monotonic clock. ``Watch`` knows the instants from the rows alone.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator

import msgspec

from aioflow.changes import TaskChange
from aioflow.inputs import Due
from aioflow.model import RunState, TaskState, TriggerState
from aioflow.owed import DEADLINE, Deadline
from aioflow.rows import Batch, OutboxRow, TaskRow, TriggerRow
from tests.sim.broken import Broken
from tests.sim.tables import Tables, changed_tasks

__all__ = ("Watch", "Wheel")


class Wheel:
    """Two heaps of instants."""

    def __init__(self) -> None:
        self._by_wall: list[tuple[int, int, Due]] = []
        self._by_length: list[tuple[int, int, Due]] = []
        self._order = itertools.count()

    def arm(self, due: Due, *, at: int, mono: int, wall: int) -> None:
        """Have an instant come, at once if it has passed."""
        if due.dag_id:
            heapq.heappush(self._by_wall, (at, next(self._order), due))
        else:
            heapq.heappush(self._by_length, (mono + at - wall, next(self._order), due))

    def next_at(self, *, mono: int, wall: int) -> int | None:
        """Return when the nearest comes, in monotonic time; ``None`` if there is none."""
        found = [heap[0][0] - now + mono for heap, now in self._heaps(mono, wall) if heap]
        return max(min(found), mono) if found else None

    def take(self, *, mono: int, wall: int) -> Iterator[Due]:
        """Yield those that have come."""
        for heap, now in self._heaps(mono, wall):
            while heap and heap[0][0] <= now:
                yield heapq.heappop(heap)[2]

    def _heaps(self, mono: int, wall: int) -> tuple[tuple[list[tuple[int, int, Due]], int], ...]:
        return (self._by_wall, wall), (self._by_length, mono)


class Watch:
    """The second liveness promise: every instant a row names is heeded when it has come."""

    def __init__(self, tables: Tables, *, mono: int, wall: int) -> None:
        self._tables = tables
        self._heap: list[tuple[int, str, int, int]] = []
        self._noted: set[tuple[str, int, int]] = set()
        for run_no in tables.unfinished():
            self._note(tables.tasks_of(run_no), mono - wall)
        self._note_waits(tables.triggers.values(), mono - wall)
        self._note_deadlines(tables.outbox.values(), mono - wall)
        for run_no in tables.live_run_nos():
            self._note_run(run_no, mono - wall)

    def note(self, batch: Batch, *, mono: int, wall: int) -> None:
        """Remember the instants of a batch that was just committed."""
        self._note(changed_tasks(batch), mono - wall)
        self._note_waits(batch.new_triggers, mono - wall)
        self._note_deadlines(batch.new_outbox, mono - wall)
        for change in batch.run_changes:
            self._note_run(change.run_no, mono - wall)
        for run in batch.new_runs:
            self._note_run(run.run_no, mono - wall)

    def _note(self, rows: Iterable[TaskRow | TaskChange], offset: int) -> None:
        for row in rows:
            if row.state in {TaskState.RETRYING, TaskState.SENSING} and row.due_at is not None:
                self._push(offset, "due", row.task_no, row.due_at)
            if row.state.is_live and row.deadline_at is not None:
                self._push(offset, "deadline", row.task_no, row.deadline_at)

    def _note_waits(self, rows: Iterable[TriggerRow], offset: int) -> None:
        for row in rows:
            is_handled = row.window and row.ordinal < 0  # its task has the instant, wait by wait
            if row.state is TriggerState.WAITING and row.deadline_at and not is_handled:
                self._push(offset, "wait", row.trigger_no, row.deadline_at)

    def _note_deadlines(self, rows: Iterable[OutboxRow], offset: int) -> None:
        for row in rows:
            if row.kind == DEADLINE:
                at = msgspec.msgpack.decode(row.body, type=Deadline).at
                self._push(offset, "word", row.outbox_no, at)

    def _is_unhindered(self, owed: OutboxRow) -> bool:
        """Whether nothing refused for good was about its run."""
        run_no = msgspec.msgpack.decode(owed.body, type=Deadline).run_no
        return not self._tables.is_held(run_no)

    def _note_run(self, run_no: int, offset: int) -> None:
        began = self._tables.runs[run_no].started_at
        length = self._tables.spec_of_run(run_no).run_timeout_us
        if began is not None and length is not None:
            self._push(offset, "time", run_no, began + length)

    def _push(self, offset: int, kind: str, number: int, at: int) -> None:
        """Once for each: a wall clock that is set afterwards does not move it."""
        if (kind, number, at) not in self._noted:
            self._noted.add((kind, number, at))
            heapq.heappush(self._heap, (at + offset, kind, number, at))

    def look(self, mono: int) -> None:
        """Check what has come; to be asked when nothing is left in the inbox.

        Raises:
            Broken: If a row still waits for an instant that has passed.
        """
        while self._heap and self._heap[0][0] < mono:
            _, kind, number, at = heapq.heappop(self._heap)
            if self._still_waits(kind, number, at):
                raise Broken("L2 timers", f"the {kind} of {number} at {at} came, and nothing of it")

    def _still_waits(self, kind: str, number: int, at: int) -> bool:
        tables = self._tables
        if kind == "word":
            owed = tables.outbox.get(number)
            return owed is not None and self._is_unhindered(owed)
        if kind == "time":
            run = tables.runs.get(number)
            length = tables.spec_of_run(number).run_timeout_us or 0
            if run is None or (run.started_at or 0) + length != at:
                return False  # it is gone, or was cleared since
            return run.state is RunState.RUNNING and run.quarantine is None
        if kind == "wait":
            wait = tables.triggers.get(number)
            return (
                wait is not None
                and wait.state is TriggerState.WAITING
                and tables.runs[wait.run_no].quarantine is None
            )
        row = tables.tasks.get(number)
        if row is None or tables.runs[row.run_no].quarantine is not None:
            return False
        if kind == "due":
            return row.state in {TaskState.RETRYING, TaskState.SENSING} and row.due_at == at
        if row.state is TaskState.DEFERRED and tables.has_batch(number):
            return False  # what it waited for has come
        return row.state.is_live and row.deadline_at == at
