"""The life of a trigger: stored with its task's move, hosted, fired, let go.

``waiting`` -> ``fired`` -> deleted when the work it resumed is over; or ``waiting`` ->
``ending`` -> deleted when its host has let go of it. A report of another hosting than the
present one is late: the trigger lives elsewhere by now. A stream is ``waiting`` while its
trigger goes on, and ``fired`` once that has ended, until its events are consumed.
"""

from __future__ import annotations

import msgspec

from aioflow.core.runs.run import alert, end
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.task_instance import TaskInstance, TriggerInstance
from aioflow.core.tasks import durable_calls, stream_consumer
from aioflow.core.tasks.tries import (
    begin_try,
    fail_or_retry,
    forget_calls,
    forget_event,
    keep_try,
    look_again,
    requeue,
    stop_of,
    succeed,
    unpark,
)
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import event_stream, isolation
from aioflow.core.triggers.assignment import REASSIGNED, host, let_go, unhost
from aioflow.core.triggers.pausing import PAUSED
from aioflow.model.rows import FROM_START, TriggerRow
from aioflow.model.states import CODE_MISSING, Failure, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.effects import RestoreCode, Warn
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

__all__ = (
    "await_triggers",
    "charge",
    "defer",
    "fail_parked",
    "fire",
    "lose_host",
    "next_event",
    "open_stream",
    "start",
    "stop",
    "time_out",
    "trigger_ended",
)


def defer(live: TaskInstance, report: Deferred, draft: Transaction, slots: Slots) -> None:
    """A task gives its place back and waits for a trigger."""
    forget_event(live, draft)
    if live.resumed is not None:  # a stream that is over, or that it does not want any more
        let_go(live.resumed, "finished", draft)
        live.resumed = None
    forget_calls(live, 0, draft)  # the method it resumes in makes calls of its own
    deadline = durable_calls.deadline(live, report.timeout_us, draft.steady)
    if live.spec.events is not None:  # of each wait for an event, not of all together
        deadline = None if report.timeout_us is None else draft.steady + report.timeout_us
    row = TriggerRow(
        trigger_no=draft.numbers.take(),
        task_no=live.task_no,
        run_no=live.run.run_no,
        state=TriggerState.WAITING,
        class_path=report.class_path,
        kwargs=report.kwargs,
        since=draft.steady,
        deadline_at=deadline,
        next_method=report.next_method,
        next_kwargs=report.next_kwargs,
        timeout_method=report.timeout_method,
        window=0 if live.spec.events is None else live.spec.events.window,
    )
    _begin(live, row, draft)
    slots.release(live)
    slots.unblock(live)


def _begin(live: TaskInstance, row: TriggerRow, draft: Transaction) -> None:
    wait = TriggerInstance(row, live.run, live)
    draft.new_wait(wait)
    draft.move(live, TaskState.DEFERRED)
    if wait.is_handled:
        stream_consumer.begin_to_wait(live, wait, draft)
    else:
        live.waits = (wait,)
        draft.wake_task(live, row.deadline_at)
    host(wait, draft)


def start(live: TaskInstance, draft: Transaction) -> None:
    """A task waits before anything of its try has run: no worker is touched."""
    if live.resumed is not None:
        stream_consumer.wait_again(live, draft)
        return
    trigger = live.spec.start_trigger
    assert trigger is not None  # noqa: S101 - what was granted says so
    if live.state is TaskState.PENDING:
        live.queued_at = draft.now
        live.run.live[live.task_no] = live
        draft.memory.live[live.task_no] = live
    live.start_no += 1
    begin_try(live, draft)
    deadline = durable_calls.deadline(live, trigger.timeout_us, draft.steady)
    if live.spec.events is not None:
        deadline = None if trigger.timeout_us is None else draft.steady + trigger.timeout_us
    row = TriggerRow(
        trigger_no=draft.numbers.take(),
        task_no=live.task_no,
        run_no=live.run.run_no,
        state=TriggerState.WAITING,
        class_path=trigger.class_path,
        kwargs=b"\x80",
        since=draft.steady,
        deadline_at=deadline,
        next_method=trigger.next_method,
        next_kwargs=trigger.next_kwargs,
        ordinal=FROM_START,
        window=0 if live.spec.events is None else live.spec.events.window,
    )
    _begin(live, row, draft)


def await_triggers(live: TaskInstance, report: Awaiting, draft: Transaction, slots: Slots) -> None:
    """A coroutine is parked until the triggers of one durable call have fired."""
    for wait in durable_calls.await_triggers(live, report, draft, slots):
        host(wait, draft)


def open_stream(live: TaskInstance, report: StreamOpened, draft: Transaction) -> None:
    """A coroutine opens a stream; its trigger is hosted from now on, also while it computes."""
    wait = durable_calls.open_stream(live, report, draft)
    if wait is not None:
        host(wait, draft)


def next_event(
    live: TaskInstance, report: NextEventRequested, draft: Transaction, slots: Slots
) -> None:
    """A coroutine takes the next event of a stream, or is parked until there is one."""
    failure = durable_calls.next_event(live, report, draft, slots)
    if failure is not None:
        stop(live, "cancelled", draft, slots)
        fail_or_retry(live, failure, draft, slots)


def fire(wait: TriggerInstance, report: TriggerFired, draft: Transaction, slots: Slots) -> None:
    """A trigger's event resumes its task. Of one that is no stream, later ones are late."""
    live = wait.live
    if report.hosting != wait.hosting or wait.state is not TriggerState.WAITING or live is None:
        return
    if wait.is_handled:
        stream_consumer.take(wait, live, report, draft, slots)
        return
    if wait.stream is not None:
        event_stream.take(wait, report, draft)
        if durable_calls.is_after(live, wait) and durable_calls.answer_next(live, wait, draft):
            requeue(live, draft, slots)
        return
    draft.fires.append(wait.fire(report.key))
    if wait.row.ordinal < 0 and (report.ends or not wait.row.next_method):
        _end_task(wait, live, report, draft, slots)
        return
    if wait.row.ordinal < 0:
        draft.move_wait(wait, TriggerState.FIRED, event=report.payload, key=report.key)
        live.waits, live.resumed = (), wait
    elif durable_calls.fire(wait, report, draft):
        _let_go_of_waits(live, wait, draft)
    else:
        return
    requeue(live, draft, slots)


def _end_task(
    wait: TriggerInstance,
    live: TaskInstance,
    report: TriggerFired,
    draft: Transaction,
    slots: Slots,
) -> None:
    """An event ends the task: no worker is touched for it."""
    _let_go_of_waits(live, wait, draft)
    match report.ends:
        case "success":
            body = report.payload or None
            size = report.size or len(report.payload)
            result = Succeeded(
                live.task_no, live.start_no, report.at, report.at, body, size, report.width
            )
            succeed(live, result, draft, slots)
        case "skipped":
            keep_try(live, TaskState.SKIPPED, None, draft)
            end(live, TaskState.SKIPPED, draft, slots, at=report.at)
        case "":
            fail_or_retry(live, _leads_nowhere(wait), draft, slots)
        case _:
            message = msgspec.msgpack.decode(report.payload, type=str)
            failure = Failure(type="TaskFailedEvent", message=message, reason="raised")
            fail_or_retry(live, failure, draft, slots)


def _leads_nowhere(wait: TriggerInstance) -> Failure:
    message = (
        f"{wait.row.class_path} yielded an event that does not end the task, which has no method "
        "to resume in: name one, or yield a TaskSuccessEvent"
    )
    return Failure(type="TriggerFailed", message=message, reason="trigger_yield")


def _let_go_of_waits(
    live: TaskInstance,
    fired: TriggerInstance | None,
    draft: Transaction,
    *,
    reason: str = "finished",
) -> None:
    """Nothing of what the task waited for is needed any more; its streams go on."""
    for wait in live.waits:
        if wait.stream is not None:
            continue
        if wait is fired:
            draft.drop_wait(wait)
            wait.live = None
        else:
            let_go(wait, reason, draft)
    live.waits = tuple(wait for wait in live.waits if wait.is_handled)


def trigger_ended(
    wait: TriggerInstance, report: TriggerEnded, draft: Transaction, slots: Slots
) -> None:
    """A host let go of a trigger: as it was told, after its event, or because it failed."""
    if report.hosting != wait.hosting:
        return
    if wait.state is TriggerState.ENDING:
        if report.failure is not None and report.failure.reason == "abandoned":
            _tell(wait, report.failure, draft)
        draft.drop_wait(wait)
    elif wait.state is TriggerState.WAITING and report.reason in {REASSIGNED, PAUSED}:
        host(wait, draft)  # as all stands now; what became of the old one is its own affair
    elif wait.state is TriggerState.WAITING and _lacks_code(report):
        _await_code(wait, draft)
    elif wait.state is TriggerState.WAITING and wait.stream is not None:
        _end_stream(wait, report.failure, draft, slots)
    elif wait.state is TriggerState.WAITING:
        failure = report.failure or Failure(
            type="TriggerFailed",
            message=f"{wait.row.class_path} ended without an event",
            reason="trigger_ended",
        )
        _fail(wait, failure, draft, slots)


def _lacks_code(report: TriggerEnded) -> bool:
    return report.failure is not None and report.failure.reason == CODE_MISSING


def _await_code(wait: TriggerInstance, draft: Transaction) -> None:
    """No host has it until its code has come back."""
    versions = tuple(dict.fromkeys((wait.version, wait.run.row.version)))
    draft.rehost(wait)
    unhost(wait)
    draft.memory.lacking_code.add(wait.row.trigger_no)
    draft.effects.append(RestoreCode(versions, wait.row.trigger_no))


def code_restored(entry: CodeRestored, draft: Transaction) -> None:
    """Hand a trigger over again, unless somebody did meanwhile."""
    draft.memory.lacking_code.discard(entry.trigger_no)
    wait = draft.memory.waits.get(entry.trigger_no)
    if wait is not None and wait.state is TriggerState.WAITING and not wait.hosting:
        host(wait, draft)


def _tell(wait: TriggerInstance, failure: Failure, draft: Transaction) -> None:
    """Nobody waits for it any more, so nobody fails of it."""
    facts: dict[str, str | int] = {
        "trigger": wait.row.class_path,
        "trigger_id": wait.row.trigger_no,
        "run_id": wait.run.row.run_id,
        "reason": failure.reason,
    }
    draft.effects.append(Warn(f"a trigger went wrong in letting go: {failure.message}", facts))


def _end_stream(
    wait: TriggerInstance, failure: Failure | None, draft: Transaction, slots: Slots
) -> None:
    live = wait.live
    if wait.is_handled:
        stream_consumer.ended(wait, failure, draft, slots)
        return
    event_stream.close(wait, failure, draft)
    if live is None or not durable_calls.is_after(live, wait) or not event_stream.is_over(wait):
        return  # it learns of it when it has consumed the rest
    if failure is not None:
        _fail(wait, failure, draft, slots)
    elif durable_calls.answer_next(live, wait, draft):
        requeue(live, draft, slots)


def _fail(
    wait: TriggerInstance,
    failure: Failure,
    draft: Transaction,
    slots: Slots,
    *,
    retryable: bool = True,
) -> None:
    """The task that waits fails, without borrowing a slot for it."""
    live = wait.live
    if live is None:
        draft.drop_wait(wait)
        return
    _let_go_of_waits(live, wait, draft)
    unpark(live, draft, "cancelled")
    sensor = live.spec.sensor
    if sensor is not None and sensor.on_error == "ignore" and failure.reason == "trigger":
        look_again(live, draft, slots)  # what it raised stands in the log of the task
    elif sensor is not None and sensor.on_error == "skip":  # as where it looks by itself
        keep_try(live, TaskState.SKIPPED, failure, draft)
        live.failure = failure
        end(live, TaskState.SKIPPED, draft, slots)
    else:
        fail_or_retry(live, failure, draft, slots, retryable=retryable)


def fail_parked(live: TaskInstance, report: Failed, draft: Transaction, slots: Slots) -> None:
    """A coroutine ended though it had said that it waits, and nobody had answered it yet."""
    if live.state is not TaskState.DEFERRED or report.interrupted:
        unpark(live)  # what it waits for goes on, and then it runs again from the top
        return
    _let_go_of_waits(live, None, draft)
    unpark(live)
    fail_or_retry(
        live,
        report.failure,
        draft,
        slots,
        retryable=report.retryable,
        retry_after_us=report.retry_after_us,
    )


def time_out(live: TaskInstance, at: Timestamp, draft: Transaction, slots: Slots) -> None:
    """The deadline of a wait has come."""
    wait = live.wait
    if wait is not None and stream_consumer.has_batch(wait):
        stream_consumer.go_on(live, draft, slots)  # it has waited for others long enough
        return
    if wait is None or at != (live.deadline_at if wait.stream else wait.row.deadline_at):
        return  # it waits for something else by now
    ends_try = live.ends_at is not None and live.ends_at <= max(at, draft.steady)
    if wait.row.ordinal >= 0 and not ends_try:
        durable_calls.time_out(live, draft, slots)
        _let_go_of_waits(live, None, draft, reason="timeout")
        return
    if wait.row.timeout_method and not ends_try:
        _resume_late(live, wait, draft, slots)
        return
    failure = Failure(
        type="TaskTimeout", message=_too_long(live, wait, ends_try=ends_try), reason="timeout"
    )
    _let_go_of_waits(live, None, draft, reason="timeout")
    unpark(live, draft, "timeout")
    fail_or_retry(live, failure, draft, slots)


def _too_long(live: TaskInstance, wait: TriggerInstance, *, ends_try: bool) -> str:
    row = wait.row
    if ends_try:
        seconds = (live.spec.execution_timeout_us or 0) / 1e6
        return (
            f"the try took longer than its execution_timeout of {seconds:g} s; "
            f"{row.class_path} had given no event"
        )
    limit = stream_consumer.timeout_of(wait) if wait.is_handled else None
    if limit is None:
        limit = (row.deadline_at or row.since) - row.since
    return f"{row.class_path} gave no event in {limit / 1e6:g} s"


def _resume_late(
    live: TaskInstance, wait: TriggerInstance, draft: Transaction, slots: Slots
) -> None:
    """The task has a method for a wait that ran out of time: resume there, without an event."""
    let_go(wait, "timeout", draft)
    row = msgspec.structs.replace(
        wait.row,
        trigger_no=draft.numbers.take(),
        state=TriggerState.FIRED,
        next_method=wait.row.timeout_method,
        timeout_method="",
        kwargs=b"\x80",
        deadline_at=None,
        window=0,
    )
    late = TriggerInstance(row, live.run, live)
    draft.new_wait(late)
    live.waits, live.resumed = (), late
    requeue(live, draft, slots)


def lose_host(lost: HostLost, draft: Transaction, slots: Slots) -> None:
    """A trigger host died: nobody is charged but the trigger whose code did it."""
    isolation.blame(lost, draft)
    memory = draft.memory
    culprit = memory.waits.get(lost.culprit)  # folded or not
    memory.parking.lose(lost.role, memory.hosting)
    for wait in list(memory.waits.objects.values()):
        if wait.role != lost.role:
            continue
        if wait.state is TriggerState.ENDING:
            draft.drop_wait(wait)
        elif wait.state is TriggerState.WAITING:
            unhost(wait)
    if culprit is None or culprit.role != lost.role or culprit.state is not TriggerState.WAITING:
        return
    failure = isolation.failure_of_culprit(culprit.row.class_path, lost, memory)
    if failure is not None and culprit.stream is not None:
        _end_stream(culprit, failure, draft, slots)
    elif failure is not None:
        _fail(culprit, failure, draft, slots)


def charge(wait: TriggerInstance, failure: Failure, draft: Transaction, slots: Slots) -> None:
    """A trigger has killed the daemon: the task that waits fails for good."""
    live = wait.live
    if live is not None:
        alert(live.run, live.position, failure, draft)
    if wait.stream is not None:
        _end_stream(wait, failure, draft, slots)
    else:
        _fail(wait, failure, draft, slots, retryable=False)


def stop(live: TaskInstance, reason: str, draft: Transaction, slots: Slots) -> None:
    """Take a task away from wherever it is; its row is the caller's business."""
    for wait in live.waits:
        if wait.state is TriggerState.WAITING and wait.stream is None:
            let_go(wait, reason, draft)
    unpark(live, draft, reason)
    if live.worker >= 0 or live.is_hosted:
        draft.effects.append(stop_of(live, live.start_no, reason))
    slots.release(live)
