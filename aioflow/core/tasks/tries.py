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


def start(grant: Grant, draft: Transaction) -> None:
    """Commit a task to the place it was granted, and order its start."""
    live = grant.live
    if live.state is TaskState.PENDING:
        live.queued_at = draft.now
        draft.move(live, TaskState.QUEUED)
        live.run.live[live.task_no] = live
        draft.memory.live[live.task_no] = live
    live.start_no += 1
    draft.memory.unclaimed.discard(live.task_no)
    if live.spec.sensor is not None:
        _first_look(live, draft)
    if grant.is_claimed or live.state is TaskState.SENSING:
        draft.touch(live)
    elif live.spec.sensor is not None and live.spec.body is Body.COROUTINE:
        draft.move(live, TaskState.SENSING)
    else:
        draft.move(live, TaskState.RUNNING)
    if live.started_at is None and not grant.is_claimed:
        begin_try(live, draft)
    ordered = order(live, draft.steady)
    draft.effects.append(
        StartTry(
            live.spec.body,
            grant.worker,
            live.run.info,
            ordered,
            grant.is_claimed,
            ordered.timeout_us,
            int(live.run.durations[live.position]),
            _resumed(live),
            live.run.async_role,
            live.spec.execution_timeout_us,
        )
    )


def begin_try(live: TaskInstance, draft: Transaction, started_at: Timestamp | None = None) -> None:
    """Note when a try began, and when it has had its time.

    Args:
        started_at: What a child says, by the wall clock; now by default. Where that is not within
            the last minute the clock has stepped meanwhile, and the time is counted from now.
    """
    live.started_at = draft.now if started_at is None else started_at
    limit = time_limit(live.spec)
    if limit is not None:
        ago = draft.now - live.started_at
        live.ends_at = draft.steady + limit - (ago if 0 <= ago <= _REPORTED_WITHIN_US else 0)


def _resumed(live: TaskInstance) -> ResumeCoroutine | None:
    """Return how a parked coroutine goes on; it is parked no longer."""
    if not live.parked_start:
        return None
    (answer, failure), parked = live.answer, live.parked_start
    live.parked_start, live.answer = 0, (None, None)
    return ResumeCoroutine(live.run.run_no, live.task_no, parked, live.start_no, answer, failure)


def _first_look(live: TaskInstance, draft: Transaction) -> None:
    """A sensor's time begins with its first look, and is armed once: a length, not an hour."""
    sensor = live.spec.sensor
    assert sensor is not None  # noqa: S101 - the caller looked
    if live.deadline_at is None:
        live.deadline_at = draft.steady + sensor.timeout_us
        draft.wake_task(live, live.deadline_at)


def keep_try(
    live: TaskInstance, state: TaskState, failure: Failure | None, draft: Transaction
) -> None:
    """Write the row of a try that ended in anything but a first success."""
    if live.state in {TaskState.RETRYING, TaskState.QUEUED}:
        return  # no start is under way: the last one has its row
    draft.batch.new_tries.append(
        TryRow(
            task_no=live.task_no,
            start_no=live.start_no,
            run_no=live.run.run_no,
            try_number=live.try_number,
            state=state,
            started_at=live.started_at,
            ended_at=max(draft.now, live.started_at or draft.now),
            failure=failure,
        )
    )


def succeed(live: TaskInstance, report: Succeeded, draft: Transaction, slots: Slots) -> None:
    """A try returned: keep its result, for the rows and for the tasks that take it."""
    run, position = live.run, live.position
    exhausted = iterations.exhausted(live) if report.again else None
    if exhausted is not None:
        fail(live, exhausted, draft, slots)
        return
    if live.spec.streams:
        given = run.items.get(live.task_no)
        report = replace(report, width=0 if given is None else given.count)
    if report.size or report.width is not None:
        draft.batch.results.append(
            ResultRow(
                task_no=live.task_no,
                run_no=run.run_no,
                start_no=live.start_no,
                body=report.body,
                size=report.size,
                width=report.width,
            )
        )
    if live.map_index < 0:
        if run.plan.is_taken[position] and _keep_at_hand(run, position, report):
            run.known[position] = 1
        if report.width is not None:
            run.widths[position] = report.width
            run.source_starts[position] = live.start_no
    if live.try_number > 1:
        keep_try(live, TaskState.SUCCESS, None, draft)
        live.failure = None
    end(
        live,
        TaskState.SUCCESS,
        draft,
        slots,
        at=report.at,
        skips=report.skips,
        again=report.again,
    )
    if live.spec.outlets:
        named_events.announce(live, draft)


def _keep_at_hand(run: Run, position: int, report: Succeeded) -> bool:
    if report.size == 0 and report.width is None:
        return True  # None
    if report.body is None or len(report.body) > AT_HAND_BYTES:
        return False
    run.results[position] = report.body
    return True


def fail_or_retry(
    live: TaskInstance,
    failure: Failure,
    draft: Transaction,
    slots: Slots,
    *,
    retryable: bool = True,
    retry_after_us: int | None = None,
) -> None:
    """A try failed: run again later, as its policy says, or fail for good."""
    at = None
    if retryable and failure.reason != retry.TRIGGER_FAIL:
        at = retry.next_try_at(
            live.spec.retry,
            try_number=live.try_number,
            now=draft.steady,
            chance=draft.chance(),
            retry_after_us=retry_after_us,
        )
    over = None if at is None else retry_budget.spend(live, failure, draft)
    if at is None or over is not None:
        fail(live, over or failure, draft, slots)
        return
    keep_try(live, TaskState.FAILED, failure, draft)
    live.failure = failure
    live.due_at = at
    draft.move(live, TaskState.RETRYING)
    _rewind(live, draft)
    slots.release(live)
    slots.unblock(live)
    draft.wake_task(live, at)


def fail(live: TaskInstance, failure: Failure, draft: Transaction, slots: Slots) -> None:
    """A task failed for good."""
    keep_try(live, TaskState.FAILED, failure, draft)
    live.failure = failure
    if failure.reason in {"fanout_cap", "sensor_timeout"}:
        alert(live.run, live.position, failure, draft)
    end(live, TaskState.FAILED, draft, slots)


def cut_short(live: TaskInstance, failure: Failure, draft: Transaction, slots: Slots) -> None:
    """The process that a task shared died: run again, unless the task is what killed it.

    However often that happens, a task is not charged for what ran beside it; see ``trials``.
    """
    guilt = crash_trials.guilt(live.task_no, draft.memory)
    if guilt is None:
        interrupt(live, failure, None, draft, slots)
    else:
        alert(live.run, live.position, guilt, draft)
        interrupt(live, guilt, 0, draft, slots)


def interrupt(
    live: TaskInstance, failure: Failure, limit: int | None, draft: Transaction, slots: Slots
) -> None:
    """Infrastructure cut a start short: run again at once, unless that happens too often.

    Args:
        limit: Interruptions that a task survives; ``None`` if it survives any number.
    """
    live.interruptions += 1
    unpark(live)
    live.started_at = live.ends_at = None  # the time it lost is not its own
    slots.release(live)
    slots.unblock(live)
    if limit is not None and live.interruptions > limit:
        message = f"interrupted {live.interruptions} times; the last time: {failure.message}"
        fail(live, Failure(type=failure.type, message=message, reason="interrupted"), draft, slots)
        return
    requeue(live, draft, slots)


def await_code(live: TaskInstance, failure: Failure, draft: Transaction, slots: Slots) -> None:
    """The code of its version was not on the disk: the same try, when that has come back."""
    live.failure = failure
    live.due_at = draft.steady + CODE_AGAIN_US
    draft.move(live, TaskState.RETRYING)
    unpark(live)
    slots.release(live)
    slots.unblock(live)
    draft.wake_task(live, live.due_at)
    draft.effects.append(RestoreCode((live.run.row.version,)))


def requeue(live: TaskInstance, draft: Transaction, slots: Slots) -> None:
    """Let a task wait for its slot again, within the same try."""
    if live.state is not TaskState.QUEUED:
        draft.move(live, TaskState.QUEUED)
    live.due_at = None
    live.queued_at = draft.now
    slots.offer(live)


def look_again(
    live: TaskInstance, draft: Transaction, slots: Slots, *, recheck_in_us: int | None = None
) -> None:
    """A sensor found nothing, or ignores what went wrong: put it aside until its next look.

    That begins at the beginning, whatever this one had waited for.
    """
    sensor = live.spec.sensor
    assert sensor is not None  # noqa: S101 - reported by sensors only
    forget_event(live, draft)
    _first_look(live, draft)
    live.looks += 1
    live.due_at = retry.sensor_next_look(
        sensor,
        looks=live.looks,
        now=draft.steady,
        recheck_in_us=recheck_in_us,
        deadline=live.deadline_at,
    )
    if live.state is TaskState.SENSING:
        draft.touch(live)
    else:
        draft.move(live, TaskState.SENSING)
    slots.release(live)
    slots.unblock(live)
    draft.wake_task(live, live.due_at)


def wake_due(live: TaskInstance, at: Timestamp, draft: Transaction, slots: Slots) -> None:
    """An instant armed for a retry, or for a sensor's next look, has come."""
    if live.due_at != at:
        return  # it is past that
    if live.state is TaskState.RETRYING:
        if live.failure is not None and live.failure.reason == CODE_MISSING:
            live.failure = None
        else:
            live.try_number += 1
        live.started_at = live.ends_at = None
        requeue(live, draft, slots)
    elif live.state is TaskState.SENSING:
        requeue(live, draft, slots)


def time_out_sensor(live: TaskInstance, draft: Transaction, slots: Slots) -> None:
    """A sensor looked for as long as it may. Never retried; the people on call are told."""
    sensor = live.spec.sensor
    assert sensor is not None  # noqa: S101 - only sensors sense
    failure = Failure(
        type="SensorTimeout",
        message=f"not ready after {sensor.timeout_us / 1e6:g} s",
        reason="sensor_timeout",
    )
    if sensor.on_timeout == "skip":
        keep_try(live, TaskState.SKIPPED, failure, draft)
        live.failure = failure
        alert(live.run, live.position, failure, draft)
        end(live, TaskState.SKIPPED, draft, slots)
    else:
        fail(live, failure, draft, slots)


def forget_event(live: TaskInstance, draft: Transaction) -> None:
    """What the task waited for, and the event it resumed from, are over.

    A stream whose events its operator takes goes on: no try begins before it.
    """
    known = live.waits if live.resumed is None else (*live.waits, live.resumed)
    for wait in known:
        if wait.state is TriggerState.FIRED and not wait.stream:
            draft.drop_wait(wait)
    live.waits, live.resumed = (), next((wait for wait in known if wait.is_handled), None)
    if live.spec.sensor is None:  # that of a sensor is one for all its tries
        live.deadline_at = None


def _rewind(live: TaskInstance, draft: Transaction) -> None:
    """The next try begins at the beginning.

    It finds what was recorded there before the first call that failed, or had no answer.
    """
    unpark(live)
    first = live.recorded - bool(live.open_kind) if live.first_failed < 0 else live.first_failed
    begins_anew = live.resumed is not None and not live.resumed.is_handled
    forget_calls(live, 0 if begins_anew else first, draft)
    forget_event(live, draft)


def drop_record(
    live: TaskInstance, report: RecordDropped, draft: Transaction, slots: Slots
) -> None:
    """The code makes other calls than those recorded; its author lets go of the old ones."""
    if live.state is not TaskState.RUNNING:
        return
    forget_calls(live, report.first, draft)
    if report.starts_over:
        slots.release(live)
        slots.unblock(live)
        requeue(live, draft, slots)


def forget_calls(live: TaskInstance, first: int, draft: Transaction) -> None:
    """Durable calls from ``first`` on were never made; the streams they opened are let go."""
    for ordinal, wait in live.streams.items():
        if ordinal >= first:
            let_go(wait, "finished", draft)
    live.streams = {at: wait for at, wait in live.streams.items() if at < first}
    draft.drop_records(live, first)


def stop_of(live: TaskInstance, start_no: StartNo, reason: str) -> StopTry:
    """Return the effect that ends one start of a task, wherever its process has it."""
    role = live.run.async_role
    return StopTry(live.spec.body, live.worker, live.task_no, start_no, reason, role)


def unpark(live: TaskInstance, draft: Transaction | None = None, reason: str = "") -> None:
    """A coroutine will not be resumed where it is parked; with a draft its host is told so."""
    if live.parked_start and draft is not None:
        draft.effects.append(stop_of(live, live.parked_start, reason))
    live.parked_start, live.answer = 0, (None, None)
