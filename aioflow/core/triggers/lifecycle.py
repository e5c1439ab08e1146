"""The life cycle of a trigger: stored when its task is deferred, assigned, fired and released.

``waiting`` -> ``fired`` -> deleted when the work that it resumed has ended; or ``waiting`` ->
``ending`` -> deleted when its host has released it. A report about an earlier assignment is ignored
as outdated, because the trigger has changed since. A stream is ``waiting`` while its trigger
continues. Once the trigger has ended, the stream is ``fired`` until its events are consumed. A
person may fire a trigger manually.
"""

from __future__ import annotations

import msgspec

from aioflow.core.runs.progress import alert
from aioflow.core.state.task_instance import TaskInstance, TriggerInstance
from aioflow.core.tasks import durable_calls, streams
from aioflow.core.tasks.tries import (
    begin_try,
    fail_or_retry,
    forget_calls,
    forget_event,
    forget_suspension,
    requeue,
    reschedule_poke,
    skip,
    stop_of,
    succeed,
)
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import decisions, event_stream, migration
from aioflow.core.triggers.assignment import REASSIGNED, host, release_trigger, unhost
from aioflow.core.triggers.event_stream import MANUAL_INDEX
from aioflow.core.triggers.migration import PAUSED
from aioflow.errors import RequestError, UnknownTrigger
from aioflow.model.decisions import PERSON
from aioflow.model.rows import FROM_START, TriggerRow
from aioflow.model.states import CODE_MISSING, Failure, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.commands import StopTrigger
from aioflow.protocol.effects import ReleaseTrigger, RestoreCode, Warn
from aioflow.protocol.inputs import CodeRestored, HostLost
from aioflow.protocol.reports import (
    Awaiting,
    Deferred,
    Failed,
    NextEventRequested,
    StreamOpened,
    Succeeded,
    TriggerEnded,
    TriggerFired,
)
from aioflow.protocol.requests import FireTrigger

__all__ = (
    "await_triggers",
    "charge",
    "defer",
    "fail_suspended",
    "fire",
    "fire_manually",
    "lose_host",
    "next_event",
    "open_stream",
    "start",
    "stop",
    "time_out",
    "trigger_ended",
)


def defer(task: TaskInstance, report: Deferred, tx: Transaction) -> None:
    """Defer a task to a trigger, and free its slot."""
    is_stream = task.spec.events is not None
    unfit = decisions.misfit(report.class_path, report.kwargs, is_stream=is_stream)
    if unfit is not None:
        fail_or_retry(task, unfit, tx)
        return
    forget_event(task, tx)
    if task.resumed is not None:  # a stream that has ended, or that the task does not need any more
        release_trigger(task.resumed, "finished", tx)
        task.resumed = None
    forget_calls(task, 0, tx)  # the method that it resumes in makes its own calls
    deadline = durable_calls.deadline(task, report.timeout_us, tx.steady)
    if task.spec.events is not None:  # per wait for an event, not for all waits together
        deadline = None if report.timeout_us is None else tx.steady + report.timeout_us
    row = TriggerRow(
        trigger_no=tx.numbers.take(),
        task_no=task.task_no,
        run_no=task.run.run_no,
        state=TriggerState.WAITING,
        class_path=report.class_path,
        kwargs=report.kwargs,
        since=tx.steady,
        deadline_at=deadline,
        next_method=report.next_method,
        next_kwargs=report.next_kwargs,
        timeout_method=report.timeout_method,
        window=0 if task.spec.events is None else task.spec.events.window,
    )
    _begin(task, row, tx)
    tx.slots.release(task)
    tx.slots.unblock(task)


def _begin(task: TaskInstance, row: TriggerRow, tx: Transaction) -> None:
    wait = TriggerInstance(row, task.run, task)
    tx.new_wait(wait)
    tx.move(task, TaskState.DEFERRED)
    if wait.is_handled:
        streams.defer_until_events(task, wait, tx)
    else:
        task.waits = (wait,)
        tx.wake_task(task, row.deadline_at)
    decisions.ask(wait, tx)
    host(wait, tx)


def start(task: TaskInstance, tx: Transaction) -> None:
    """Defer a task at the start of its try, without a worker."""
    if task.resumed is not None:
        streams.wait_for_stream(task, tx)
        return
    trigger = task.spec.start_trigger
    assert trigger is not None  # noqa: S101 - granted only to tasks with a start trigger
    if task.state is TaskState.PENDING:
        task.queued_at = tx.now
        task.run.active_tasks[task.task_no] = task
        tx.memory.active_tasks[task.task_no] = task
    task.start_no += 1
    begin_try(task, tx)
    unfit = decisions.misfit(trigger.class_path, b"\x80", is_stream=task.spec.events is not None)
    if unfit is not None:
        fail_or_retry(task, unfit, tx)
        return
    deadline = durable_calls.deadline(task, trigger.timeout_us, tx.steady)
    if task.spec.events is not None:
        deadline = None if trigger.timeout_us is None else tx.steady + trigger.timeout_us
    row = TriggerRow(
        trigger_no=tx.numbers.take(),
        task_no=task.task_no,
        run_no=task.run.run_no,
        state=TriggerState.WAITING,
        class_path=trigger.class_path,
        kwargs=b"\x80",
        since=tx.steady,
        deadline_at=deadline,
        next_method=trigger.next_method,
        next_kwargs=trigger.next_kwargs,
        ordinal=FROM_START,
        window=0 if task.spec.events is None else task.spec.events.window,
    )
    _begin(task, row, tx)


def await_triggers(task: TaskInstance, report: Awaiting, tx: Transaction) -> None:
    """Suspend a coroutine until the triggers of one durable call have fired."""
    for class_path, fields in report.triggers:
        unfit = decisions.misfit(class_path, fields)
        if unfit is not None:
            fail_or_retry(task, unfit, tx)
            return
    for wait in durable_calls.await_triggers(task, report, tx):
        decisions.ask(wait, tx)
        host(wait, tx)


def open_stream(task: TaskInstance, report: StreamOpened, tx: Transaction) -> None:
    """Open a stream for a coroutine. Its trigger runs in a host even while the coroutine runs."""
    wait = durable_calls.open_stream(task, report, tx)
    if wait is not None:
        host(wait, tx)


def next_event(task: TaskInstance, report: NextEventRequested, tx: Transaction) -> None:
    """Answer a coroutine with the next event of a stream, or suspend it until there is one."""
    failure = durable_calls.next_event(task, report, tx)
    if failure is not None:
        stop(task, "cancelled", tx)
        fail_or_retry(task, failure, tx)


def fire(wait: TriggerInstance, report: TriggerFired, tx: Transaction) -> None:
    """Resume the task of a trigger with its event. Only a stream accepts further events."""
    task = wait.task
    if (
        report.assignment_id != wait.assignment_id
        or wait.state is not TriggerState.WAITING
        or task is None
    ):
        return
    if wait.is_handled:
        streams.store_event(wait, task, report, tx)
        return
    if wait.stream is not None:
        event_stream.take(wait, report, tx)
        if durable_calls.is_after(task, wait) and durable_calls.answer_next(task, wait, tx):
            requeue(task, tx)
        return
    tx.fires.append(wait.fire(report.key))
    if wait.row.ordinal < 0 and (report.ends or not wait.row.next_method):
        _end_task(wait, task, report, tx)
        return
    if wait.row.ordinal < 0:
        tx.move_wait(wait, TriggerState.FIRED, event=report.payload, key=report.key)
        task.waits, task.resumed = (), wait
    elif durable_calls.fire(wait, report, tx):
        _release_waits(task, wait, tx)
    else:
        return
    requeue(task, tx)


def _end_task(
    wait: TriggerInstance,
    task: TaskInstance,
    report: TriggerFired,
    tx: Transaction,
) -> None:
    """End the task with an event, without a worker."""
    _release_waits(task, wait, tx)
    match report.ends:
        case "success":
            body = report.payload or None
            size = report.size or len(report.payload)
            result = Succeeded(
                task.task_no, task.start_no, report.at, report.at, body, size, report.width
            )
            succeed(task, result, tx)
        case "skipped":
            skip(task, None, tx, at=report.at)
        case "":
            fail_or_retry(task, _leads_nowhere(wait), tx)
        case _:
            message = msgspec.msgpack.decode(report.payload, type=str)
            failure = Failure(type="TaskFailedEvent", message=message, reason="raised")
            fail_or_retry(task, failure, tx)


def _leads_nowhere(wait: TriggerInstance) -> Failure:
    message = (
        f"{wait.row.class_path} yielded an event that does not end the task, which has no method "
        "to resume in: name one, or yield a TaskSuccessEvent"
    )
    return Failure(type="TriggerFailed", message=message, reason="trigger_yield")


def _release_waits(
    task: TaskInstance,
    fired: TriggerInstance | None,
    tx: Transaction,
    *,
    reason: str = "finished",
) -> None:
    """Release everything that the task waited for. Its streams continue."""
    for wait in task.waits:
        if wait.stream is not None:
            continue
        if wait is fired:
            tx.drop_wait(wait)
            wait.task = None
        else:
            release_trigger(wait, reason, tx)
    task.waits = tuple(wait for wait in task.waits if wait.is_handled)


def trigger_ended(wait: TriggerInstance, report: TriggerEnded, tx: Transaction) -> None:
    """Handle the release of a trigger by its host: on command, after its event, or on failure."""
    if report.assignment_id != wait.assignment_id:
        return
    if wait.state is TriggerState.ENDING:
        if report.failure is not None and report.failure.reason == "abandoned":
            _report_failed_cleanup(wait, report.failure, tx)
        tx.drop_wait(wait)
    elif wait.state is TriggerState.WAITING and report.reason in {REASSIGNED, PAUSED}:
        host(wait, tx)  # how the old assignment ended does not matter
    elif wait.state is TriggerState.WAITING and _lacks_code(report):
        _await_code(wait, tx)
    elif wait.state is TriggerState.WAITING and wait.stream is not None:
        _end_stream(wait, report.failure, tx)
    elif wait.state is TriggerState.WAITING:
        failure = report.failure or Failure(
            type="TriggerFailed",
            message=f"{wait.row.class_path} ended without an event",
            reason="trigger_ended",
        )
        _fail(wait, failure, tx)


def _lacks_code(report: TriggerEnded) -> bool:
    return report.failure is not None and report.failure.reason == CODE_MISSING


def _await_code(wait: TriggerInstance, tx: Transaction) -> None:
    """Leave a trigger without a host until its code is restored."""
    versions = tuple(dict.fromkeys((wait.version, wait.run.row.version)))
    tx.record_assignment(wait)
    unhost(wait)
    tx.memory.lacking_code.add(wait.row.trigger_no)
    tx.effects.append(RestoreCode(versions, wait.row.trigger_no))


def code_restored(entry: CodeRestored, tx: Transaction) -> None:
    """Assign a trigger whose code was restored, unless it already has a host again."""
    tx.memory.lacking_code.discard(entry.trigger_no)
    wait = tx.memory.waits.get(entry.trigger_no)
    if wait is not None and wait.state is TriggerState.WAITING and not wait.assignment_id:
        host(wait, tx)


def _report_failed_cleanup(wait: TriggerInstance, failure: Failure, tx: Transaction) -> None:
    """Log the failure of a trigger that no task waits for any more."""
    facts: dict[str, str | int] = {
        "trigger": wait.row.class_path,
        "trigger_id": wait.row.trigger_no,
        "run_id": wait.run.row.run_id,
        "reason": failure.reason,
    }
    tx.effects.append(Warn(f"the cleanup of a trigger failed: {failure.message}", facts))


def _end_stream(wait: TriggerInstance, failure: Failure | None, tx: Transaction) -> None:
    task = wait.task
    if wait.is_handled:
        streams.stream_ended(wait, failure, tx)
        return
    event_stream.close(wait, failure, tx)
    if task is None or not durable_calls.is_after(task, wait) or not event_stream.is_over(wait):
        return  # the coroutine learns of the end when it has consumed the remaining events
    if failure is not None:
        _fail(wait, failure, tx)
    elif durable_calls.answer_next(task, wait, tx):
        requeue(task, tx)


def _fail(
    wait: TriggerInstance,
    failure: Failure,
    tx: Transaction,
    *,
    retryable: bool = True,
) -> None:
    """Fail the task that waits for a failed trigger. The task needs no slot for this.

    If the task is a sensor with ``on_error="skip"``, it is skipped instead. If it is a sensor with
    ``on_error="ignore"`` and the trigger itself failed (reason ``trigger``), it pokes again later.
    """
    task = wait.task
    if task is None:
        tx.drop_wait(wait)
        return
    _release_waits(task, wait, tx)
    forget_suspension(task, tx, "cancelled")
    sensor = task.spec.sensor
    if sensor is not None and sensor.on_error == "ignore" and failure.reason == "trigger":
        reschedule_poke(task, tx)  # the error is in the log of the task
    elif sensor is not None and sensor.on_error == "skip":  # as if the sensor poked by itself
        skip(task, failure, tx)
    else:
        fail_or_retry(task, failure, tx, retryable=retryable)


def fail_suspended(task: TaskInstance, report: Failed, tx: Transaction) -> None:
    """Fail a coroutine that ended while one of its calls was still waiting.

    If it was only interrupted, its waits continue, and it runs again from the start.
    """
    if task.state is not TaskState.DEFERRED or report.interrupted:
        forget_suspension(task)  # its waits continue, and then it runs again from the start
        return
    _release_waits(task, None, tx)
    forget_suspension(task)
    fail_or_retry(
        task,
        report.failure,
        tx,
        retryable=report.retryable,
        retry_after_us=report.retry_after_us,
    )


def time_out(task: TaskInstance, at: Timestamp, tx: Transaction) -> None:
    """Handle the deadline of a wait."""
    wait = task.wait
    if wait is not None and streams.has_batch(wait):
        streams.resume_with_events(task, tx)  # the operator has waited long enough for a full batch
        return
    if wait is None or at != (task.deadline_at if wait.stream else wait.row.deadline_at):
        return  # the task waits for something else by now
    ends_try = task.ends_at is not None and task.ends_at <= max(at, tx.steady)
    default = None if ends_try else decisions.time_out(task, tx)
    if default is not None:
        fire(tx.memory.waits[default.trigger_no], default, tx)
        return
    if wait.row.ordinal >= 0 and not ends_try:
        durable_calls.time_out(task, tx)
        _release_waits(task, None, tx, reason="timeout")
        return
    if wait.row.timeout_method and not ends_try:
        _resume_late(task, wait, tx)
        return
    failure = Failure(
        type="TaskTimeout", message=_too_long(task, wait, ends_try=ends_try), reason="timeout"
    )
    _release_waits(task, None, tx, reason="timeout")
    forget_suspension(task, tx, "timeout")
    fail_or_retry(task, failure, tx)


def _too_long(task: TaskInstance, wait: TriggerInstance, *, ends_try: bool) -> str:
    row = wait.row
    if ends_try:
        seconds = (task.spec.execution_timeout_us or 0) / 1e6
        return (
            f"the try took longer than its execution_timeout of {seconds:g} s; "
            f"{row.class_path} had given no event"
        )
    limit = streams.event_timeout(wait) if wait.is_handled else None
    if limit is None:
        limit = (row.deadline_at or row.since) - row.since
    return f"{row.class_path} gave no event in {limit / 1e6:g} s"


def _resume_late(task: TaskInstance, wait: TriggerInstance, tx: Transaction) -> None:
    """Resume the task in its timeout method, without an event."""
    release_trigger(wait, "timeout", tx)
    row = msgspec.structs.replace(
        wait.row,
        trigger_no=tx.numbers.take(),
        state=TriggerState.FIRED,
        next_method=wait.row.timeout_method,
        timeout_method="",
        kwargs=b"\x80",
        deadline_at=None,
        window=0,
    )
    late = TriggerInstance(row, task.run, task)
    tx.new_wait(late)
    task.waits, task.resumed = (), late
    requeue(task, tx)


def lose_host(lost: HostLost, tx: Transaction) -> None:
    """Unassign the triggers of a lost host. Only a trigger whose code killed the host fails."""
    migration.isolate_culprit(lost, tx)
    memory = tx.memory
    culprit = memory.waits.get(lost.culprit)  # packed or not
    memory.packing.lose(lost.role, memory.last_assignment_id)
    for wait in list(memory.waits.objects.values()):
        if wait.role != lost.role:
            continue
        if wait.state is TriggerState.ENDING:
            tx.drop_wait(wait)
        elif wait.state is TriggerState.WAITING:
            unhost(wait)
    if culprit is None or culprit.role != lost.role or culprit.state is not TriggerState.WAITING:
        return
    failure = migration.failure_of_culprit(culprit.row.class_path, lost, memory)
    if failure is not None and culprit.stream is not None:
        _end_stream(culprit, failure, tx)
    elif failure is not None:
        _fail(culprit, failure, tx)


def charge(wait: TriggerInstance, failure: Failure, tx: Transaction) -> None:
    """Fail the task of a trigger that has killed the daemon, without retries."""
    task = wait.task
    if task is not None:
        alert(task.run, task.task_index, failure, tx)
    if wait.stream is not None:
        _end_stream(wait, failure, tx)
    else:
        _fail(wait, failure, tx, retryable=False)


def stop(task: TaskInstance, reason: str, tx: Transaction) -> None:
    """Stop a task in its host, worker or triggers. The caller changes its row."""
    for wait in task.waits:
        if wait.state is TriggerState.WAITING and wait.stream is None:
            release_trigger(wait, reason, tx)
    forget_suspension(task, tx, reason)
    if task.worker >= 0 or task.is_hosted:
        tx.effects.append(stop_of(task, task.start_no, reason))
    tx.slots.release(task)


_NO_PAYLOAD = msgspec.msgpack.encode(None)


def fire_manually(request: FireTrigger, tx: Transaction) -> tuple[str, str, int]:
    """Process an event that a person sends as if the trigger had yielded it.

    A stream continues. Any other trigger ends, and its host must release it, as after any wait that
    has ended. Return the run id, the task id and the map index.

    Raises:
        UnknownTrigger: If no trigger with this number is waiting.
        RequestError: If the event cannot be sent manually.
    """
    of_dag = tx.memory.dag_triggers.get(request.trigger_no)
    if of_dag is not None:
        raise RequestError(
            f"trigger {request.trigger_no} starts runs of {of_dag.row.dag_id}; start one yourself "
            f"with `aioflow dags trigger {of_dag.row.dag_id}`"
        )
    wait = tx.memory.waits.get(request.trigger_no)
    if wait is None or wait.task is None or wait.state is not TriggerState.WAITING:
        raise UnknownTrigger(request.trigger_no)
    task = wait.task
    if wait.row.class_path == PERSON:
        raise RequestError(
            f"trigger {request.trigger_no} waits for a person; answer it: "
            f"aioflow decisions answer {request.trigger_no}"
        )
    told = task.run.row.run_id, task.spec.task_id, task.map_index
    end = _release_effect(wait)
    fire(wait, _manual_event(wait, request, tx), tx)
    if end is not None:
        tx.effects.append(end)
    return told


def _manual_event(wait: TriggerInstance, request: FireTrigger, tx: Transaction) -> TriggerFired:
    ends, payload = "", request.payload
    if wait.row.ordinal < 0 and not wait.row.next_method and wait.stream is None:
        if wait.task is not None and wait.task.spec.feeds_limit is not None:
            raise RequestError(
                f"the event of trigger {request.trigger_no} is a result that others expand over, "
                "which cannot be entered manually; mark the task instead"
            )
        ends, payload = "success", b"" if payload == _NO_PAYLOAD else payload
    return TriggerFired(
        trigger_no=wait.row.trigger_no,
        assignment_id=wait.assignment_id,
        index=MANUAL_INDEX,
        at=tx.now,
        payload=payload,
        key=request.key,
        ends=ends,
    )


def _release_effect(wait: TriggerInstance) -> ReleaseTrigger | None:
    """Return the effect that releases the trigger from its host; ``None`` if none is needed."""
    if wait.stream is not None or not wait.assignment_id:
        return None
    return ReleaseTrigger(
        StopTrigger(wait.row.trigger_no, wait.assignment_id, "finished"), wait.role
    )
