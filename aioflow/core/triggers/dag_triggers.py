"""Triggers that start runs of DAGs: which of them a host has, and made of what.

There is one for each DAG whose file says so, as a row that stays when the file says otherwise, so
that its place and the keys it has had are known when it says so again. It is hosted as the newest
version has it. One that ends, or fails, is hosted again after a while; one whose code is not on the
disk, when that is there again.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from aioflow.core.crash_trials import bar, is_barred, may_host
from aioflow.core.state.child_roles import QUARANTINE, TRIGGERS
from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.memory import Memory
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.assignment import is_stopped, role_of, want_host
from aioflow.model.dag import DagSpec
from aioflow.model.dag_triggers import ASSETS, DagTriggerRow, DagTriggerSpec
from aioflow.model.ids import TriggerNo
from aioflow.model.states import CODE_MISSING, Failure
from aioflow.model.timestamps import Timestamp
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
    "place",
    "place_all",
    "place_of",
    "retry",
    "spec_of",
    "wake",
)

WINDOW = 64
"""Events such a trigger may be ahead of the store."""

FIRST_WAIT_US, LONGEST_WAIT_US = 1_000_000, 300_000_000
"""Until one that has ended is hosted again; twice as long each time it ends without an event."""

REFUSED = "refused"
"""The reason of a failure that is an event which could not be taken."""

_GONE, _PAUSED, _REASSIGNED = "finished", "paused", "reassigned"


def adopt(spec: DagSpec, tx: Transaction) -> None:
    """A file says of what a DAG's trigger is made."""
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
    if row.class_path != said.class_path:  # what the other saw last says nothing to this one
        row = msgspec.structs.replace(row, since=tx.now, event=None, event_key=None)
    one.row = msgspec.structs.replace(row, class_path=said.class_path, kwargs=said.kwargs)
    tx.memory.dag_triggers.index(one)


def spec_of(one: DagTrigger, memory: Memory) -> DagTriggerSpec | None:
    """Return how a DAG wants its events taken; ``None`` where it wants none of this trigger."""
    dag = memory.newest(one.row.dag_id)
    return None if dag is None else dag.trigger


def host_role(one: DagTrigger, memory: Memory) -> str:
    """Return which host it belongs to, as the newest version of its DAG says."""
    row = memory.dags.get(one.row.dag_id)
    dag_version = None if row is None else memory.dag_versions.get((row.version, row.dag_id))
    return TRIGGERS if dag_version is None else role_of(one.row.class_path, dag_version, memory)


def place_of(dag_id: str, tx: Transaction) -> None:
    """As ``place``, of the trigger of a DAG, if it has one."""
    one = tx.memory.dag_triggers.of(dag_id)
    if one is not None:
        place(one, tx)


def place_all(tx: Transaction) -> None:
    """As ``place``, of all: something has changed that many may go by."""
    for one in tx.memory.dag_triggers:
        place(one, tx)


def place(one: DagTrigger, tx: Transaction) -> None:
    """Have the right host have it, or none; whatever has changed, a second time changes nothing."""
    memory = tx.memory
    if one.pending:
        tx.placed_dags.append(one.row.dag_id)
    if spec_of(one, memory) is None:
        _leave(one, _GONE, tx)
    elif is_stopped(one.row.dag_id, memory):
        _leave(one, _PAUSED, tx)
    elif one.hosting:
        if _is_outdated(one, memory):
            _leave(one, _REASSIGNED, tx)
    elif one.retry_at is None or one.retry_at <= tx.steady:
        _host(one, tx)


def wake(one: DagTrigger, at: Timestamp, tx: Transaction) -> None:
    """Have an instant come for it."""
    tx.effects.append(WakeAt(TimerFired(at, trigger_no=one.row.trigger_no)))


def retry(one: DagTrigger, at: Timestamp, tx: Transaction) -> None:
    """An instant of it has come: if it is that of the next attempt, nothing waits for it now.

    Whatever the clock says: it may have been set back since, and the instant comes once.
    """
    if one.retry_at == at:
        tx.dag_triggers.note(one)
        one.retry_at = None
    place(one, tx)


def host_all(role: str, tx: Transaction) -> None:
    """A host is ready: hand it what is its own. What it was handed before it has not."""
    memory = tx.memory
    for one in memory.dag_triggers:
        if one.hosting and one.role == role:
            tx.dag_triggers.note(one)
            one.unhost()
        place(one, tx)


def ended(one: DagTrigger, report: TriggerEnded, tx: Transaction) -> None:
    """A host has let go of it: as it was told, or because it came to an end, or failed."""
    if report.hosting != one.hosting:
        return
    tx.dag_triggers.note(one)
    has_fired = one.index > 0
    failure = report.failure
    if failure is not None and failure.reason == REFUSED:
        # It has not ended: what it yielded could not be taken, and it is to yield it again.
        tx.effects.append(
            ReleaseTrigger(StopTrigger(one.row.trigger_no, one.hosting, _REASSIGNED), one.role)
        )
    one.unhost()
    if report.reason:
        place(one, tx)
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
    """The code that a host had not may be there again."""
    tx.memory.lacking_code.discard(one.row.trigger_no)
    place(one, tx)


def fail(one: DagTrigger, failure: Failure | None, tx: Transaction) -> None:
    """It has ended by itself, and is hosted again after a while. People are told of a failure."""
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
    """It has killed the daemon: no host has it until the file of its DAG changes."""
    tx.dag_triggers.note(one)
    one.failure = failure
    bar(one.row.trigger_no, tx.memory.dags[one.row.dag_id].version, tx)
    _alert(one, f"is not hosted until its file changes: {failure.message}", tx)


def hosted_before(memory: Memory) -> Iterator[TriggerNo]:
    """Yield those that the hosts of the last daemon may have had."""
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
        want_host(role, tx)
        return
    tx.dag_triggers.note(one)
    one.hosting, one.role = memory.next_hosting(), role
    one.version = memory.dags[row.dag_id].version
    one.made_of = (row.class_path, row.kwargs)
    one.index = one.taken = 0
    one.retry_at = None
    last = None if row.event is None else (row.event, row.event_key)
    host = StartTrigger(
        trigger_no=row.trigger_no,
        hosting=one.hosting,
        # Named events count from the trigger's number on, as they do from that of a run.
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
    tx.effects.append(AssignTrigger(host, None, role))


def _leave(one: DagTrigger, reason: str, tx: Transaction) -> None:
    """Ask its host to let go of it, unless that has been done."""
    if not one.hosting or one.leaving:
        return
    tx.dag_triggers.note(one)
    one.leaving = reason
    tx.effects.append(
        ReleaseTrigger(StopTrigger(one.row.trigger_no, one.hosting, reason), one.role)
    )


def _is_outdated(one: DagTrigger, memory: Memory) -> bool:
    """Whether it would be made of something else now, or elsewhere."""
    path = one.row.class_path
    if one.made_of != (path, one.row.kwargs) or one.role != host_role(one, memory):
        return True
    version = memory.dags[one.row.dag_id].version
    code = memory.trigger_code.get(version, {}).get(path)
    if one.version == version or code is None:
        return False
    return memory.trigger_code.get(one.version, {}).get(path) != code
