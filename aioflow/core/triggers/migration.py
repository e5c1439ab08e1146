"""Moves of triggers to newer code or other hosts, after file changes, pauses or blocked loops.

A trigger is released by its host, and assigned again once the host has confirmed the release. So
events that the trigger yields until then still count, and two instances of it never run at the same
time. Its row, fields, ``since``, last event and deadline do not change.

* Migration: a trigger moves to the newest code of its file only if its class, or code on which the
  class depends, has changed.
* Pause: triggers of a DAG with ``if_paused="stop"`` are released, and assigned again when the DAG
  is resumed. It is not stored which triggers are stopped, because it follows from the row of the
  DAG.
* Isolation: a class moves to the quarantine host when it blocks its event loop too often or for too
  long, or when its host had to be replaced because of it. In that host, such classes can block only
  each other. A class moves back on request, or when the daemon restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec.structs import replace

from aioflow.core.state.child_roles import ASYNC, QUARANTINE, TRIGGERS, is_own, kind_of
from aioflow.core.state.crash_attribution import LoopBlocker
from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.graph import DagVersion
from aioflow.core.state.memory import Memory
from aioflow.core.state.packed import TaskShape
from aioflow.core.state.task_instance import TriggerInstance
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.assignment import (
    HOSTLESS,
    REASSIGNED,
    host,
    is_stopped,
    newest_version,
    role_of_shape,
    role_of_wait,
)
from aioflow.core.triggers.dag_triggers import update_assignment_of, update_assignments
from aioflow.errors import UnknownClass
from aioflow.model.ids import TriggerNo
from aioflow.model.states import Failure, TriggerState
from aioflow.protocol.commands import StopTrigger
from aioflow.protocol.effects import ReleaseTrigger, Warn
from aioflow.protocol.inputs import (
    FileParsed,
    HostLost,
    IsolateTriggerClass,
    LoopBlocked,
    MigrateTriggers,
    PauseTriggers,
    TriggerCapacityChanged,
)

__all__ = (
    "BLOCKED",
    "PAUSED",
    "REHOST_AT_ONCE",
    "STOPPED_AT_ONCE",
    "capacity_changed",
    "failure_of_culprit",
    "file_parsed",
    "isolate_culprit",
    "loop_blocked",
    "migrate_triggers",
    "move_class",
    "move_next",
    "pause_triggers",
    "release_class",
)

REHOST_AT_ONCE = 1_000
"""Maximum number of triggers moved in one turn. The rest follow in later turns."""


def file_parsed(parsed: FileParsed, tx: Transaction) -> None:
    """Store the code digests of a file's newest version, and schedule the move of its triggers.

    The triggers move in later turns, because the current turn may still be rolled back.
    """
    memory = tx.memory
    for version in memory.trigger_code.keys() - memory.hosted_versions():
        del memory.trigger_code[version]
    memory.trigger_code[parsed.version] = parsed.triggers
    for spec in parsed.dags:
        update_assignment_of(spec.dag_id, tx)
    if next(_outdated(parsed.version, -1, memory), None) is not None:
        tx.effects.append(MigrateTriggers(parsed.file, parsed.version))


def migrate_triggers(entry: MigrateTriggers, tx: Transaction) -> None:
    """Release the next triggers of a file that must be assigned again."""
    found = _outdated(entry.version, entry.after, tx.memory)
    move_next(entry, found, tx, reason=REASSIGNED, most=REHOST_AT_ONCE)


def move_next(
    entry: IsolateTriggerClass | MigrateTriggers | PauseTriggers,
    found: Iterable[TriggerInstance],
    tx: Transaction,
    *,
    reason: str,
    most: int,
) -> None:
    """Release the first of these triggers, or assign them if they have no host.

    The rest follow in later turns, each of which continues after the number of the last trigger.
    """
    waits = list(islice(found, most + 1))
    for wait in waits[:most]:
        number = wait.row.trigger_no
        if wait.assignment_id:
            tx.effects.append(
                ReleaseTrigger(StopTrigger(number, wait.assignment_id, reason), wait.role)
            )
        else:
            host(tx.memory.waits[number], tx)
    if len(waits) > most:
        tx.effects.append(replace(entry, after=waits[most - 1].row.trigger_no))


def capacity_changed(
    one: TriggerInstance | DagTrigger, entry: TriggerCapacityChanged, _: Transaction
) -> None:
    """Record whether a trigger waits for capacity in its host."""
    if one.assignment_id == entry.assignment_id:
        one.has_capacity = entry.has_capacity


def _outdated(version: str, after: TriggerNo, memory: Memory) -> Iterator[TriggerInstance]:
    """Yield the triggers that must be assigned again because of this version, by number.

    These are triggers that run an older version with different code, and triggers without a host
    that belong to another role because of this version.
    """

    def is_outdated(shape: TaskShape) -> bool:
        dag_version, path = shape.dag_version, shape.class_path
        if _is_other(dag_version, shape.version, path, version, memory):
            return True
        is_its = _is_of_newest(dag_version, path, version, memory)
        return is_its and role_of_shape(shape, memory) != shape.role

    for number in memory.packing.triggers_after(after, is_outdated):
        wait = memory.packing.peek(number)
        if wait is None or wait.task is None or wait.state is not TriggerState.WAITING:
            continue
        dag_version, path = wait.run.dag_version, wait.row.class_path
        if wait.assignment_id:
            is_wrong = _is_other(dag_version, wait.version, path, version, memory)
        else:
            is_its = _is_of_newest(dag_version, path, version, memory)
            is_wrong = is_its and role_of_wait(wait, memory) != wait.role
        if is_wrong:
            yield wait


def _is_of_newest(dag_version: DagVersion, class_path: str, version: str, memory: Memory) -> bool:
    """Return whether this version decides which host triggers of a class need."""
    return class_path not in HOSTLESS and newest_version(dag_version, memory) == version


def _is_other(
    dag_version: DagVersion, was: str, class_path: str, version: str, memory: Memory
) -> bool:
    """Return whether ``version`` is the newest and changes the code of a trigger's class."""
    if was == version or newest_version(dag_version, memory) != version:
        return False
    now = memory.trigger_code.get(version, {}).get(class_path)
    if now is None:
        return False  # its class is in a package or was deleted: it stays as it is
    return memory.trigger_code.get(was, {}).get(class_path) != now


PAUSED = "paused"
"""Reason for the release of a trigger whose DAG is paused."""

STOPPED_AT_ONCE = 250
"""Maximum number of triggers released or assigned in one turn. The rest follow later."""


def pause_triggers(entry: PauseTriggers, tx: Transaction) -> None:
    """Release the next triggers of a stopped DAG, or assign them after the DAG was resumed."""
    memory = tx.memory
    if is_stopped(entry.dag_id, memory) != entry.is_stopped:
        return  # the opposite was requested since
    move_next(entry, _misplaced_by_pause(entry, memory), tx, reason=PAUSED, most=STOPPED_AT_ONCE)


def _misplaced_by_pause(entry: PauseTriggers, memory: Memory) -> Iterator[TriggerInstance]:
    """Yield the triggers with a host if their DAG is stopped, otherwise those without, by number.

    After the DAG was resumed, a trigger whose host has not confirmed the release yet is not
    included. It is assigned when the host confirms.
    """

    def is_of_dag(shape: TaskShape) -> bool:
        dag_id = shape.dag_version.graph.spec.dag_id
        return dag_id == entry.dag_id and shape.class_path not in HOSTLESS

    for number in memory.packing.triggers_after(entry.after, is_of_dag):
        wait = memory.packing.peek(number)
        if wait is None or wait.task is None or wait.state is not TriggerState.WAITING:
            continue
        is_its = wait.run.row.dag_id == entry.dag_id and wait.row.class_path not in HOSTLESS
        if is_its and bool(wait.assignment_id) == entry.is_stopped:
            yield wait


BLOCKED = "blocked"
"""The failure reason of a host that was killed because its event loop was blocked."""


def loop_blocked(report: LoopBlocked, tx: Transaction) -> None:
    """Count and log a report of a blocked event loop. Above a limit, quarantine the class."""
    found = _blocker_of(report, tx.memory)
    if found is None:
        return  # its task has ended
    tx.memory.loop_blockers.note(found, report, tx.at)
    _log_block(found, report, tx)
    if found.kind != "trigger" or is_own(report.role):  # in that host it can block only its own DAG
        return
    if not found.is_quarantined and found.is_offender(tx.steady):
        tx.effects.append(IsolateTriggerClass(found.name, is_quarantined=True))


def release_class(class_path: str, tx: Transaction) -> bool:
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
    """Move a class into quarantine or back by releasing its triggers that have the wrong host.

    They are assigned to the right host when their current host confirms, see the module docstring.
    Triggers without a host are assigned now. Many triggers are moved over several turns.
    """
    memory = tx.memory
    found = memory.loop_blockers.find("trigger", entry.class_path)
    if found.is_quarantined != entry.is_quarantined:
        if entry.after >= 0:
            return  # a later request has replaced this one
        found.is_quarantined = entry.is_quarantined
        what = "goes into" if entry.is_quarantined else "comes out of"
        tx.effects.append(Warn(f"a trigger class {what} quarantine", {"trigger": found.name}))
        if entry.is_quarantined:
            _alert_isolation(found, tx)
    move_next(entry, _misplaced_of_class(entry, memory), tx, reason=REASSIGNED, most=REHOST_AT_ONCE)
    if entry.after < 0:
        update_assignments(tx)


def _alert_isolation(found: LoopBlocker, tx: Transaction) -> None:
    message = f"triggers of class {found.name} block their event loop: they are quarantined"
    tx.outbox.alert("quarantine", message, run_id=found.run_id, task_id=found.task_id)


def isolate_culprit(lost: HostLost, tx: Transaction) -> None:
    """Quarantine the class that blocked a loop for so long that its host was killed."""
    wait = tx.memory.waits.get(lost.culprit)
    class_path = lost.class_path if wait is None else wait.row.class_path
    if class_path and lost.failure.reason == BLOCKED and not is_own(lost.role):
        tx.effects.append(IsolateTriggerClass(class_path, is_quarantined=True))


def failure_of_culprit(class_path: str, lost: HostLost, memory: Memory) -> Failure | None:
    """Return the failure of the trigger that ran when its host died; ``None`` if it continues.

    A trigger that blocked its loop gets a second chance in the quarantine host, where it cannot
    block healthy triggers. If the host was killed from outside, the trigger that ran is not charged
    a try until that has happened too often, see ``memory.crash_suspects``.
    """
    if lost.failure.reason != BLOCKED:
        known = (memory.active_tasks, memory.waits, memory.dag_triggers)
        return memory.crash_suspects.failure(lost, *known)
    if kind_of(lost.role) == TRIGGERS and not is_own(lost.role):
        return None
    is_quarantined = kind_of(lost.role) == QUARANTINE
    where = "its host in quarantine too" if is_quarantined else "the own host of its DAG"
    message = f"{class_path} held up {where}: {lost.failure.message}"
    return Failure(type="Stalled", message=message, reason="stalled")


def _misplaced_of_class(entry: IsolateTriggerClass, memory: Memory) -> Iterator[TriggerInstance]:
    """Yield the triggers of a class that have no host or the wrong one, by number."""
    packing = memory.packing
    for number in packing.triggers_after(
        entry.after, lambda shape: shape.class_path == entry.class_path
    ):
        wait = packing.peek(number)
        if wait is None or wait.row.class_path != entry.class_path or wait.task is None:
            continue
        role = role_of_wait(wait, memory)
        if wait.state is TriggerState.WAITING and not (wait.assignment_id and wait.role == role):
            yield wait


def _blocker_of(report: LoopBlocked, memory: Memory) -> LoopBlocker | None:
    """Return the counters of the class or task in a report, and update its names."""
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


def _log_block(found: LoopBlocker, report: LoopBlocked, tx: Transaction) -> None:
    if not found.may_log(tx.steady):
        return
    found.logged_at = tx.steady
    facts: dict[str, str | int] = {
        found.kind: found.name,
        "run_id": found.run_id,
        "task_id": found.task_id,
        "source_location": found.source_location,
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
