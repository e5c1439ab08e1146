"""Migration of triggers to the newest code of their file: the row stays, the class is replaced.

A trigger is released by its host, and assigned again once that has confirmed. So events that it
yields until then still count, and two instances of it never run at once. Only triggers move whose
class, or code on which it depends, has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec.structs import replace

from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.dag_version import DagVersion
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import TriggerInstance
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.assignment import HOSTLESS, REASSIGNED, host, newest_version, role_of
from aioflow.core.triggers.dag_triggers import place_of
from aioflow.model.ids import TriggerNo
from aioflow.model.states import TriggerState
from aioflow.protocol.commands import StopTrigger
from aioflow.protocol.effects import ReleaseTrigger
from aioflow.protocol.inputs import (
    FileParsed,
    IsolateTriggerClass,
    MigrateTriggers,
    PauseTriggers,
    TriggerCapacityChanged,
)

__all__ = (
    "REHOST_AT_ONCE",
    "file_parsed",
    "move_next",
    "rehost",
    "room_changed",
)

REHOST_AT_ONCE = 1_000
"""Maximum number of triggers moved in one turn. The others follow in the next ones."""


def file_parsed(parsed: FileParsed, tx: Transaction) -> None:
    """Store the code digests of a file's newest version, and schedule the move of its triggers.

    They move in later turns, because this one may still be rolled back.
    """
    memory = tx.memory
    for version in memory.trigger_code.keys() - memory.hosted_versions():
        del memory.trigger_code[version]
    memory.trigger_code[parsed.version] = parsed.triggers
    for spec in parsed.dags:
        place_of(spec.dag_id, tx)
    if next(_outdated(parsed.version, -1, memory), None) is not None:
        tx.effects.append(MigrateTriggers(parsed.file, parsed.version))


def rehost(entry: MigrateTriggers, tx: Transaction) -> None:
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
    """Release the first of these triggers, or assign those that have no host.

    The rest follows in later turns, which continue after the last number.
    """
    waits = list(islice(found, most + 1))
    for wait in waits[:most]:
        number = wait.row.trigger_no
        if wait.hosting:
            tx.effects.append(ReleaseTrigger(StopTrigger(number, wait.hosting, reason), wait.role))
        else:
            host(tx.memory.waits[number], tx)
    if len(waits) > most:
        tx.effects.append(replace(entry, after=waits[most - 1].row.trigger_no))


def room_changed(
    one: TriggerInstance | DagTrigger, entry: TriggerCapacityChanged, _: Transaction
) -> None:
    """Record whether a trigger waits for capacity of its triggerer."""
    if one.hosting == entry.hosting:
        one.has_room = entry.has_room


def _outdated(version: str, after: TriggerNo, memory: Memory) -> Iterator[TriggerInstance]:
    """Yield the triggers that this version must run in another way, by number.

    These are triggers that run an older version whose code differs, and triggers without a host
    that belong to another role since this version.
    """
    forms = {
        number
        for form, number in memory.packing.forms.numbered()
        if _is_other(form.dag_version, form.version, form.class_path, version, memory)
        or _is_elsewhere(form.dag_version, form.role, form.class_path, version, memory)
    }
    for number in memory.packing.numbers(forms, after):
        wait = memory.packing.peek(number)
        if wait is None or wait.task is None or wait.state is not TriggerState.WAITING:
            continue
        made = (
            wait.run.dag_version,
            wait.version if wait.hosting else wait.role,
            wait.row.class_path,
        )
        if (_is_other if wait.hosting else _is_elsewhere)(*made, version, memory):
            yield wait


def _is_elsewhere(
    dag_version: DagVersion, was: str, class_path: str, version: str, memory: Memory
) -> bool:
    """Return whether a trigger belongs to another host than before, as of a version."""
    if class_path in HOSTLESS or newest_version(dag_version, memory) != version:
        return False
    return role_of(class_path, dag_version, memory) != was


def _is_other(
    dag_version: DagVersion, was: str, class_path: str, version: str, memory: Memory
) -> bool:
    """Return whether the DAG's newest version has other code of a trigger's class than it runs."""
    if was == version or newest_version(dag_version, memory) != version:
        return False
    now = memory.trigger_code.get(version, {}).get(class_path)
    if now is None:
        return False  # its class is in a package or was deleted: it stays as it is
    return memory.trigger_code.get(was, {}).get(class_path) != now
