"""Triggers that start DAG runs: their assignment to hosts, and the version of their code.

Each DAG whose file declares a trigger has one such trigger. If the declaration is removed, the row
of the trigger is retained, so that its position and its known keys are still available if it is
declared again. The trigger runs the code of the DAG's newest version. A trigger that ends or fails
is assigned again after a delay. A trigger whose code is missing on disk is assigned again once the
code is restored.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from aioflow.core.crash_trials import bar
from aioflow.core.state.child_roles import QUARANTINE, TRIGGERS
from aioflow.core.state.crash_trials import is_barred, may_host
from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.memory import Memory
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.assignment import is_stopped, request_host, role_of
from aioflow.model.dag import DagSpec
from aioflow.model.ids import TriggerNo
from aioflow.model.states import CODE_MISSING, Failure
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import ASSETS, DagTriggerRow, DagTriggerSpec
from aioflow.protocol.commands import StartTrigger, StopTrigger
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger, RestoreCode, WakeAt
from aioflow.protocol.inputs import TimerFired
from aioflow.protocol.reports import TriggerEnded

__all__ = (
    "FIRST_WAIT_US",
    "LONGEST_WAIT_US",
    "REFUSED",
    "WINDOW",
    "adopt",
    "charge",
    "code_restored",
    "ended",
    "fail",
    "host_all",
    "host_role",
    "hosted_before",
    "retry",
    "spec_of",
    "update_assignment",
    "update_assignment_of",
    "update_assignments",
    "wake",
)

WINDOW = 64
"""Maximum number of events that the trigger of a DAG may be ahead of the stored events."""

FIRST_WAIT_US, LONGEST_WAIT_US = 1_000_000, 300_000_000
"""First and longest delay until an ended trigger is assigned again.

The delay doubles each time the trigger ends without having yielded an event.
"""

REFUSED = "refused"
"""Failure reason of a trigger whose event could not be processed."""

_GONE, _PAUSED, _REASSIGNED = "finished", "paused", "reassigned"


def adopt(spec: DagSpec, tx: Transaction) -> None:
    """Store the class and fields of a DAG's trigger as its file declares them."""
    said = spec.trigger
    if said is None or said.kwargs is None:
        return
    one = tx.memory.dag_triggers.of(spec.dag_id)
    if one is None:
        row = DagTriggerRow(
            trigger_no=tx.numbers.take(),
            dag_id=spec.dag_id,
            class_path=said.class_path,
            kwargs=said.kwargs,
            since=tx.now,
        )
        tx.dag_triggers.add(DagTrigger(row))
        return
    row = one.row
    if (row.class_path, row.kwargs) == (said.class_path, said.kwargs):
        return
    tx.dag_triggers.note(one)
    one.failures, one.failure, one.retry_at = 0, None, None
    if row.class_path != said.class_path:  # an event of the old class means nothing
        row = msgspec.structs.replace(row, since=tx.now, event=None, event_key=None)
    one.row = msgspec.structs.replace(row, class_path=said.class_path, kwargs=said.kwargs)
    tx.memory.dag_triggers.index(one)


def spec_of(one: DagTrigger, memory: Memory) -> DagTriggerSpec | None:
    """Return the trigger declaration of a DAG's newest version; ``None`` if it has none."""
    dag = memory.newest(one.row.dag_id)
    return None if dag is None else dag.trigger


def host_role(one: DagTrigger, memory: Memory) -> str:
    """Return the role of the host for a trigger, according to the newest version of its DAG."""
    row = memory.dags.get(one.row.dag_id)
    dag_version = None if row is None else memory.dag_versions.get((row.version, row.dag_id))
    return TRIGGERS if dag_version is None else role_of(one.row.class_path, dag_version, memory)


def update_assignment_of(dag_id: str, tx: Transaction) -> None:
    """Assign or release the trigger of a DAG, if it has one; see ``update_assignment``."""
    one = tx.memory.dag_triggers.of(dag_id)
    if one is not None:
        update_assignment(one, tx)


def update_assignments(tx: Transaction) -> None:
    """Assign or release the triggers of all DAGs, after a change that may affect many of them."""
    for one in tx.memory.dag_triggers:
        update_assignment(one, tx)


def update_assignment(one: DagTrigger, tx: Transaction) -> None:
    """Assign the trigger to the right host, unless it has one or waits for its next attempt.

    Release it if its DAG no longer declares it or is stopped, or if the current assignment is
    outdated. Idempotent.
    """
    memory = tx.memory
    if one.pending:
        tx.checked_dags.append(one.row.dag_id)
    if spec_of(one, memory) is None:
        _request_release(one, _GONE, tx)
    elif is_stopped(one.row.dag_id, memory):
        _request_release(one, _PAUSED, tx)
    elif one.assignment_id:
        if _is_outdated(one, memory):
            _request_release(one, _REASSIGNED, tx)
    elif one.retry_at is None or one.retry_at <= tx.steady:
        _host(one, tx)


def wake(one: DagTrigger, at: Timestamp, tx: Transaction) -> None:
    """Set a timer for the trigger."""
    tx.effects.append(WakeAt(TimerFired(at, trigger_no=one.row.trigger_no)))


def retry(one: DagTrigger, at: Timestamp, tx: Transaction) -> None:
    """Handle a timer of the trigger.

    If it is the timer of the next attempt, assign the trigger now. The time is not compared with
    the clock, because the clock may have been set back and the timer fires only once.
    """
    if one.retry_at == at:
        tx.dag_triggers.note(one)
        one.retry_at = None
    update_assignment(one, tx)


def host_all(role: str, tx: Transaction) -> None:
    """Assign the DAG triggers that belong to a host that came up.

    Earlier assignments to this host are void.
    """
    memory = tx.memory
    for one in memory.dag_triggers:
        if one.assignment_id and one.role == role:
            tx.dag_triggers.note(one)
            one.unhost()
        update_assignment(one, tx)


def ended(one: DagTrigger, report: TriggerEnded, tx: Transaction) -> None:
    """Handle the release of a trigger by its host: on command, at its end, or on failure."""
    if report.assignment_id != one.assignment_id:
        return
    tx.dag_triggers.note(one)
    has_fired = one.index > 0
    failure = report.failure
    if failure is not None and failure.reason == REFUSED:
        # The trigger has not ended, but one of its events could not be processed, and it must yield
        # that event again.
        tx.effects.append(
            ReleaseTrigger(
                StopTrigger(one.row.trigger_no, one.assignment_id, _REASSIGNED), one.role
            )
        )
    one.unhost()
    if report.reason:
        update_assignment(one, tx)
        return
    if failure is not None and failure.reason == CODE_MISSING:
        tx.memory.lacking_code.add(one.row.trigger_no)
        tx.effects.append(RestoreCode((one.version,), one.row.trigger_no))
        return
    if failure is None and not has_fired:
        message = f"{one.row.class_path} ended without an event"
        failure = Failure(type="TriggerFailed", message=message, reason="trigger_ended")
    fail(one, failure, tx)


def code_restored(one: DagTrigger, tx: Transaction) -> None:
    """Assign a trigger again, because its missing code may have been restored."""
    tx.memory.lacking_code.discard(one.row.trigger_no)
    update_assignment(one, tx)


def fail(one: DagTrigger, failure: Failure | None, tx: Transaction) -> None:
    """Schedule the next attempt for a trigger that has ended. Alert on the first failure."""
    tx.dag_triggers.note(one)
    is_news = failure is not None and one.failure is None
    wait_us = min(FIRST_WAIT_US << min(one.failures, 20), LONGEST_WAIT_US)
    one.failures += 1
    one.failure = failure
    one.retry_at = tx.steady + wait_us
    wake(one, one.retry_at, tx)
    if is_news and failure is not None:
        _alert(one, f"has failed: {failure.message}", tx)


def charge(one: DagTrigger, failure: Failure, tx: Transaction) -> None:
    """Exclude a trigger that killed the daemon from all hosts until its DAG's file changes."""
    tx.dag_triggers.note(one)
    one.failure = failure
    bar(one.row.trigger_no, tx.memory.dags[one.row.dag_id].version, tx)
    _alert(one, f"is not hosted until its file changes: {failure.message}", tx)


def hosted_before(memory: Memory) -> Iterator[TriggerNo]:
    """Yield the triggers that may have been assigned to hosts of the previous daemon."""
    for one in memory.dag_triggers:
        number, dag_id = one.row.trigger_no, one.row.dag_id
        is_hosted = one.row.kwargs is not None and one.row.class_path != ASSETS
        if not is_hosted or spec_of(one, memory) is None or is_stopped(dag_id, memory):
            continue
        if not (memory.is_drained or is_barred(number, memory)):
            yield number


def _alert(one: DagTrigger, what: str, tx: Transaction) -> None:
    message = f"the trigger of DAG {one.row.dag_id} {what}"
    tx.outbox.alert("trigger", message[:1_000], run_id="", dag_id=one.row.dag_id)


def _host(one: DagTrigger, tx: Transaction) -> None:
    memory, row = tx.memory, one.row
    role = host_role(one, memory)
    if row.class_path == ASSETS or row.kwargs is None or memory.is_drained:
        return
    if not may_host(row.trigger_no, memory):
        return
    if role not in memory.hosts_up and role != QUARANTINE:
        request_host(role, tx)
        return
    tx.dag_triggers.note(one)
    one.assignment_id, one.role = memory.next_assignment_id(), role
    one.version = memory.dags[row.dag_id].version
    one.made_of = (row.class_path, row.kwargs)
    one.index = one.confirmed = 0
    one.retry_at = None
    last = None if row.event is None else (row.event, row.event_key)
    host = StartTrigger(
        trigger_no=row.trigger_no,
        assignment_id=one.assignment_id,
        # As for a run, named events with a higher number than the trigger count for it.
        run_no=row.trigger_no,
        task_no=-1,
        version=one.version,
        class_path=row.class_path,
        kwargs=row.kwargs,
        since=row.since,
        waits_since=tx.at.monotonic - (tx.now - row.since),
        logical_date=None,
        window=WINDOW,
        last=last,
        dag_id=row.dag_id,
    )
    tx.effects.append(AssignTrigger(host, None, role, memory.host_processes.get(role, 0)))


def _request_release(one: DagTrigger, reason: str, tx: Transaction) -> None:
    """Request that the host of a trigger release it, unless this was already requested."""
    if not one.assignment_id or one.leaving:
        return
    tx.dag_triggers.note(one)
    one.leaving = reason
    tx.effects.append(
        ReleaseTrigger(StopTrigger(one.row.trigger_no, one.assignment_id, reason), one.role)
    )


def _is_outdated(one: DagTrigger, memory: Memory) -> bool:
    """Return whether a new assignment would differ in the class, fields, code or host."""
    path = one.row.class_path
    if one.made_of != (path, one.row.kwargs) or one.role != host_role(one, memory):
        return True
    version = memory.dags[one.row.dag_id].version
    code = memory.trigger_code.get(version, {}).get(path)
    if one.version == version or code is None:
        return False
    return memory.trigger_code.get(one.version, {}).get(path) != code
