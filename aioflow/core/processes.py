"""Processes come and go: hosts up or lost, a restart, a stop; and what else concerns the node."""

from __future__ import annotations

from aioflow.core import dag_triggers, event_runs, quarantine, trials, waits
from aioflow.core.attempt import cut_short, fail_or_retry, interrupt, unpark
from aioflow.core.draft import Draft
from aioflow.core.draining import recall_claims
from aioflow.core.hosting import hand_over, host_all
from aioflow.core.rehosting import REASSIGNED
from aioflow.core.restart import restarted
from aioflow.core.retry import INTERRUPTION_LIMIT_SHARED
from aioflow.core.slots import Slots
from aioflow.effects import StopTry
from aioflow.inputs import Drain, HandOver, HostLost, HostUp, Noticed, Restarted, Stalled
from aioflow.model import Failure, TaskState

__all__ = ("take",)


def take(
    entry: HostUp | HostLost | HandOver | Stalled | Restarted | Drain | Noticed,
    draft: Draft,
    slots: Slots,
) -> None:
    """Take word of a process."""
    match entry:
        case Drain():
            _drain(entry, draft, slots)
        case HostUp():
            _host_up(entry.role, draft)
        case HostLost():
            _host_lost(entry, draft, slots)
        case HandOver():
            hand_over(entry, draft)
        case Stalled():
            quarantine.stalled(entry, draft)
        case Restarted():
            restarted(entry, draft, slots)
        case Noticed():
            draft.owing.alert(entry.reason, entry.message[:1_000], run_id="")


def _host_up(role: str, draft: Draft) -> None:
    draft.memory.hosts_up.add(role)
    if role != "async":
        host_all(role, draft)
        dag_triggers.host_all(role, draft)


def _host_lost(lost: HostLost, draft: Draft, slots: Slots) -> None:
    memory = draft.memory
    memory.hosts_up.discard(lost.role)
    if lost.role != "async":
        waits.lose_host(lost, draft, slots)
        event_runs.lose_host(lost, draft)
        return
    memory.parking.lose(lost.role, memory.hosting)
    for live in memory.live.objects.values():
        unpark(live)
    charge = None
    if lost.culprit in memory.live:
        charge = memory.suspects.failure(lost, memory.live, memory.waits, memory.standing)
    hosted = [live for live in memory.live.objects.values() if live.is_hosted]
    if lost.culprit not in memory.live:  # else it is known whose code was running
        running = [live for live in hosted if live.state is TaskState.RUNNING]
        trials.crashed(trials.ASYNC, running, draft)
    for live in hosted:
        # Ordered while this was on its way, it was begun by the next process: not there, too.
        stray = StopTry(live.spec.body, -1, live.task_no, live.start_no, REASSIGNED)
        draft.effects.append(stray)
        if live.task_no == lost.culprit and charge is not None:
            fail_or_retry(live, charge, draft, slots)
        elif live.state is TaskState.RUNNING:
            cut_short(live, lost.failure, draft, slots)
        else:  # parked sensors are never charged
            slots.release(live)
            draft.displace(live)
            slots.offer(live)


def _drain(drain: Drain, draft: Draft, slots: Slots) -> None:
    """Start nothing more; when the time of grace is over, cut short what still runs."""
    slots.is_open = False
    recall_claims(draft, slots)
    if not drain.is_over:
        return
    trials.stop(draft)
    failure = Failure(type="Interrupted", message="the daemon was stopped", reason="interrupted")
    for live in list(draft.memory.live.objects.values()):
        if live.state is TaskState.RUNNING:
            waits.stop(live, "shutdown", draft, slots)
            interrupt(live, failure, INTERRUPTION_LIMIT_SHARED, draft, slots)
