"""Processes come and go: hosts up or lost, a restart, a stop; and what else concerns the node."""

from __future__ import annotations

from aioflow.core import crash_trials
from aioflow.core.draining import recall_claims
from aioflow.core.runs.restart import restarted
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.child_roles import ASYNC, is_own, kind_of
from aioflow.core.state.task_instance import TaskInstance
from aioflow.core.tasks.retry import INTERRUPTION_LIMIT_SHARED
from aioflow.core.tasks.tries import cut_short, fail_or_retry, interrupt, requeue, stop_of, unpark
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import dag_triggers, event_runs, isolation, lifecycle
from aioflow.core.triggers.assignment import (
    REASSIGNED,
    hand_on,
    hand_over,
    host_all,
    want_own_hosts,
)
from aioflow.model.states import Failure, TaskState
from aioflow.protocol.inputs import (
    AlertRaised,
    AssignTriggers,
    Drain,
    HostLost,
    HostUp,
    LoopBlocked,
    Restarted,
)

__all__ = ("take",)


def take(
    entry: HostUp | HostLost | AssignTriggers | LoopBlocked | Restarted | Drain | AlertRaised,
    draft: Transaction,
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
        case AssignTriggers():
            hand_over(entry, draft)
        case LoopBlocked():
            isolation.stalled(entry, draft)
        case Restarted():
            restarted(entry, draft, slots)
        case AlertRaised():
            draft.owing.alert(entry.reason, entry.message[:1_000], run_id="")


def _host_up(role: str, draft: Transaction) -> None:
    draft.memory.hosts_up.add(role)
    if kind_of(role) != ASYNC:
        host_all(role, draft)
        dag_triggers.host_all(role, draft)


def _host_lost(lost: HostLost, draft: Transaction, slots: Slots) -> None:
    memory = draft.memory
    memory.hosts_up.discard(lost.role)
    if kind_of(lost.role) != ASYNC:
        lifecycle.lose_host(lost, draft, slots)
        hand_on(lost.role, draft)
        event_runs.lose_host(lost, draft)
        if lost.was_dismissed and is_own(lost.role):
            # It does not come back by itself, and may have been handed something.
            want_own_hosts(draft)
            dag_triggers.place_all(draft)
        return
    memory.parking.lose(lost.role, memory.hosting)
    own = [one for one in memory.live.objects.values() if one.run.async_role == lost.role]
    for live in own:
        unpark(live)
    charge = None
    if lost.culprit in memory.live:
        charge = memory.suspects.failure(lost, memory.live, memory.waits, memory.standing)
    hosted = [live for live in own if live.is_hosted]
    if lost.culprit not in memory.live and not lost.was_dismissed:  # else it is known what ended it
        running = [live for live in hosted if live.state is TaskState.RUNNING]
        crash_trials.crashed(lost.role, running, draft)
    for live in hosted:
        # Ordered while this was on its way, it was begun by the next process: not there, too.
        draft.effects.append(stop_of(live, live.start_no, REASSIGNED))
        if live.task_no == lost.culprit and charge is not None:
            fail_or_retry(live, charge, draft, slots)
        elif live.state is TaskState.RUNNING and lost.was_dismissed:
            _give_back(live, draft, slots)  # it never came there
        elif live.state is TaskState.RUNNING:
            cut_short(live, lost.failure, draft, slots)
        else:  # parked sensors are never charged
            slots.release(live)
            draft.displace(live)
            slots.offer(live)


def _give_back(live: TaskInstance, draft: Transaction, slots: Slots) -> None:
    """A try was handed to a process that had ended before it came there: it has not begun."""
    slots.release(live)
    slots.unblock(live)
    live.started_at = live.ends_at = None
    requeue(live, draft, slots)


def _drain(drain: Drain, draft: Transaction, slots: Slots) -> None:
    """Start nothing more; when the time of grace is over, cut short what still runs."""
    slots.is_open = False
    recall_claims(draft, slots)
    if not drain.is_over:
        return
    crash_trials.stop(draft)
    failure = Failure(type="Interrupted", message="the daemon was stopped", reason="interrupted")
    for live in list(draft.memory.live.objects.values()):
        if live.state is TaskState.RUNNING:
            lifecycle.stop(live, "shutdown", draft, slots)
            interrupt(live, failure, INTERRUPTION_LIMIT_SHARED, draft, slots)
