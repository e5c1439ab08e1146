"""Armed timers, as in ``aioflow.engine.timers``, and a check that each timer was handled.

Schedules follow the wall clock. A duration is armed once and follows the monotonic clock. ``Watch``
derives the timers from the rows alone.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from aioflow.clock import SteadyClock
from aioflow.model.batch import Batch
from aioflow.model.rows import OutboxRow, TaskChange, TaskRow, TriggerRow
from aioflow.model.states import RunState, TaskState, TriggerState
from aioflow.protocol.inputs import TimerFired
from aioflow.protocol.outbox import DEADLINE, Deadline
from tests.sim.broken import Broken
from tests.sim.tables import Tables, changed_tasks

__all__ = ("Watch", "Wheel", "resumed")


class _Clock:
    """The clocks of a node. Its wall clock may step."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def now(self) -> int:
        wall: int = self._node.wall()
        return wall

    def monotonic_us(self) -> int:
        mono: int = self._node.mono
        return mono

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing sleeps here")


def resumed(node: Any) -> SteadyClock:
    """Return the steady clock of a node that starts."""
    steady = SteadyClock(_Clock(node))
    if node.seen_at is not None:
        wall, was = node.seen_at
        steady.resume(wall=wall, steady=was)
    return steady


class Wheel:
    """Two heaps of timers."""

    def __init__(self) -> None:
        self._by_wall: list[tuple[int, int, TimerFired]] = []
        self._by_length: list[tuple[int, int, TimerFired]] = []
        self._order = itertools.count()

    def arm(self, due: TimerFired, *, at: int, steady: SteadyClock) -> None:
        """Arm a timer. It fires at once if its time has passed."""
        if due.dag_id:
            heapq.heappush(self._by_wall, (at, next(self._order), due))
        else:
            heapq.heappush(self._by_length, (steady.monotonic_at(at), next(self._order), due))

    def next_at(self, *, mono: int, wall: int) -> int | None:
        """Return the monotonic time at which the next timer fires, or ``None`` if there is none."""
        found = [heap[0][0] - now + mono for heap, now in self._heaps(mono, wall) if heap]
        return max(min(found), mono) if found else None

    def take(self, *, mono: int, wall: int) -> Iterator[TimerFired]:
        """Yield the timers that are due."""
        for heap, now in self._heaps(mono, wall):
            while heap and heap[0][0] <= now:
                yield heapq.heappop(heap)[2]

    def _heaps(
        self, mono: int, wall: int
    ) -> tuple[tuple[list[tuple[int, int, TimerFired]], int], ...]:
        return (self._by_wall, wall), (self._by_length, mono)


class Watch:
    """The second liveness invariant: every time stored in a row is handled once it is reached."""

    def __init__(self, tables: Tables, steady: SteadyClock) -> None:
        self._tables = tables
        self._steady = steady
        self._heap: list[tuple[int, str, int, int]] = []
        self._noted: set[tuple[str, int, int]] = set()
        for run_no in tables.unfinished():
            self._note(tables.tasks_of(run_no))
        self._note_waits(tables.triggers.values())
        self._note_deadlines(tables.outbox.values())
        for run_no in tables.live_run_nos():
            self._note_run(run_no)

    def note(self, batch: Batch) -> None:
        """Record the times in a batch that was just committed."""
        self._note(changed_tasks(batch))
        self._note_waits(batch.new_triggers)
        self._note_deadlines(batch.new_outbox)
        for change in batch.run_changes:
            self._note_run(change.run_no)
        for run in batch.new_runs:
            self._note_run(run.run_no)

    def _note(self, rows: Iterable[TaskRow | TaskChange]) -> None:
        for row in rows:
            if row.state in {TaskState.RETRYING, TaskState.SENSING} and row.due_at is not None:
                self._push("due", row.task_no, row.due_at)
            if row.state.is_live and row.deadline_at is not None:
                self._push("deadline", row.task_no, row.deadline_at)

    def _note_waits(self, rows: Iterable[TriggerRow]) -> None:
        for row in rows:
            is_handled = row.window and row.ordinal < 0  # its task has a deadline for each wait
            if row.state is TriggerState.WAITING and row.deadline_at and not is_handled:
                self._push("wait", row.trigger_no, row.deadline_at)

    def _note_deadlines(self, rows: Iterable[OutboxRow]) -> None:
        for row in rows:
            if row.kind == DEADLINE:
                at = msgspec.msgpack.decode(row.body, type=Deadline).at
                self._push("word", row.outbox_no, at)

    def _is_unhindered(self, owed: OutboxRow) -> bool:
        """Return whether the run of the row is not quarantined."""
        run_no = msgspec.msgpack.decode(owed.body, type=Deadline).run_no
        return not self._tables.is_held(run_no)

    def _note_run(self, run_no: int) -> None:
        began = self._tables.runs[run_no].started_at
        length = self._tables.spec_of_run(run_no).run_timeout_us
        if began is not None and length is not None:
            at = self._steady.read()
            over = min(began - at.shift, at.steady) + length  # it began at most now
            self._push("time", run_no, began + length, over)

    def _push(self, kind: str, number: int, at: int, over: int | None = None) -> None:
        """Record each time once, so that a later step of the wall clock does not change it.

        Args:
            over: The steady time at which it is reached, if that is not ``at``.
        """
        if (kind, number, at) not in self._noted:
            self._noted.add((kind, number, at))
            comes = self._steady.monotonic_at(at if over is None else over)
            heapq.heappush(self._heap, (comes, kind, number, at))

    def look(self, mono: int) -> None:
        """Check the times that have been reached. Must be called with an empty inbox.

        Raises:
            Broken: If a row still waits for a time that has passed.
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
                return False  # it was deleted, or cleared since
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
            return False  # the event it waited for has come
        return row.state.is_live and row.deadline_at == at
