"""The life of a try: its start, continuation and failure."""

from __future__ import annotations

from msgspec.structs import replace

from aioflow.core import crash_trials
from aioflow.core.runs import iterations
from aioflow.core.runs.progress import AT_HAND_BYTES, alert, end
from aioflow.core.scheduling.slots import Grant
from aioflow.core.state.task_instance import Run, TaskInstance, time_limit
from aioflow.core.tasks import retry, retry_budget
from aioflow.core.tasks.retry import INTERRUPTION_LIMIT_OWN
from aioflow.core.tasks.start_command import order
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import named_events
from aioflow.core.triggers.assignment import release_trigger
from aioflow.model.dag import Body
from aioflow.model.ids import StartNo
from aioflow.model.rows import ResultRow, TryRow, TryWorkerRow
from aioflow.model.states import CODE_MISSING, IMPORT_ERROR, Failure, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import ResumeCoroutine
from aioflow.protocol.effects import RestoreCode, StartTry, StopTry
from aioflow.protocol.inputs import BodyReturned
from aioflow.protocol.reports import (
    Failed,
    Labelled,
    RecordDropped,
    ResultWriteFailed,
    SensorNotReady,
    Skipped,
    Succeeded,
)

__all__ = (
    "await_code",
    "awaits_code",
    "begin_try",
    "body_returned",
    "cut_short",
    "drop_record",
    "fail",
    "fail_or_retry",
    "failed",
    "forget_calls",
    "forget_event",
    "forget_suspension",
    "interrupt",
    "labelled",
    "not_ready",
    "note_worker",
    "recalled",
    "requeue",
    "reschedule_poke",
    "result_write_failed",
    "skip",
    "skipped",
    "start",
    "stop_of",
    "store_try",
    "succeed",
    "time_out_sensor",
    "wake_due",
)


CODE_AGAIN_US = 2_000_000

_REPORTED_WITHIN_US = 60_000_000


def start(grant: Grant, tx: Transaction) -> None:
    """Assign a task to the slot that it was granted, and send the start command."""
    task = grant.task
    if task.state is TaskState.PENDING:
        task.queued_at = tx.now
        tx.move(task, TaskState.QUEUED)
        task.run.active_tasks[task.task_no] = task
        tx.memory.active_tasks[task.task_no] = task
    task.start_no += 1
    tx.memory.unclaimed.discard(task.task_no)
    if task.spec.sensor is not None:
        _first_poke(task, tx)
    if grant.is_claimed or task.state is TaskState.SENSING:
        tx.touch(task)
    elif task.spec.sensor is not None and task.spec.body is Body.COROUTINE:
        tx.move(task, TaskState.SENSING)
    else:
        tx.move(task, TaskState.RUNNING)
    if not grant.is_claimed:
        note_worker(task, tx)
        if task.started_at is None:
            begin_try(task, tx)
    ordered = order(task, tx.steady)
    tx.effects.append(
        StartTry(
            task.spec.body,
            grant.worker,
            task.run.info,
            ordered,
            grant.is_claimed,
            ordered.timeout_us,
            int(task.run.durations[task.task_index]),
            _resumed(task),
            task.run.async_role,
            task.spec.execution_timeout_us,
            tx.memory.host_processes.get(task.run.async_role, 0) if grant.worker < 0 else 0,
        )
    )


def begin_try(task: TaskInstance, tx: Transaction, started_at: Timestamp | None = None) -> None:
    """Record when a try started, and when it times out.

    Args:
        started_at: Wall time reported by a child process; now by default. If it is not within the
            last minute, the clock was stepped, and the timeout is counted from now.
    """
    task.started_at = tx.now if started_at is None else started_at
    limit = time_limit(task.spec)
    if limit is not None:
        ago = tx.now - task.started_at
        task.ends_at = tx.steady + limit - (ago if 0 <= ago <= _REPORTED_WITHIN_US else 0)


def note_worker(task: TaskInstance, tx: Transaction) -> None:
    """Store which remote worker starts a task. Local workers are not stored."""
    if task.worker < len(tx.slots.workers):
        return
    worker = tx.slots.worker(task.worker)
    tx.batch.try_workers.append(
        TryWorkerRow(
            task_no=task.task_no,
            start_no=task.start_no,
            run_no=task.run.run_no,
            executor=worker.spec.executor,
            host=worker.location.host,
            worker=worker.location.worker,
        )
    )


def _resumed(task: TaskInstance) -> ResumeCoroutine | None:
    """Return the command to resume a suspended coroutine, and mark it as no longer suspended.

    Return ``None`` if the coroutine is not suspended.
    """
    if not task.suspended_start:
        return None
    (answer, failure), suspended = task.answer, task.suspended_start
    task.suspended_start, task.answer = 0, (None, None)
    return ResumeCoroutine(task.run.run_no, task.task_no, suspended, task.start_no, answer, failure)


def _first_poke(task: TaskInstance, tx: Transaction) -> None:
    """Start the timeout of a sensor at its first poke. It is armed only once, in steady time."""
    sensor = task.spec.sensor
    assert sensor is not None  # noqa: S101 - checked by the caller
    if task.deadline_at is None:
        task.deadline_at = tx.steady + sensor.timeout_us
        tx.wake_task(task, task.deadline_at)


def store_try(
    task: TaskInstance, state: TaskState, failure: Failure | None, tx: Transaction
) -> None:
    """Write the row of a try, unless it is a first try that succeeded."""
    if task.state in {TaskState.RETRYING, TaskState.QUEUED}:
        return  # no start is in progress: the last start already has its row
    tx.batch.new_tries.append(
        TryRow(
            task_no=task.task_no,
            start_no=task.start_no,
            run_no=task.run.run_no,
            try_number=task.try_number,
            state=state,
            started_at=task.started_at,
            ended_at=max(tx.now, task.started_at or tx.now),
            failure=failure,
        )
    )


def succeed(task: TaskInstance, report: Succeeded, tx: Transaction) -> None:
    """End a task whose try returned. Store its result, and pass it on to dependent tasks."""
    run, task_index = task.run, task.task_index
    exhausted = iterations.iteration_limit_failure(task) if report.again else None
    if exhausted is not None:
        fail(task, exhausted, tx)
        return
    if task.spec.streams:
        stream_output = run.items.get(task.task_no)
        report = replace(report, width=0 if stream_output is None else stream_output.count)
    if report.size or report.width is not None:
        tx.batch.results.append(
            ResultRow(
                task_no=task.task_no,
                run_no=run.run_no,
                start_no=task.start_no,
                body=report.body,
                size=report.size,
                width=report.width,
            )
        )
    if task.map_index < 0:
        if run.dag_version.has_result_argument[task_index] and _keep_at_hand(
            run, task_index, report
        ):
            run.known[task_index] = 1
        if report.width is not None:
            run.widths[task_index] = report.width
            run.source_starts[task_index] = task.start_no
    if task.try_number > 1:
        store_try(task, TaskState.SUCCESS, None, tx)
        task.failure = None
    end(
        task,
        TaskState.SUCCESS,
        tx,
        at=report.at,
        skips=report.skips,
        again=report.again,
    )
    if task.spec.outlets:
        named_events.announce(task, tx)


def _keep_at_hand(run: Run, task_index: int, report: Succeeded) -> bool:
    if report.size == 0 and report.width is None:
        return True  # None
    if report.body is None or len(report.body) > AT_HAND_BYTES:
        return False
    run.results[task_index] = report.body
    return True


def fail_or_retry(
    task: TaskInstance,
    failure: Failure,
    tx: Transaction,
    *,
    retryable: bool = True,
    retry_after_us: int | None = None,
) -> None:
    """Schedule a retry after a failed try if the retry policy allows one, else fail the task."""
    at = None
    if retryable and failure.reason != retry.TRIGGER_FAIL:
        at = retry.next_try_at(
            task.spec.retry,
            try_number=task.try_number,
            now=tx.steady,
            random=tx.random(),
            retry_after_us=retry_after_us,
        )
    over = None if at is None else retry_budget.spend_retry(task, failure, tx)
    if at is None or over is not None:
        fail(task, over or failure, tx)
        return
    store_try(task, TaskState.FAILED, failure, tx)
    task.failure = failure
    task.due_at = at
    tx.move(task, TaskState.RETRYING)
    _rewind(task, tx)
    tx.slots.release(task)
    tx.slots.unblock(task)
    tx.wake_task(task, at)


def fail(task: TaskInstance, failure: Failure, tx: Transaction) -> None:
    """Fail a task without a further try."""
    store_try(task, TaskState.FAILED, failure, tx)
    task.failure = failure
    if failure.reason in {"fanout_cap", "sensor_timeout"}:
        alert(task.run, task.task_index, failure, tx)
    end(task, TaskState.FAILED, tx)


def cut_short(task: TaskInstance, failure: Failure, tx: Transaction) -> None:
    """Requeue a task whose shared process died, unless the task itself killed the process.

    A task is never charged a try for other code in the same process, see ``crash_trials``.
    """
    crash_failure = crash_trials.crash_failure(task.task_no, tx.memory)
    if crash_failure is None:
        interrupt(task, failure, None, tx)
    else:
        alert(task.run, task.task_index, crash_failure, tx)
        interrupt(task, crash_failure, 0, tx)


def interrupt(task: TaskInstance, failure: Failure, limit: int | None, tx: Transaction) -> None:
    """Requeue a task that was interrupted by the infrastructure, or fail it beyond the limit.

    Args:
        limit: Maximum number of interruptions; ``None`` for no limit.
    """
    task.interruptions += 1
    forget_suspension(task)
    task.started_at = task.ends_at = None  # the lost time does not count
    tx.slots.release(task)
    tx.slots.unblock(task)
    if limit is not None and task.interruptions > limit:
        message = f"interrupted {task.interruptions} times; the last time: {failure.message}"
        fail(task, Failure(type=failure.type, message=message, reason="interrupted"), tx)
        return
    requeue(task, tx)


def await_code(task: TaskInstance, failure: Failure, tx: Transaction) -> None:
    """Delay a try whose code is missing on disk, and request that the code be restored.

    The try number does not change.
    """
    task.failure = failure
    task.due_at = tx.steady + CODE_AGAIN_US
    tx.move(task, TaskState.RETRYING)
    forget_suspension(task)
    tx.slots.release(task)
    tx.slots.unblock(task)
    tx.wake_task(task, task.due_at)
    tx.effects.append(RestoreCode((task.run.row.version,)))


def awaits_code(task: TaskInstance) -> bool:
    """Return whether a try waits for its code to be restored on disk."""
    failure = task.failure if task.state is TaskState.RETRYING else None
    return failure is not None and failure.reason == CODE_MISSING


def requeue(task: TaskInstance, tx: Transaction) -> None:
    """Queue a task for a slot again, within the same try."""
    if task.state is not TaskState.QUEUED:
        tx.move(task, TaskState.QUEUED)
    task.due_at = None
    task.queued_at = tx.now
    tx.slots.offer(task)


def reschedule_poke(
    task: TaskInstance, tx: Transaction, *, recheck_in_us: int | None = None
) -> None:
    """Schedule the next poke of a sensor that was not ready or that ignores its failure.

    The next poke starts from the beginning, no matter what this one waited for.
    """
    sensor = task.spec.sensor
    assert sensor is not None  # noqa: S101 - reported by sensors only
    forget_event(task, tx)
    _first_poke(task, tx)
    task.pokes += 1
    task.due_at = retry.sensor_next_poke(
        sensor,
        pokes=task.pokes,
        now=tx.steady,
        recheck_in_us=recheck_in_us,
        deadline=task.deadline_at,
    )
    if task.state is TaskState.SENSING:
        tx.touch(task)
    else:
        tx.move(task, TaskState.SENSING)
    tx.slots.release(task)
    tx.slots.unblock(task)
    tx.wake_task(task, task.due_at)


def wake_due(task: TaskInstance, at: Timestamp, tx: Transaction) -> None:
    """Handle a timer for a retry or a poke."""
    if task.due_at != at:
        return  # the timer is outdated
    if task.state is TaskState.RETRYING:
        if awaits_code(task):
            task.failure = None
        else:
            task.try_number += 1
        task.started_at = task.ends_at = None
        requeue(task, tx)
    elif task.state is TaskState.SENSING:
        requeue(task, tx)


def time_out_sensor(task: TaskInstance, tx: Transaction) -> None:
    """Fail or skip a sensor that has timed out, and alert. It is never retried."""
    sensor = task.spec.sensor
    assert sensor is not None  # noqa: S101 - only sensors sense
    failure = Failure(
        type="SensorTimeout",
        message=f"not ready after {sensor.timeout_us / 1e6:g} s",
        reason="sensor_timeout",
    )
    if sensor.on_timeout == "skip":
        alert(task.run, task.task_index, failure, tx)
        skip(task, failure, tx)
    else:
        fail(task, failure, tx)


def forget_event(task: TaskInstance, tx: Transaction) -> None:
    """Drop the triggers that a task waited for, and the event that it resumed from.

    A stream that an operator handles is retained, because the next try continues with this stream.
    """
    known = task.waits if task.resumed is None else (*task.waits, task.resumed)
    for wait in known:
        if wait.state is TriggerState.FIRED and not wait.stream:
            tx.drop_wait(wait)
    task.waits, task.resumed = (), next((wait for wait in known if wait.is_handled), None)
    if task.spec.sensor is None:  # a sensor has one deadline for all its tries
        task.deadline_at = None


def _rewind(task: TaskInstance, tx: Transaction) -> None:
    """Reset a task so that its next try starts from the beginning.

    The calls recorded before the first call that failed or has no answer are retained.
    """
    forget_suspension(task)
    first = task.recorded - bool(task.open_kind) if task.first_failed < 0 else task.first_failed
    restarts = task.resumed is not None and not task.resumed.is_handled
    forget_calls(task, 0 if restarts else first, tx)
    forget_event(task, tx)


def drop_record(task: TaskInstance, report: RecordDropped, tx: Transaction) -> None:
    """Drop the records that the current code no longer matches, as its author requested."""
    if task.state is not TaskState.RUNNING:
        return
    forget_calls(task, report.first, tx)
    if report.starts_over:
        tx.slots.release(task)
        tx.slots.unblock(task)
        requeue(task, tx)


def forget_calls(task: TaskInstance, first: int, tx: Transaction) -> None:
    """Drop the durable calls from ``first`` on, and release the streams that they opened."""
    for ordinal, wait in task.streams.items():
        if ordinal >= first:
            release_trigger(wait, "finished", tx)
    task.streams = {at: wait for at, wait in task.streams.items() if at < first}
    tx.drop_records(task, first)


def stop_of(task: TaskInstance, start_no: StartNo, reason: str) -> StopTry:
    """Return the effect that stops one start of a task in its process."""
    role = task.run.async_role
    return StopTry(task.spec.body, task.worker, task.task_no, start_no, reason, role)


def forget_suspension(task: TaskInstance, tx: Transaction | None = None, reason: str = "") -> None:
    """Forget where a coroutine is suspended.

    If a transaction is passed, also stop the coroutine in its host.
    """
    if task.suspended_start and tx is not None:
        tx.effects.append(stop_of(task, task.suspended_start, reason))
    task.suspended_start, task.answer = 0, (None, None)


def failed(task: TaskInstance, report: Failed, tx: Transaction) -> None:
    """Handle the failure of a try: requeue it, await its code, skip a sensor, fail, or retry."""
    if report.interrupted:
        interrupt(task, report.failure, INTERRUPTION_LIMIT_OWN, tx)
        return
    if report.failure.reason == CODE_MISSING and report.began_at is None:
        await_code(task, report.failure, tx)
        return
    is_import = report.failure.reason == IMPORT_ERROR and report.began_at is None
    if is_import or report.failure.type == FileNotFoundError.__name__:
        # A module of the version, or another file of it, may be missing on disk.
        tx.effects.append(RestoreCode((task.run.row.version,)))
    sensor = task.spec.sensor
    if sensor is not None and sensor.on_error == "skip":
        skip(task, report.failure, tx, at=report.at)
    else:
        fail_or_retry(
            task,
            report.failure,
            tx,
            retryable=report.retryable,
            retry_after_us=report.retry_after_us,
        )


def skipped(task: TaskInstance, report: Skipped, tx: Transaction) -> None:
    """End a task whose try raised ``TaskSkipped``."""
    skip(task, None, tx, at=report.at)


def skip(
    task: TaskInstance, failure: Failure | None, tx: Transaction, *, at: Timestamp | None = None
) -> None:
    """End a task as skipped. If this replaces a failure, pass the failure."""
    store_try(task, TaskState.SKIPPED, failure, tx)
    if failure is not None:
        task.failure = failure
    end(task, TaskState.SKIPPED, tx, at=at)


def not_ready(task: TaskInstance, report: SensorNotReady, tx: Transaction) -> None:
    """Reschedule a sensor that was not ready."""
    reschedule_poke(task, tx, recheck_in_us=report.recheck_in_us)


def recalled(task: TaskInstance, tx: Transaction) -> None:
    """Requeue a claimed try that its worker returned without starting it."""
    tx.slots.call_back(task)
    tx.slots.unblock(task)
    if task.state is TaskState.QUEUED:
        tx.note_slot(task)
        tx.slots.offer(task)
    else:  # this was the first try in a process that died before the try started
        task.started_at = task.ends_at = None
        requeue(task, tx)


def labelled(task: TaskInstance, report: Labelled, tx: Transaction) -> None:
    """Store the label that a child of a mapped task has set for itself."""
    if not task.pokes:  # a sensor that pokes again already has a label
        tx.batch.labels.append((task.task_no, task.run.run_no, report.label))


def result_write_failed(task: TaskInstance, report: ResultWriteFailed, tx: Transaction) -> None:
    """Record that the worker of a task is retrying to write its result."""
    tx.slots.note_delayed_result(task, disk_is_full=report.disk_is_full)


def body_returned(task: TaskInstance, report: BodyReturned, tx: Transaction) -> None:
    """Free the slot of a try whose result is being stored. The task stays running until then."""
    tx.slots.release(task)
    tx.slots.unblock(task)
    tx.note_slot(task)
    if report.is_backlogged:
        tx.slots.unstored[task.task_no] = task.start_no
