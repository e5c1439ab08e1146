"""Isolation of trigger classes that block their event loop, in the quarantine host.

There they can block only each other. A class moves there when it blocks the loop too often or for
too long, or when its host had to be replaced because of it. It moves back on request, or with a
restart of the daemon.
"""

from __future__ import annotations

from collections.abc import Iterator

from aioflow.core.state.child_roles import ASYNC, QUARANTINE, TRIGGERS, is_own, kind_of
from aioflow.core.state.loop_blocking import LoopBlocker
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import TriggerInstance
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.assignment import REASSIGNED, role_of
from aioflow.core.triggers.dag_triggers import place_all
from aioflow.core.triggers.migration import REHOST_AT_ONCE, move_next
from aioflow.errors import UnknownClass
from aioflow.model.states import Failure, TriggerState
from aioflow.protocol.effects import Warn
from aioflow.protocol.inputs import HostLost, IsolateTriggerClass, LoopBlocked

__all__ = ("BLOCKED", "blame", "failure_of_culprit", "move_class", "release", "stalled")

BLOCKED = "blocked"
"""The failure reason of a host that was killed because its event loop was blocked."""


def stalled(report: LoopBlocked, tx: Transaction) -> None:
    """Count and log a step that blocks an event loop. Quarantine the class above a limit."""
    found = _staller(report, tx.memory)
    if found is None:
        return  # its task ended meanwhile
    tx.memory.loop_blockers.note(found, report, tx.at)
    _tell(found, report, tx)
    if found.kind != "trigger" or is_own(report.role):  # there it can block only its own DAG
        return
    if not found.is_quarantined and found.is_offender(tx.steady):
        tx.effects.append(IsolateTriggerClass(found.name, is_quarantined=True))


def release(class_path: str, tx: Transaction) -> bool:
    """Move the triggers of a class back to the shared host. Return whether it was in quarantine.

    Raises:
        UnknownClass: If the class has never blocked an event loop.
    """
    found = tx.memory.loop_blockers.of_class(class_path)
    if found is None:
        raise UnknownClass(class_path)
    found.offences = ()
    tx.effects.append(IsolateTriggerClass(class_path, is_quarantined=False))
    return found.is_quarantined


def move_class(entry: IsolateTriggerClass, tx: Transaction) -> None:
    """Move a class into quarantine or back: release those of its triggers that are elsewhere.

    They are assigned to the right host when their present host confirms, see ``migration``. Those
    without a host are assigned now. Many triggers take several turns.
    """
    memory = tx.memory
    found = memory.loop_blockers.find("trigger", entry.class_path)
    if found.is_quarantined != entry.is_quarantined:
        if entry.after >= 0:
            return  # superseded
        found.is_quarantined = entry.is_quarantined
        what = "goes into" if entry.is_quarantined else "comes out of"
        tx.effects.append(Warn(f"a trigger class {what} quarantine", {"trigger": found.name}))
        if entry.is_quarantined:
            _alert(found, tx)
    move_next(entry, _misplaced(entry, memory), tx, reason=REASSIGNED, most=REHOST_AT_ONCE)
    if entry.after < 0:
        place_all(tx)


def _alert(found: LoopBlocker, tx: Transaction) -> None:
    message = f"triggers of class {found.name} hold up their loop: they go into quarantine"
    tx.outbox.alert("quarantine", message, run_id=found.run_id, task_id=found.task_id)


def blame(lost: HostLost, tx: Transaction) -> None:
    """Quarantine the class that blocked a loop for so long that its host was killed."""
    wait = tx.memory.waits.get(lost.culprit)
    class_path = lost.class_path if wait is None else wait.row.class_path
    if class_path and lost.failure.reason == BLOCKED and not is_own(lost.role):
        tx.effects.append(IsolateTriggerClass(class_path, is_quarantined=True))


def failure_of_culprit(class_path: str, lost: HostLost, memory: Memory) -> Failure | None:
    """Return the failure of the trigger that ran when its host died; ``None`` if it continues.

    A blocking trigger gets a second chance in a host where it blocks no others. A trigger that ran
    when its host was killed from outside is not charged, see ``memory.crash_suspects``.
    """
    if lost.failure.reason != BLOCKED:
        known = (memory.active_tasks, memory.waits, memory.dag_triggers)
        return memory.crash_suspects.failure(lost, *known)
    if lost.role == TRIGGERS:
        return None
    where = "its host in quarantine too" if lost.role == QUARANTINE else "the own host of its DAG"
    message = f"{class_path} held up {where}: {lost.failure.message}"
    return Failure(type="Stalled", message=message, reason="stalled")


def _misplaced(entry: IsolateTriggerClass, memory: Memory) -> Iterator[TriggerInstance]:
    """Yield the triggers of a class that have no host or the wrong one, by number."""
    parking = memory.packing
    forms = {no for form, no in parking.forms.numbered() if form.class_path == entry.class_path}
    for number in parking.numbers(forms, entry.after):
        wait = parking.peek(number)
        if wait is None or wait.row.class_path != entry.class_path or wait.task is None:
            continue
        role = role_of(entry.class_path, wait.run.dag_version, memory)
        if wait.state is TriggerState.WAITING and not (wait.hosting and wait.role == role):
            yield wait


def _staller(report: LoopBlocked, memory: Memory) -> LoopBlocker | None:
    """Return the counters of the class or task in a report, with its current names."""
    if kind_of(report.role) == ASYNC:
        task = memory.active_tasks.get(report.culprit)
        if task is None:
            return None
        run, task_id = task.run.row, task.name
        found = memory.loop_blockers.find("task", f"{run.dag_id}.{task.spec.task_id}")
    else:
        wait = memory.waits.get(report.culprit)
        of_dag = memory.dag_triggers.get(report.culprit)
        if of_dag is not None:
            return memory.loop_blockers.find("trigger", of_dag.row.class_path)
        if wait is None:  # no task waits for it, and it is slow to stop
            return (
                memory.loop_blockers.find("trigger", report.class_path)
                if report.class_path
                else None
            )
        run, task_id = wait.run.row, "" if wait.task is None else wait.task.name
        found = memory.loop_blockers.find("trigger", wait.row.class_path)
    found.run_id, found.task_id = run.run_id, task_id or found.task_id
    return found


def _tell(found: LoopBlocker, report: LoopBlocked, tx: Transaction) -> None:
    if not found.may_tell(tx.steady):
        return
    found.told_at = tx.steady
    facts: dict[str, str | int] = {
        found.kind: found.name,
        "run_id": found.run_id,
        "task_id": found.task_id,
        "place": found.place,
        "milliseconds": report.milliseconds,
        "count": found.count,
        "host": report.role,
    }
    if found.kind == "trigger":
        facts["trigger_id"] = report.culprit
        of_dag = tx.memory.dag_triggers.get(report.culprit)
        if of_dag is not None:
            facts["dag_id"] = of_dag.row.dag_id
    verb = "held up" if report.is_over else "holds up"
    doing = "importing " if report.is_loading else ""
    tx.effects.append(Warn(f"{doing}user code {verb} the loop of its host", facts))
