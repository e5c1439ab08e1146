"""Alerts for late schedules and deadlines, and the timeouts of runs and of ``max_wait``.

All fire times of a schedule that are late together cause a single alert. They are late if the
daemon was down, the database was unavailable, too many runs of the DAG are queued, or a run is
refused repeatedly. There is no further alert until the schedule is on time again. Fire times do not
count as late if they passed while the DAG was paused or its file was missing, or before the DAG was
known.

A deadline does not end anything; it causes an alert. The commit that creates the run adds an outbox
row for the deadline. The commit in which the deadline is reached replaces this row with the alert,
so that no alert is lost or repeated. The rows of a run are deleted when the run ends. A run timeout
needs no row, because it can be computed from the start of the run and its DAG version.

The ``max_wait`` of tasks has such rows as well, one for each duration. The time is measured from
the start of the run. When a clear of the run is complete, the row is replaced and the measurement
starts again. The row is deleted in the same commit that fails the last of these tasks, so an
interrupted series of failures continues after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from aioflow.core import callbacks
from aioflow.core.dag_registry import put_dag
from aioflow.core.runs.progress import EVALUATED_CHILDREN, end
from aioflow.core.scheduling import timetable
from aioflow.core.state.memory import Memory, RunEnd
from aioflow.core.state.task_instance import Run, TaskInstance
from aioflow.core.tasks.readiness import fresh
from aioflow.core.tasks.tries import awaits_code, stop_of
from aioflow.core.transaction import Transaction
from aioflow.model.dag import DagSpec
from aioflow.model.ids import RunNo
from aioflow.model.rows import DagRow
from aioflow.model.states import Failure, RunState, TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.outbox import DEADLINE, Deadline

__all__ = (
    "SCHEDULE_LATE",
    "alert_if_blocked",
    "alert_if_late",
    "alert_if_refused",
    "arm_deadlines",
    "arm_timeout",
    "arm_waits",
    "delete_deadlines",
    "end_deadlines",
    "index_deadlines",
    "is_past_timeout",
    "is_timed_out",
    "schedule_deadlines",
    "start_timers",
)

SCHEDULE_LATE: Final = "schedule_late"

_COUNTED_LATE = 10
"""Maximum number of late fire times that are counted."""

_WHAT_RUNS = {
    "all": "all of them get runs",
    "latest": "the latest one gets a run",
    "skip": "they are skipped",
}


def alert_if_late(row: DagRow, spec: DagSpec, starts: Timestamp, tx: Transaction) -> DagRow:
    """Alert if the next run of a DAG is created late. Return the DAG's row, which records that.

    Args:
        starts: When the run should have started.
    """
    if not _is_late(starts, tx):
        return row
    if not _is_known(row):
        _alert_late(row, spec, _WHAT_RUNS[spec.missed], tx)
    return msgspec.structs.replace(row, late_alert_for=tx.now)


def alert_if_blocked(row: DagRow, spec: DagSpec, starts: Timestamp, tx: Transaction) -> None:
    """Alert if the next run is late because it is blocked.

    If it is not late yet, set a timer for the time at which it will be.
    """
    after = tx.memory.late_after_us
    if _is_known(row) or after is None or row.next_run_at is None:
        return
    if not _is_late(starts, tx):
        tx.wake_dag(row.dag_id, row.next_run_at, starts + after + 1)
        return
    _alert_late(row, spec, "too many of its runs are waiting already", tx)
    put_dag(msgspec.structs.replace(row, late_alert_for=tx.now), tx)


def alert_if_refused(dag_id: str, reason: str, tx: Transaction) -> None:
    """Alert if the next run is late because it was refused. Its creation will be tried again."""
    row = tx.memory.dags.get(dag_id)
    if row is None or row.next_run_at is None or _is_known(row):
        return
    if _is_late(row.next_run_at, tx):
        _alert_missing_runs(
            row, row.next_run_at, "a fire time", f"it cannot be created: {reason[:1_000]}", tx
        )
        put_dag(msgspec.structs.replace(row, late_alert_for=tx.now), tx)


def _is_late(starts: Timestamp, tx: Transaction) -> bool:
    after = tx.memory.late_after_us
    return after is not None and tx.now - starts > after


def _is_known(row: DagRow) -> bool:
    fire_time = row.next_run_at
    return (
        fire_time is not None and row.late_alert_for is not None and fire_time <= row.late_alert_for
    )


def _alert_late(row: DagRow, spec: DagSpec, what_follows: str, tx: Transaction) -> None:
    assert spec.schedule is not None  # noqa: S101 - without a schedule there are no fire times
    assert row.next_run_at is not None  # noqa: S101
    until = tx.now if spec.end_date is None else min(tx.now, spec.end_date)
    count = len(
        timetable.fire_times_between(
            spec.schedule,
            spec.timezone,
            after=row.next_run_at - 1,
            until=until,
            limit=_COUNTED_LATE,
        )
    )
    number = f"{count} or more fire times" if count == _COUNTED_LATE else f"{count} fire times"
    what = "a fire time" if count < 2 else number
    _alert_missing_runs(row, row.next_run_at, what, what_follows, tx)


def _alert_missing_runs(
    row: DagRow, fire_time: Timestamp, what: str, what_follows: str, tx: Transaction
) -> None:
    since = datetime.fromtimestamp(fire_time / 1e6, UTC).isoformat(timespec="seconds")
    after_seconds = (tx.memory.late_after_us or 0) / 1e6
    tx.memory.schedules_late += 1
    missing = f"{what} of its schedule since {since} had no run {after_seconds:g} s later"
    tx.outbox.alert(SCHEDULE_LATE, f"{missing}: {what_follows}", run_id="", dag_id=row.dag_id)


_decode = msgspec.msgpack.Decoder(Deadline).decode
_encode = msgspec.msgpack.Encoder().encode

_FEW = 1_000


def schedule_deadlines(run: Run, tx: Transaction) -> None:
    """Schedule the deadline alerts of a new run: one outbox row per distinct deadline."""
    lengths = {task.deadline_us for task in run.spec.tasks} | {run.spec.deadline_us}
    for length in sorted(length for length in lengths if length is not None):
        _schedule(Deadline(run.run_no, tx.steady + length, length), tx)


def _schedule(deadline: Deadline, tx: Transaction) -> None:
    number = tx.outbox.add(DEADLINE, _encode(deadline))
    tx.memory.deadlines.setdefault(deadline.run_no, {})[number] = deadline
    tx.wake_run(deadline.run_no, deadline.at)


def index_deadlines(memory: Memory) -> None:
    """Rebuild the pending deadlines from the outbox."""
    memory.deadlines.clear()
    for number, (kind, body) in memory.outbox.items():
        if kind == DEADLINE:
            deadline = _decode(body)
            memory.deadlines.setdefault(deadline.run_no, {})[number] = deadline


def arm_deadlines(tx: Transaction) -> None:
    """Arm timers for all pending deadlines after a restart. Past deadlines fire immediately."""
    for run_no, deadlines in tx.memory.deadlines.items():
        for deadline in deadlines.values():
            tx.wake_run(run_no, deadline.at)


def start_timers(run: Run, tx: Transaction) -> None:
    """Start the timers of a run that starts, or that resumes after a clear."""
    arm_timeout(run, tx)
    known = tx.memory.deadlines.get(run.run_no, {})
    for number in [number for number, deadline in known.items() if deadline.ends_wait]:
        del known[number]
        tx.outbox.delete(number)
    _start_waits(run, (), tx)


def arm_timeout(run: Run, tx: Transaction) -> None:
    """Arm the timeout of a run that was started, restored or cleared.

    If it was already armed for the same start, the known start in steady time does not change.
    """
    length, began = run.spec.run_timeout_us, run.row.started_at
    if length is None:
        tx.memory.run_ends.pop(run.run_no, None)  # an earlier version of the DAG had a timeout
    elif began is not None:
        ends = tx.memory.run_ends
        known = ends.get(run.run_no)
        if known is not None and known.began == began:
            started = known.started
        else:  # the row has wall time, and the wall clock may have stepped before a restart
            started = min(began - tx.at.shift, tx.steady)
        at = started + length
        ends[run.run_no] = RunEnd(began, started, at)
        if len(ends) > 2 * len(tx.memory.runs) + _FEW:
            for run_no in [number for number in ends if number not in tx.memory.runs]:
                del ends[run_no]
        tx.wake_run(run.run_no, at)


def is_timed_out(run: Run, at: Timestamp, memory: Memory) -> bool:
    """Return whether the timer that fired is the timeout of this running run."""
    is_running = run.state is RunState.RUNNING and run.row.quarantine is None
    end = memory.run_ends.get(run.run_no)
    return is_running and end is not None and end.at == at


def is_past_timeout(run: Run, steady: Timestamp, memory: Memory) -> bool:
    """Return whether the timeout of a run has passed."""
    end = memory.run_ends.get(run.run_no)
    return end is not None and end.at <= steady


def end_deadlines(run_no: RunNo, at: Timestamp, tx: Transaction) -> None:
    """Handle the deadlines that a run has reached: alert, or fail unstarted tasks. Idempotent.

    The ``max_wait`` rows of a quarantined run are retained, because the run may continue after a
    restart.
    """
    memory = tx.memory
    deadlines = memory.deadlines.get(run_no, {})
    run = memory.runs.get(run_no)
    is_quarantined = run_no in memory.isolated if run is None else run.row.quarantine is not None
    for number, due in [(number, due) for number, due in deadlines.items() if due.at == at]:
        if due.ends_wait and (is_quarantined or not _has_ended_waits(run, due, tx)):
            continue
        del deadlines[number]
        tx.outbox.delete(number)
        if run is not None and run.state.is_live and not due.ends_wait:
            # Rows of an earlier version of aioflow do not contain the duration.
            _alert_unfinished(run, due.length_us or at - run.row.created_at, tx)


def _has_ended_waits(run: Run | None, due: Deadline, tx: Transaction) -> bool:
    """Fail the tasks whose ``max_wait`` has passed. Return whether its row can be deleted.

    During a clear nothing fails, because the time starts again when the clear is complete. During a
    mark nothing fails either, but the time continues, and ``arm_waits`` arms the timer after the
    mark. If there are many children, the rest fail in the next turns, unless they start before
    that.
    """
    if run is None or run.state is not RunState.RUNNING:
        return True
    if run.clearing is not None:
        return run.clearing.mark is None
    message = f"it had not begun {due.length_us / 1e6:g} s after its run started"
    failure = Failure(type="MaxWaitExceeded", message=message, reason="max_wait")
    for task_index, task in enumerate(run.spec.tasks):
        if task.max_wait_us == due.length_us and not _fail_unstarted(run, task_index, failure, tx):
            tx.wake_run(run.run_no, due.at)
            return False
    return True


def arm_waits(run: Run, tx: Transaction) -> None:
    """Arm the timers of the ``max_wait`` rows of a run again, after a mark.

    A ``max_wait`` that has passed has no row any more, so its time starts again. Otherwise tasks
    that are pending again because of the mark could wait indefinitely.
    """
    waits = [due for due in tx.memory.deadlines.get(run.run_no, {}).values() if due.ends_wait]
    for due in waits:
        tx.wake_run(run.run_no, due.at)
    _start_waits(run, {due.length_us for due in waits}, tx)


def _start_waits(run: Run, counted: Container[int], tx: Transaction) -> None:
    """Start measuring each ``max_wait`` of a run, except the durations in ``counted``."""
    lengths = {task.max_wait_us for task in run.spec.tasks}
    for length in sorted(length for length in lengths if length is not None):
        if length not in counted:
            _schedule(Deadline(run.run_no, tx.steady + length, length, ends_wait=True), tx)


def _fail_unstarted(run: Run, task_index: int, failure: Failure, tx: Transaction) -> bool:
    """Fail a task or its children that have not started. Return ``False`` if the turn is full."""
    was = run.states[task_index]

    def is_full() -> bool:
        return tx.is_full or tx.evaluated >= EVALUATED_CHILDREN

    for map_index in _unstarted(run, task_index, is_full):
        if run.state is not RunState.RUNNING:
            return True  # the run has ended with the previous task
        if is_full():
            run.states[task_index] = was
            return False
        if was == TaskState.PENDING and task_index in run.groups:  # cleared: its rule is pending
            run.states[task_index] = TaskState.RUNNING
        tx.evaluated += 1
        task = run.active_tasks.get(run.task_no(task_index, map_index))
        if task is None:
            task = fresh(run, task_index, map_index)
            task.try_number = 0
        elif task.worker >= 0 or task.is_hosted:  # claimed: its worker still runs another try
            tx.effects.append(stop_of(task, task.start_no, "timeout"))
        task.failure = failure
        end(task, TaskState.FAILED, tx)
    if was == TaskState.PENDING and run.states[task_index] == TaskState.RUNNING:
        run.states[task_index] = was  # other children still wait for the rule
    return True


def _unstarted(run: Run, task_index: int, is_full: Callable[[], bool]) -> Iterator[int]:
    """Yield the map index of each instance that has not started.

    Instances that end during the iteration are skipped.
    """
    group = run.groups.get(task_index)
    if group is None:
        task = run.active_tasks.get(run.task_no(task_index, -1))
        is_queued = task is not None and not _has_begun(task)
        if is_queued or run.states[task_index] == TaskState.PENDING:
            yield -1
        return
    if group.is_loop and group.width > 1:
        return  # the loop has begun with its first iteration
    for state in (TaskState.QUEUED, TaskState.RETRYING):
        index = -1
        while (index := group.states.find(state, index + 1)) >= 0:
            task = run.active_tasks.get(group.first_task_no + index)
            if task is not None and not _has_begun(task):
                yield index
    while group.one_to_one is not None and group.has_fresh and not is_full():
        yield group.take_fresh()  # its rule allowed it to start
    index = -1
    while (index := group.pending_from(index + 1)) < group.width:
        yield index


def _has_begun(task: TaskInstance) -> bool:
    """Return whether a task has started its first try, even if it is deferred in that try now.

    A try whose code is missing has not started, because no process could load the code.
    """
    is_unstarted = task.state is TaskState.QUEUED and task.started_at is None
    is_first = task.try_number == 1 and not task.interruptions
    has_continued = task.resumed is not None or task.recorded > 0
    return has_continued or not is_first or not (is_unstarted or awaits_code(task))


def _alert_unfinished(run: Run, length: int, tx: Transaction) -> None:
    if run.spec.deadline_us == length:
        message = f"the run has not ended {length / 1e6:g} s after it was made"
        tx.outbox.alert_of(run.row, "deadline", message)
        _call_back(run, -1, tx)
    for task_index, task in enumerate(run.spec.tasks):
        if task.deadline_us == length and run.states[task_index] < TaskState.SUCCESS:
            message = f"the task has not ended {length / 1e6:g} s after its run was made"
            tx.outbox.alert_of(run.row, "deadline", message, task.task_id)
            _call_back(run, task_index, tx)


def _call_back(run: Run, task_index: int, tx: Transaction) -> None:
    tx.outbox.call_back(run.row.dag_id, callbacks.deadline_callback(run, task_index, tx.now))


def delete_deadlines(run_no: RunNo, tx: Transaction) -> None:
    """Delete the pending deadlines of a run that has ended."""
    for number in tx.memory.deadlines.pop(run_no, {}):
        tx.outbox.delete(number)
