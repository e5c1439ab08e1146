"""One try of a task: how it starts, how it ends badly, and when it goes on."""

from __future__ import annotations

from msgspec.structs import replace

from aioflow.core import crash_trials
from aioflow.core.runs import iterations
from aioflow.core.runs.run import AT_HAND_BYTES, alert, end
from aioflow.core.scheduling.slots import Slots
from aioflow.core.scheduling.workers import Grant
from aioflow.core.state.execution_timeout import time_limit
from aioflow.core.state.task_instance import Run, TaskInstance
from aioflow.core.tasks import retry, retry_budget
from aioflow.core.tasks.start_command import order
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import named_events
from aioflow.core.triggers.assignment import let_go
from aioflow.model.dag import Body
from aioflow.model.ids import StartNo
from aioflow.model.rows import ResultRow, TryRow
from aioflow.model.states import CODE_MISSING, Failure, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import ResumeCoroutine
from aioflow.protocol.effects import RestoreCode, StartTry, StopTry
from aioflow.protocol.reports import RecordDropped, Succeeded

__all__ = (
    "await_code",
    "begin_try",
    "cut_short",
    "drop_record",
    "fail",
    "fail_or_retry",
    "forget_calls",
    "forget_event",
    "interrupt",
    "keep_try",
    "look_again",
    "requeue",
    "start",
    "stop_of",
    "succeed",
    "time_out_sensor",
    "unpark",
    "wake_due",
)


CODE_AGAIN_US = 2_000_000

_REPORTED_WITHIN_US = 60_000_000


def start(grant: Grant, tx: Transaction) -> None:
    """Commit a task to the place it was granted, and order its start."""
    task = grant.task
    if task.state is TaskState.PENDING:
        task.queued_at = tx.now
        tx.move(task, TaskState.QUEUED)
        task.run.active_tasks[task.task_no] = task
        tx.memory.active_tasks[task.task_no] = task
    task.start_no += 1
    tx.memory.unclaimed.discard(task.task_no)
    if task.spec.sensor is not None:
        _first_look(task, tx)
    if grant.is_claimed or task.state is TaskState.SENSING:
        tx.touch(task)
    elif task.spec.sensor is not None and task.spec.body is Body.COROUTINE:
        tx.move(task, TaskState.SENSING)
    else:
        tx.move(task, TaskState.RUNNING)
    if task.started_at is None and not grant.is_claimed:
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
            int(task.run.durations[task.position]),
            _resumed(task),
            task.run.async_role,
            task.spec.execution_timeout_us,
        )
    )


def begin_try(task: TaskInstance, tx: Transaction, started_at: Timestamp | None = None) -> None:
    """Note when a try began, and when it has had its time.

    Args:
        started_at: What a child says, by the wall clock; now by default. Where that is not within
            the last minute the clock has stepped meanwhile, and the time is counted from now.
    """
    task.started_at = tx.now if started_at is None else started_at
    limit = time_limit(task.spec)
    if limit is not None:
        ago = tx.now - task.started_at
        task.ends_at = tx.steady + limit - (ago if 0 <= ago <= _REPORTED_WITHIN_US else 0)


def _resumed(task: TaskInstance) -> ResumeCoroutine | None:
    """Return how a parked coroutine goes on; it is parked no longer."""
    if not task.parked_start:
        return None
    (answer, failure), parked = task.answer, task.parked_start
    task.parked_start, task.answer = 0, (None, None)
    return ResumeCoroutine(task.run.run_no, task.task_no, parked, task.start_no, answer, failure)


def _first_look(task: TaskInstance, tx: Transaction) -> None:
    """A sensor's time begins with its first look, and is armed once: a length, not an hour."""
    sensor = task.spec.sensor
    assert sensor is not None  # noqa: S101 - the caller looked
    if task.deadline_at is None:
        task.deadline_at = tx.steady + sensor.timeout_us
        tx.wake_task(task, task.deadline_at)


def keep_try(
    task: TaskInstance, state: TaskState, failure: Failure | None, tx: Transaction
) -> None:
    """Write the row of a try that ended in anything but a first success."""
    if task.state in {TaskState.RETRYING, TaskState.QUEUED}:
        return  # no start is under way: the last one has its row
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


def succeed(task: TaskInstance, report: Succeeded, tx: Transaction, slots: Slots) -> None:
    """A try returned: keep its result, for the rows and for the tasks that take it."""
    run, position = task.run, task.position
    exhausted = iterations.exhausted(task) if report.again else None
    if exhausted is not None:
        fail(task, exhausted, tx, slots)
        return
    if task.spec.streams:
        given = run.items.get(task.task_no)
        report = replace(report, width=0 if given is None else given.count)
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
        if run.dag_version.is_taken[position] and _keep_at_hand(run, position, report):
            run.known[position] = 1
        if report.width is not None:
            run.widths[position] = report.width
            run.source_starts[position] = task.start_no
    if task.try_number > 1:
        keep_try(task, TaskState.SUCCESS, None, tx)
        task.failure = None
    end(
        task,
        TaskState.SUCCESS,
        tx,
        slots,
        at=report.at,
        skips=report.skips,
        again=report.again,
    )
    if task.spec.outlets:
        named_events.announce(task, tx)


def _keep_at_hand(run: Run, position: int, report: Succeeded) -> bool:
    if report.size == 0 and report.width is None:
        return True  # None
    if report.body is None or len(report.body) > AT_HAND_BYTES:
        return False
    run.results[position] = report.body
    return True


def fail_or_retry(
    task: TaskInstance,
    failure: Failure,
    tx: Transaction,
    slots: Slots,
    *,
    retryable: bool = True,
    retry_after_us: int | None = None,
) -> None:
    """A try failed: run again later, as its policy says, or fail for good."""
    at = None
    if retryable and failure.reason != retry.TRIGGER_FAIL:
        at = retry.next_try_at(
            task.spec.retry,
            try_number=task.try_number,
            now=tx.steady,
            random=tx.random(),
            retry_after_us=retry_after_us,
        )
    over = None if at is None else retry_budget.spend(task, failure, tx)
    if at is None or over is not None:
        fail(task, over or failure, tx, slots)
        return
    keep_try(task, TaskState.FAILED, failure, tx)
    task.failure = failure
    task.due_at = at
    tx.move(task, TaskState.RETRYING)
    _rewind(task, tx)
    slots.release(task)
    slots.unblock(task)
    tx.wake_task(task, at)


def fail(task: TaskInstance, failure: Failure, tx: Transaction, slots: Slots) -> None:
    """A task failed for good."""
    keep_try(task, TaskState.FAILED, failure, tx)
    task.failure = failure
    if failure.reason in {"fanout_cap", "sensor_timeout"}:
        alert(task.run, task.position, failure, tx)
    end(task, TaskState.FAILED, tx, slots)


def cut_short(task: TaskInstance, failure: Failure, tx: Transaction, slots: Slots) -> None:
    """The process that a task shared died: run again, unless the task is what killed it.

    However often that happens, a task is not charged for what ran beside it; see ``trials``.
    """
    guilt = crash_trials.guilt(task.task_no, tx.memory)
    if guilt is None:
        interrupt(task, failure, None, tx, slots)
    else:
        alert(task.run, task.position, guilt, tx)
        interrupt(task, guilt, 0, tx, slots)


def interrupt(
    task: TaskInstance, failure: Failure, limit: int | None, tx: Transaction, slots: Slots
) -> None:
    """Infrastructure cut a start short: run again at once, unless that happens too often.

    Args:
        limit: Interruptions that a task survives; ``None`` if it survives any number.
    """
    task.interruptions += 1
    unpark(task)
    task.started_at = task.ends_at = None  # the time it lost is not its own
    slots.release(task)
    slots.unblock(task)
    if limit is not None and task.interruptions > limit:
        message = f"interrupted {task.interruptions} times; the last time: {failure.message}"
        fail(task, Failure(type=failure.type, message=message, reason="interrupted"), tx, slots)
        return
    requeue(task, tx, slots)


def await_code(task: TaskInstance, failure: Failure, tx: Transaction, slots: Slots) -> None:
    """The code of its version was not on the disk: the same try, when that has come back."""
    task.failure = failure
    task.due_at = tx.steady + CODE_AGAIN_US
    tx.move(task, TaskState.RETRYING)
    unpark(task)
    slots.release(task)
    slots.unblock(task)
    tx.wake_task(task, task.due_at)
    tx.effects.append(RestoreCode((task.run.row.version,)))


def requeue(task: TaskInstance, tx: Transaction, slots: Slots) -> None:
    """Let a task wait for its slot again, within the same try."""
    if task.state is not TaskState.QUEUED:
        tx.move(task, TaskState.QUEUED)
    task.due_at = None
    task.queued_at = tx.now
    slots.offer(task)


def look_again(
    task: TaskInstance, tx: Transaction, slots: Slots, *, recheck_in_us: int | None = None
) -> None:
    """A sensor found nothing, or ignores what went wrong: put it aside until its next look.

    That begins at the beginning, whatever this one had waited for.
    """
    sensor = task.spec.sensor
    assert sensor is not None  # noqa: S101 - reported by sensors only
    forget_event(task, tx)
    _first_look(task, tx)
    task.looks += 1
    task.due_at = retry.sensor_next_look(
        sensor,
        looks=task.looks,
        now=tx.steady,
        recheck_in_us=recheck_in_us,
        deadline=task.deadline_at,
    )
    if task.state is TaskState.SENSING:
        tx.touch(task)
    else:
        tx.move(task, TaskState.SENSING)
    slots.release(task)
    slots.unblock(task)
    tx.wake_task(task, task.due_at)


def wake_due(task: TaskInstance, at: Timestamp, tx: Transaction, slots: Slots) -> None:
    """An instant armed for a retry, or for a sensor's next look, has come."""
    if task.due_at != at:
        return  # it is past that
    if task.state is TaskState.RETRYING:
        if task.failure is not None and task.failure.reason == CODE_MISSING:
            task.failure = None
        else:
            task.try_number += 1
        task.started_at = task.ends_at = None
        requeue(task, tx, slots)
    elif task.state is TaskState.SENSING:
        requeue(task, tx, slots)


def time_out_sensor(task: TaskInstance, tx: Transaction, slots: Slots) -> None:
    """A sensor looked for as long as it may. Never retried; the people on call are told."""
    sensor = task.spec.sensor
    assert sensor is not None  # noqa: S101 - only sensors sense
    failure = Failure(
        type="SensorTimeout",
        message=f"not ready after {sensor.timeout_us / 1e6:g} s",
        reason="sensor_timeout",
    )
    if sensor.on_timeout == "skip":
        keep_try(task, TaskState.SKIPPED, failure, tx)
        task.failure = failure
        alert(task.run, task.position, failure, tx)
        end(task, TaskState.SKIPPED, tx, slots)
    else:
        fail(task, failure, tx, slots)


def forget_event(task: TaskInstance, tx: Transaction) -> None:
    """What the task waited for, and the event it resumed from, are over.

    A stream whose events its operator takes goes on: no try begins before it.
    """
    known = task.waits if task.resumed is None else (*task.waits, task.resumed)
    for wait in known:
        if wait.state is TriggerState.FIRED and not wait.stream:
            tx.drop_wait(wait)
    task.waits, task.resumed = (), next((wait for wait in known if wait.is_handled), None)
    if task.spec.sensor is None:  # that of a sensor is one for all its tries
        task.deadline_at = None


def _rewind(task: TaskInstance, tx: Transaction) -> None:
    """The next try begins at the beginning.

    It finds what was recorded there before the first call that failed, or had no answer.
    """
    unpark(task)
    first = task.recorded - bool(task.open_kind) if task.first_failed < 0 else task.first_failed
    begins_anew = task.resumed is not None and not task.resumed.is_handled
    forget_calls(task, 0 if begins_anew else first, tx)
    forget_event(task, tx)


def drop_record(task: TaskInstance, report: RecordDropped, tx: Transaction, slots: Slots) -> None:
    """The code makes other calls than those recorded; its author lets go of the old ones."""
    if task.state is not TaskState.RUNNING:
        return
    forget_calls(task, report.first, tx)
    if report.starts_over:
        slots.release(task)
        slots.unblock(task)
        requeue(task, tx, slots)


def forget_calls(task: TaskInstance, first: int, tx: Transaction) -> None:
    """Durable calls from ``first`` on were never made; the streams they opened are let go."""
    for ordinal, wait in task.streams.items():
        if ordinal >= first:
            let_go(wait, "finished", tx)
    task.streams = {at: wait for at, wait in task.streams.items() if at < first}
    tx.drop_records(task, first)


def stop_of(task: TaskInstance, start_no: StartNo, reason: str) -> StopTry:
    """Return the effect that ends one start of a task, wherever its process has it."""
    role = task.run.async_role
    return StopTry(task.spec.body, task.worker, task.task_no, start_no, reason, role)


def unpark(task: TaskInstance, tx: Transaction | None = None, reason: str = "") -> None:
    """Forget where a coroutine is suspended; with a transaction, tell its host as well."""
    if task.parked_start and tx is not None:
        tx.effects.append(stop_of(task, task.parked_start, reason))
    task.parked_start, task.answer = 0, (None, None)
