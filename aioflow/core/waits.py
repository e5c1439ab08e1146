"""The life of a trigger: stored with its task's move, hosted, fired once, let go.

``waiting`` -> ``fired`` -> deleted when the work it resumed is over; or ``waiting`` ->
``ending`` -> deleted when its host has let go of it. A report of another hosting than the
present one is late: the trigger lives elsewhere by now.
"""

from __future__ import annotations

from collections.abc import Iterable

from aioflow.core.attempt import fail_or_retry, requeue
from aioflow.core.draft import Draft
from aioflow.core.memory import Live, Memory, WaitRecord
from aioflow.core.slots import Slots
from aioflow.inputs import EndHosting, HostTrigger, StopTry
from aioflow.messages import Deferred, End, Fired, Host, TriggerEnded
from aioflow.model import Failure, Instant, TaskState, TriggerNo, TriggerState
from aioflow.rows import TriggerRow

__all__ = ("defer", "fire", "host_all", "let_go", "lose_host", "stop", "time_out", "trigger_ended")


def defer(live: Live, report: Deferred, draft: Draft, slots: Slots) -> None:
    """A task gives its place back and waits for a trigger."""
    if live.wait is not None and live.wait.state is TriggerState.FIRED:
        draft.drop_wait(live.wait)
    deadline = None if report.timeout_us is None else draft.now + report.timeout_us
    limit = live.spec.execution_timeout_us
    if limit is not None and live.started_at is not None:
        end_of_try = live.started_at + limit
        deadline = end_of_try if deadline is None else min(deadline, end_of_try)
    row = TriggerRow(
        trigger_no=draft.numbers.take(),
        task_no=live.task_no,
        run_no=live.run.run_no,
        state=TriggerState.WAITING,
        class_path=report.class_path,
        kwargs=report.kwargs,
        since=draft.now,
        deadline_at=deadline,
        next_method=report.next_method,
        next_kwargs=report.next_kwargs,
    )
    wait = live.wait = WaitRecord(row, live.run, live)
    draft.new_wait(wait)
    draft.move(live, TaskState.DEFERRED)
    slots.release(live)
    slots.unblock(live)
    draft.wake_task(live, deadline)
    _host(wait, draft)


def _host(wait: WaitRecord, draft: Draft) -> None:
    """Hand a waiting trigger to the host, if there is one and it can be read."""
    row, run = wait.row, wait.run.row
    if "triggers" not in draft.memory.hosts_up or row.kwargs is None:
        return
    wait.hosting = draft.memory.next_hosting()
    draft.effects.append(
        HostTrigger(
            Host(
                trigger_no=row.trigger_no,
                hosting=wait.hosting,
                run_no=run.run_no,
                task_no=row.task_no,
                version=run.version,
                class_path=row.class_path,
                kwargs=row.kwargs,
                since=row.since,
                logical_date=run.logical_date,
            )
        )
    )


def host_all(waits: Iterable[WaitRecord], draft: Draft) -> None:
    """A trigger host is ready: hand it everything that waits, oldest first."""
    for wait in sorted(waits, key=lambda wait: wait.row.trigger_no):
        if wait.state is TriggerState.WAITING and wait.live is not None:
            _host(wait, draft)


def fire(wait: WaitRecord, report: Fired, draft: Draft, slots: Slots) -> None:
    """A trigger's first event resumes its task and ends the trigger. Later ones are late."""
    live = wait.live
    if report.hosting != wait.hosting or wait.state is not TriggerState.WAITING or live is None:
        return
    draft.move_wait(wait, TriggerState.FIRED, event=report.payload, key=report.key)
    requeue(live, draft, slots)


def trigger_ended(wait: WaitRecord, report: TriggerEnded, draft: Draft, slots: Slots) -> None:
    """A host let go of a trigger: as it was told, after its event, or because it failed."""
    if report.hosting != wait.hosting:
        return
    if wait.state is TriggerState.ENDING:
        draft.drop_wait(wait)
    elif wait.state is TriggerState.WAITING:
        failure = report.failure or Failure(
            type="TriggerFailed",
            message=f"{wait.row.class_path} ended without an event",
            reason="trigger_ended",
        )
        _fail(wait, failure, draft, slots)


def _fail(wait: WaitRecord, failure: Failure, draft: Draft, slots: Slots) -> None:
    """The task that waits fails, without borrowing a slot for it."""
    live = wait.live
    draft.drop_wait(wait)
    if live is not None:
        live.wait = None
        fail_or_retry(live, failure, draft, slots)


def time_out(live: Live, at: Instant, draft: Draft, slots: Slots) -> None:
    """The deadline of a wait has come."""
    wait = live.wait
    if wait is None or wait.row.deadline_at != at:
        return  # it waits for something else by now
    seconds = (draft.now - wait.row.since) / 1e6
    failure = Failure(
        type="TaskTimeout",
        message=f"{wait.row.class_path} gave no event in {seconds:g} s",
        reason="timeout",
    )
    let_go(wait, "timeout", draft)
    live.wait = None
    fail_or_retry(live, failure, draft, slots)


def let_go(wait: WaitRecord, reason: str, draft: Draft) -> None:
    """The task no longer waits: end the hosting, and keep the row until that is confirmed."""
    if wait.hosting == 0 or "triggers" not in draft.memory.hosts_up:
        draft.drop_wait(wait)
        return
    draft.move_wait(wait, TriggerState.ENDING)
    wait.live = None
    draft.effects.append(EndHosting(End(wait.row.trigger_no, wait.hosting, reason)))


def lose_host(
    memory: Memory, culprit: TriggerNo, failure: Failure, draft: Draft, slots: Slots
) -> None:
    """The trigger host died: nobody is charged but the trigger whose code was running."""
    for wait in list(memory.waits.values()):
        if wait.state is TriggerState.ENDING:
            draft.drop_wait(wait)
        elif wait.state is TriggerState.WAITING:
            wait.hosting = 0
            if wait.row.trigger_no == culprit:
                _fail(wait, failure, draft, slots)


def stop(live: Live, reason: str, draft: Draft, slots: Slots) -> None:
    """Take a task away from wherever it is; its row is the caller's business."""
    if live.wait is not None and live.wait.state is TriggerState.WAITING:
        let_go(live.wait, reason, draft)
    if live.worker >= 0 or live.is_hosted:
        draft.effects.append(
            StopTry(live.spec.body, live.worker, live.task_no, live.start_no, reason)
        )
    slots.release(live)
