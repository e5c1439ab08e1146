"""Triggers move to the newest code of their file: what waits is data, its class is not.

A trigger is asked to leave its host, and handed over anew once that has confirmed it. So what
it yields up to then still counts, and two instances of it never run at once. Only those move
whose class, or what that stands on, has changed.
"""

from __future__ import annotations

from aioflow.core.draft import Draft
from aioflow.core.hosting import newest_version
from aioflow.core.memory import Memory, WaitRecord
from aioflow.inputs import EndHosting, FileParsed, Rehost, RoomChanged
from aioflow.model import TriggerState
from aioflow.orders import End

__all__ = ("REASSIGNED", "REHOST_AT_ONCE", "file_parsed", "rehost", "room_changed")

REASSIGNED = "reassigned"
"""Why a trigger is let go of that goes on elsewhere."""

REHOST_AT_ONCE = 1_000
"""Triggers moved in one turn; the others follow in the next ones."""


def file_parsed(parsed: FileParsed, draft: Draft) -> None:
    """A file has a newest version: keep what its trigger classes stand on, and move those hosted.

    They are moved in later turns: this one may yet be refused.
    """
    memory = draft.memory
    needed = {wait.version for wait in memory.waits.values()}
    needed |= {row.version for row in memory.dags.values()}
    for version in memory.trigger_code.keys() - needed:
        del memory.trigger_code[version]
    memory.trigger_code[parsed.version] = parsed.triggers
    if any(_is_outdated(wait, parsed.version, memory) for wait in memory.waits.values()):
        draft.effects.append(Rehost(parsed.file, parsed.version))


def rehost(entry: Rehost, draft: Draft) -> None:
    """Ask the hosts for the next triggers of a file that are to be hosted anew."""
    memory = draft.memory
    moved, last = 0, entry.after
    for number in sorted(number for number in memory.waits if number > entry.after):
        wait = memory.waits[number]
        if not _is_outdated(wait, entry.version, memory):
            continue
        if moved == REHOST_AT_ONCE:
            draft.effects.append(Rehost(entry.file, entry.version, last))
            return
        draft.effects.append(EndHosting(End(number, wait.hosting, REASSIGNED), wait.role))
        moved, last = moved + 1, number


def room_changed(entry: RoomChanged, wait: WaitRecord) -> None:
    """The triggerer says that a trigger waits for room, or no longer does."""
    if wait.hosting == entry.hosting:
        wait.has_room = entry.has_room


def _is_outdated(wait: WaitRecord, version: str, memory: Memory) -> bool:
    """Whether a trigger is hosted as an older version had it, and this one has it otherwise."""
    if wait.version == version or not wait.hosting or wait.state is not TriggerState.WAITING:
        return False
    if wait.live is None or newest_version(wait, memory) != version:
        return False
    now = memory.trigger_code.get(version, {}).get(wait.row.class_path)
    if now is None:
        return False  # of a package, or no longer there: it stays as it is
    return memory.trigger_code.get(wait.version, {}).get(wait.row.class_path) != now
