"""One try of a task: how it starts, how it ends badly, and when it goes on."""

from __future__ import annotations

from typing import TypeAlias

from aioflow.core import retry
from aioflow.core.draft import Draft
from aioflow.core.memory import Live
from aioflow.core.run import alert, end
from aioflow.core.slots import Grant, Slots
from aioflow.inputs import StartTry
from aioflow.messages import Start
from aioflow.model import Body, Failure, Instant, MapSpec, TaskState, TriggerState
from aioflow.rows import TryRow

__all__ = (
    "fail",
    "fail_or_retry",
    "interrupt",
    "keep_try",
    "look_again",
    "requeue",
    "start",
    "time_out_sensor",
    "wake_due",
)

_Items: TypeAlias = tuple[tuple[tuple[int, int, int], ...], tuple[int, ...]]
"""Where a child finds its items: ``(sources, widths)`` of its ``Start``."""

_NO_ITEMS: _Items = ((), ())


def start(grant: Grant, draft: Draft) -> None:
    """Commit a task to the place it was granted, and order its start."""
    live = grant.live
    if live.state is TaskState.PENDING:
        live.queued_at = draft.now
        draft.move(live, TaskState.QUEUED)
        live.run.live[live.task_no] = live
        draft.memory.live[live.task_no] = live
    live.start_no += 1
    if live.spec.sensor is not None:
        _first_look(live, draft)
    if grant.is_claimed or live.state is TaskState.SENSING:
        draft.touch(live)
    elif live.spec.sensor is not None and live.spec.body is Body.COROUTINE:
        draft.move(live, TaskState.SENSING)
    else:
        draft.move(live, TaskState.RUNNING)
    if live.started_at is None and not grant.is_claimed:
        live.started_at = draft.now
    draft.effects.append(
        StartTry(
            live.spec.body,
            grant.worker,
            live.run.info,
            _order(live),
            grant.is_claimed,
            _time_left(live, draft.now),
            int(live.run.durations[live.position]),
        )
    )


def _first_look(live: Live, draft: Draft) -> None:
    """A sensor's time begins with its first look, and is armed once: a length, not an hour."""
    sensor = live.spec.sensor
    assert sensor is not None  # noqa: S101 - the caller looked
    if live.deadline_at is None:
        live.deadline_at = draft.now + sensor.timeout_us
        draft.wake_task(live, live.deadline_at)


def _order(live: Live) -> Start:
    run, spec, wait = live.run, live.spec, None if live.wait is None else live.wait.row
    at_hand = tuple(p for p in spec.argument_parents if run.known[p])
    sources, widths = _NO_ITEMS if spec.mapped is None else _items(live, spec.mapped)
    return Start(
        run_no=run.run_no,
        task_no=live.task_no,
        start_no=live.start_no,
        position=live.position,
        map_index=live.map_index,
        try_number=live.try_number,
        method="" if wait is None else wait.next_method,
        kwargs=None if wait is None else wait.next_kwargs,
        event=None if wait is None else wait.event,
        results={p: run.results[p] for p in at_hand if p in run.results},
        at_hand=at_hand,
        sources=sources,
        widths=widths,
    )


def _items(live: Live, mapped: MapSpec) -> _Items:
    run, group = live.run, live.run.groups[live.position]
    if group.origin is None:
        first = run.row.first_task_no
        sources = tuple(
            (source.position, first + source.position, run.source_starts[source.position])
            for source in mapped.sources
            if source.position >= 0
        )
        widths = tuple(
            source.width if source.position < 0 else run.widths[source.position]
            for source in mapped.sources
        )
        group.origin = (sources, widths)
    return group.origin


def _time_left(live: Live, now: Instant) -> int | None:
    """The try's time runs on while it is deferred; a microsecond is left to say so."""
    limit = live.spec.execution_timeout_us
    if limit is None or live.started_at is None:
        return limit
    return max(1, limit - (now - live.started_at))


def keep_try(live: Live, state: TaskState, failure: Failure | None, draft: Draft) -> None:
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


def fail_or_retry(
    live: Live,
    failure: Failure,
    draft: Draft,
    slots: Slots,
    *,
    retryable: bool = True,
    retry_after_us: int | None = None,
) -> None:
    """A try failed: run again later, as its policy says, or fail for good."""
    at = None
    if retryable:
        at = retry.next_try_at(
            live.spec.retry,
            try_number=live.try_number,
            now=draft.now,
            chance=draft.chance(),
            retry_after_us=retry_after_us,
        )
    if at is None:
        fail(live, failure, draft, slots)
        return
    keep_try(live, TaskState.FAILED, failure, draft)
    live.failure = failure
    live.due_at = at
    draft.move(live, TaskState.RETRYING)
    _forget_event(live, draft)
    slots.release(live)
    slots.unblock(live)
    draft.wake_task(live, at)


def fail(live: Live, failure: Failure, draft: Draft, slots: Slots) -> None:
    """A task failed for good."""
    keep_try(live, TaskState.FAILED, failure, draft)
    live.failure = failure
    if failure.reason in {"fanout_cap", "sensor_timeout"}:
        alert(live.run, live.position, failure, draft)
    end(live, TaskState.FAILED, draft, slots)


def interrupt(live: Live, failure: Failure, limit: int, draft: Draft, slots: Slots) -> None:
    """Infrastructure cut a start short: run again at once, unless that happens too often."""
    live.interruptions += 1
    live.started_at = None  # the time it lost is not its own
    slots.release(live)
    slots.unblock(live)
    if live.interruptions > limit:
        message = f"interrupted {live.interruptions} times; the last time: {failure.message}"
        fail(live, Failure(type=failure.type, message=message, reason="interrupted"), draft, slots)
        return
    requeue(live, draft, slots)


def requeue(live: Live, draft: Draft, slots: Slots) -> None:
    """Let a task wait for its slot again, within the same try."""
    if live.state is not TaskState.QUEUED:
        draft.move(live, TaskState.QUEUED)
    live.due_at = None
    live.queued_at = draft.now
    slots.offer(live)


def look_again(live: Live, draft: Draft, slots: Slots, *, recheck_in_us: int | None = None) -> None:
    """A sensor that looks from a slot found nothing: put it aside until its next look."""
    sensor = live.spec.sensor
    assert sensor is not None  # noqa: S101 - reported by sensors only
    assert live.deadline_at is not None  # noqa: S101 - set at its first look
    live.looks += 1
    live.due_at = retry.sensor_next_look(
        sensor,
        looks=live.looks,
        now=draft.now,
        recheck_in_us=recheck_in_us,
        deadline=live.deadline_at,
    )
    draft.move(live, TaskState.SENSING)
    slots.release(live)
    slots.unblock(live)
    draft.wake_task(live, live.due_at)


def wake_due(live: Live, at: Instant, draft: Draft, slots: Slots) -> None:
    """An instant armed for a retry, or for a sensor's next look, has come."""
    if live.due_at != at:
        return  # it is past that
    if live.state is TaskState.RETRYING:
        live.try_number += 1
        live.started_at = None
        requeue(live, draft, slots)
    elif live.state is TaskState.SENSING:
        requeue(live, draft, slots)


def time_out_sensor(live: Live, draft: Draft, slots: Slots) -> None:
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


def _forget_event(live: Live, draft: Draft) -> None:
    """A new try begins at the beginning: the event this one resumed from is over."""
    if live.wait is not None and live.wait.state is TriggerState.FIRED:
        draft.drop_wait(live.wait)
    live.wait = None
