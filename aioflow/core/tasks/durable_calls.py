"""Durable calls of a coroutine: record, suspend and answer them, and drop them if a try fails.

The calls of a task are numbered from 0. Only the last call can be open, which means that it has no
answer yet. While it is open, the task is deferred and its coroutine is suspended in the async host.
If the host has lost the coroutine, the coroutine runs again from the start, and the records answer
the calls that it has already made.

A call may start a run of another DAG and wait for it. The run, the record of the call and the wait
for the run's end are stored in one commit. Such a wait is not assigned to a host. The commit that
ends the run also answers the call.
"""

from __future__ import annotations

import msgspec

from aioflow.core.runs import create
from aioflow.core.state.task_instance import Run, TaskInstance, TriggerInstance, try_ends_at
from aioflow.core.tasks.tries import forget_suspension, requeue
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import event_stream, named_events
from aioflow.core.triggers.assignment import RUN, SLEEP
from aioflow.errors import DagBroken, DagRunFailed, RequestError, UnknownDag
from aioflow.model.ids import TriggerNo
from aioflow.model.rows import RecordRow, TriggerRow
from aioflow.model.states import Failure, RecordState, RunState, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import CallRecorded
from aioflow.protocol.effects import ConfirmCall
from aioflow.protocol.reports import (
    Awaiting,
    CallAnswered,
    EventEmitted,
    NextEventRequested,
    NotSuspended,
    RunCalled,
    StreamOpened,
    TriggerFired,
)
from aioflow.protocol.requests import CreateRun

__all__ = (
    "NEXT",
    "answer_call",
    "answer_next",
    "answered",
    "await_triggers",
    "confirm",
    "deadline",
    "emit",
    "fire",
    "is_after",
    "next_event",
    "not_suspended",
    "open_stream",
    "record",
    "resume_caller",
    "start_run",
    "suspend",
    "time_out",
    "wait_for",
)

NEXT = "next"
"""Kind of a call that takes an event of a stream."""

_encode = msgspec.msgpack.Encoder().encode


def answered(task: TaskInstance, report: CallAnswered, tx: Transaction) -> None:
    """Record a call that is answered immediately, and confirm it to the coroutine."""
    if report.ordinal == task.recorded and task.state is TaskState.RUNNING:
        state = RecordState.ANSWERED if report.failure is None else RecordState.FAILED
        record(task, report, state, tx, answer=report.answer, failure=report.failure)
    if report.ordinal < task.recorded:  # also for a repeated report
        confirm(task, report.ordinal, tx)


def emit(task: TaskInstance, report: EventEmitted, tx: Transaction) -> None:
    """Store a named event and the call's record in one commit, so it is emitted exactly once."""
    if report.ordinal == task.recorded and task.state is TaskState.RUNNING:
        record(task, report, RecordState.ANSWERED, tx)
        event = (report.event, report.key, report.data)
        named_events.store(*event, tx, run_no=task.run.run_no)
    if report.ordinal < task.recorded:
        confirm(task, report.ordinal, tx)


def await_triggers(task: TaskInstance, report: Awaiting, tx: Transaction) -> list[TriggerInstance]:
    """Suspend a waiting coroutine and release its slot. Return the triggers to assign."""
    if report.ordinal != task.recorded:
        raise ValueError(f"call {report.ordinal} of task {task.task_no} after {task.recorded}")
    suspend(task, report, tx)
    until = deadline(task, report.timeout_us, tx.steady)
    triggers = report.triggers or ((SLEEP, b"\x80"),)
    task.waits = tuple(
        wait_for(task, branch, trigger, until, tx) for branch, trigger in enumerate(triggers)
    )
    tx.wake_task(task, until)
    return list(task.waits)


def open_stream(
    task: TaskInstance, report: StreamOpened, tx: Transaction
) -> TriggerInstance | None:
    """Create the trigger of a stream and record the call. Return the trigger to assign."""
    wait = None
    if report.ordinal == task.recorded and task.state is TaskState.RUNNING:
        record(task, report, RecordState.ANSWERED, tx)
        trigger = (report.class_path, report.kwargs)
        wait = wait_for(task, 0, trigger, None, tx, window=report.window)
        task.streams = {**task.streams, report.ordinal: wait}
    if report.ordinal < task.recorded:
        confirm(task, report.ordinal, tx)
    return wait


def next_event(task: TaskInstance, report: NextEventRequested, tx: Transaction) -> Failure | None:
    """Answer with the next event, or suspend. If the stream has failed, return its failure."""
    if report.ordinal != task.recorded or task.state is not TaskState.RUNNING:
        return None  # repeated report
    wait = task.streams.get(report.stream)
    payload = None if wait is None else event_stream.consume(wait, tx)
    if payload is None and wait is not None and not event_stream.is_over(wait):
        suspend(task, report, tx)
        task.waits = (wait,)
        task.deadline_at = deadline(task, report.timeout_us, tx.steady)
        tx.wake_task(task, task.deadline_at)
        return None
    if payload is None and wait is not None and wait.row.failure is not None:
        return wait.row.failure
    record(task, report, RecordState.ANSWERED, tx, answer=payload)
    confirm(task, report.ordinal, tx, payload)
    return None


def is_after(task: TaskInstance, wait: TriggerInstance) -> bool:
    """Return whether the coroutine is suspended until this stream has its next event."""
    return task.open_kind == NEXT and task.wait is wait


def answer_next(task: TaskInstance, wait: TriggerInstance, tx: Transaction) -> bool:
    """Answer a suspended coroutine with the next event, or with the end of the stream.

    Return ``False`` if there is no new event and the stream has not ended.
    """
    payload = event_stream.consume(wait, tx)
    if payload is None and not event_stream.is_over(wait):
        return False  # only events with known keys have arrived
    answer_call(task, payload, None, tx)
    task.waits, task.deadline_at = (), None
    return True


def fire(wait: TriggerInstance, report: TriggerFired, tx: Transaction) -> bool:
    """Record that a trigger of a call fired. Return whether this answers the call."""
    task = wait.task
    assert task is not None  # noqa: S101 - checked by the caller
    if task.open_kind == "all_of":
        tx.move_wait(wait, TriggerState.FIRED, event=report.payload, key=report.key)
        if any(other.state is TriggerState.WAITING for other in task.waits):
            return False
        events = [_raw(other.row.event) for other in task.waits]
        answer_call(task, _encode(events), None, tx)
    elif task.open_kind == "any_of":
        answer_call(task, _encode([wait.row.branch, _raw(report.payload)]), None, tx)
    else:
        answer_call(task, report.payload, None, tx)
    return True


def time_out(task: TaskInstance, tx: Transaction) -> None:
    """Answer a call whose deadline has passed: a sleep returns, any other call raises."""
    failure = None
    if task.open_kind != SLEEP:
        assert task.wait is not None  # noqa: S101 - checked by the caller
        message = f"{task.wait.row.class_path} gave no event in time"
        failure = Failure(type="TimeoutError", message=message, reason="timeout")
    answer_call(task, None, failure, tx)
    task.deadline_at = None
    requeue(task, tx)


def not_suspended(task: TaskInstance, report: NotSuspended, tx: Transaction) -> None:
    """Run a coroutine again from the start, because its host has lost it. No try is charged."""
    if task.start_no == report.start_no and task.state is TaskState.RUNNING:
        forget_suspension(task)
        tx.slots.release(task)
        tx.slots.unblock(task)
        requeue(task, tx)


def suspend(
    task: TaskInstance,
    report: Awaiting | NextEventRequested | RunCalled,
    tx: Transaction,
) -> None:
    """Record an open call, suspend its coroutine and release the slot."""
    record(task, report, RecordState.OPEN, tx)
    task.open_kind = report.kind
    task.suspended_start = task.start_no
    tx.move(task, TaskState.DEFERRED)
    tx.slots.release(task)
    tx.slots.unblock(task)


def confirm(
    task: TaskInstance,
    ordinal: int,
    tx: Transaction,
    answer: bytes | None = None,
    failure: Failure | None = None,
) -> None:
    """Confirm a recorded call to the coroutine, which then continues."""
    recorded = CallRecorded(task.task_no, task.start_no, ordinal, answer, failure)
    tx.effects.append(ConfirmCall(recorded, task.run.async_role))


def record(
    task: TaskInstance,
    report: Awaiting | CallAnswered | EventEmitted | NextEventRequested | RunCalled | StreamOpened,
    state: RecordState,
    tx: Transaction,
    *,
    answer: bytes | None = None,
    failure: Failure | None = None,
) -> None:
    """Add the record of the task's next call."""
    row = RecordRow(
        task_no=task.task_no,
        ordinal=report.ordinal,
        run_no=task.run.run_no,
        state=state,
        kind=report.kind,
        name=report.name,
        source_location=report.source_location,
        answer=answer,
        failure=failure,
        label=report.label if isinstance(report, Awaiting | CallAnswered | StreamOpened) else "",
    )
    tx.new_record(task, row)
    _note_failure(task, failure)
    if task.interruptions:  # the task made progress since it was interrupted
        task.interruptions = 0
        tx.memory.crash_suspects.clear(task.task_no)
        tx.touch(task)


def answer_call(
    task: TaskInstance, answer: bytes | None, failure: Failure | None, tx: Transaction
) -> None:
    """Answer the open call. The caller must then move the task, which stores the answer."""
    tx.answer_record(task, answer, failure)
    _note_failure(task, failure)
    task.answer = (answer, failure)
    task.open_kind = ""


def _note_failure(task: TaskInstance, failure: Failure | None) -> None:
    if failure is not None and task.first_failed < 0:
        task.first_failed = task.recorded - 1


def deadline(task: TaskInstance, timeout_us: int | None, steady: Timestamp) -> Timestamp | None:
    """Return when a wait that starts now times out.

    It times out at its own limit or at the timeout of the try, whichever is earlier.
    """
    own = None if timeout_us is None else steady + timeout_us
    ends = try_ends_at(task, steady)
    if own is None or ends is None:
        return ends if own is None else own
    return min(own, ends)


def wait_for(
    task: TaskInstance,
    branch: int,
    trigger: tuple[str, bytes],
    deadline_at: Timestamp | None,
    tx: Transaction,
    *,
    window: int = 0,
    number: TriggerNo | None = None,
) -> TriggerInstance:
    """Create a trigger for the last recorded call.

    ``number`` is the row number of the trigger, if one was reserved.
    """
    class_path, kwargs = trigger
    row = TriggerRow(
        trigger_no=tx.numbers.take() if number is None else number,
        task_no=task.task_no,
        run_no=task.run.run_no,
        state=TriggerState.WAITING,
        class_path=class_path,
        kwargs=kwargs,
        since=tx.steady,
        deadline_at=deadline_at,
        ordinal=task.recorded - 1,
        branch=branch,
        window=window,
    )
    wait = TriggerInstance(row, task.run, task)
    tx.new_wait(wait)
    return wait


def _raw(event: bytes | None) -> msgspec.Raw:
    return msgspec.Raw(b"\xc0" if event is None else event)


_WENT_WELL = frozenset({RunState.SUCCESS, RunState.PARTIAL})


def start_run(task: TaskInstance, report: RunCalled, tx: Transaction) -> None:
    """Start a run for a coroutine. If the call waits for the run, suspend the coroutine until then.

    If the run cannot be created, the failure is recorded as the answer and the coroutine continues.
    """
    if report.ordinal != task.recorded or task.state is not TaskState.RUNNING:
        return  # repeated report
    number = tx.numbers.take()
    request = CreateRun(dag_id=report.dag_id, conf=report.conf)
    try:
        caller = number if report.waits else None
        run = create.make_run(
            request, tx, cause="task", caller=caller, started_by=task.run.row.started_by
        )
    except RequestError as exc:
        failure, arguments = _refusal(exc)
        record(task, report, RecordState.FAILED, tx, answer=arguments, failure=failure)
        confirm(task, report.ordinal, tx, arguments, failure)
        return
    if not report.waits:
        answer = _encode(run.row.run_id)
        record(task, report, RecordState.ANSWERED, tx, answer=answer)
        confirm(task, report.ordinal, tx, answer, None)
        return
    suspend(task, report, tx)
    until = deadline(task, None, tx.steady)
    kwargs = _encode({"dag": run.row.dag_id, "run_id": run.row.run_id})
    task.waits = (wait_for(task, 0, (RUN, kwargs), until, tx, number=number),)
    tx.wake_task(task, until)


def resume_caller(run: Run, tx: Transaction) -> None:
    """Resume the task that waits for a run, because the run is in its final state."""
    caller = run.row.caller
    wait = None if caller is None else tx.memory.waits.get(caller)
    if wait is None or wait.task is None or wait.state is not TriggerState.WAITING:
        return  # the task was cancelled, or restarts
    task, row = wait.task, run.row
    if row.state in _WENT_WELL:
        answer = {"state": row.state.label, "run_id": row.run_id, "result": None}
        answer_call(task, _encode(answer), None, tx)
    else:
        arguments = (row.dag_id, row.run_id, row.state.label)
        failure = _call_failure(DagRunFailed(*arguments), "dag_run_failed")
        answer_call(task, _encode(arguments), failure, tx)
    tx.drop_wait(wait)
    wait.task, task.waits = None, ()
    requeue(task, tx)


def _refusal(problem: RequestError) -> tuple[Failure, bytes]:
    """Return the failure of the call, and the encoded arguments of its exception."""
    match problem:
        case UnknownDag():
            arguments = [problem.dag_id]
        case DagBroken():
            arguments = [problem.dag_id, problem.reason]
        case _:
            arguments = [str(problem)]
    return _call_failure(problem, "run_refused"), _encode(arguments)


def _call_failure(problem: Exception, reason: str) -> Failure:
    cls = type(problem)
    return Failure(type=f"{cls.__module__}:{cls.__qualname__}", message=str(problem), reason=reason)
