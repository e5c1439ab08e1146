"""Tasks that become ready: with a row already where they were cleared, else without."""

from __future__ import annotations

from aioflow.core.draft import Draft
from aioflow.core.live import Group, Live, Run
from aioflow.model import TaskState

__all__ = ("cleared_places", "fresh", "retire", "rewind")


def fresh(run: Run, position: int, map_index: int) -> Live:
    """Return a pending task that is about to be something else.

    One that was cleared goes on with the number of its last start, so that what is still said
    of that one stays late.
    """
    task_no = run.task_no(position, map_index)
    known = run.cleared.pop(task_no, None) if run.cleared else None
    if isinstance(known, Live):
        return known
    live = Live(run, task_no, position, map_index)
    if known is not None:
        live.start_no = live.stored_start = known
    return live


def cleared_places(run: Run) -> list[tuple[int, int]]:
    """Return position and map index of the pending tasks that were cleared."""
    places = []
    for task_no in run.cleared:
        position = task_no - run.row.first_task_no
        if 0 <= position < len(run.states):
            places.append((position, -1))
            continue
        indexes = ((g.position, task_no - g.first_task_no, g.width) for g in run.groups.values())
        places += [(of, index) for of, index, width in indexes if 0 <= index < width]
    return places


def retire(run: Run, position: int, draft: Draft) -> None:
    """A task is expanded that was cleared after it had ended without: its children have rows."""
    if run.task_no(position, -1) in run.cleared:
        draft.move(fresh(run, position, -1), TaskState.REMOVED)


def rewind(group: Group) -> None:
    """Let a fan-out go on with the first child that is pending, whatever is behind that."""
    if group.lockstep is None:
        group.cursor = group.pending_from(0)
    else:  # which come in any order: behind the last that is not
        group.cursor = len(group.states.rstrip(b"\0"))
