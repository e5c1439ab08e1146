"""State changes of tasks with the times of their commits, read from the journal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from aioflow._threads import in_thread
from aioflow.model.batch import JournalRow
from aioflow.model.ids import TaskNo
from aioflow.model.rows import RunRow
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.store import Store
from aioflow.store.journal import steps_of, unpacked

__all__ = ("Steps", "first_commit_at", "read_steps")

Steps: TypeAlias = dict[TaskNo, list[tuple[Timestamp, TaskState]]]

_COMMITS = 2_000
_AT_ONCE = 10
_BYTES = 16 * 1024 * 1024
"""Limit of unpacked journal data that is read for one response."""


async def read_steps(store: Store, run: RunRow, task_nos: Collection[TaskNo]) -> Steps | None:
    """Return the state changes of a run's tasks; ``None`` if the journal is too long or young."""
    after = await first_commit_at(store, run.created_at)
    if after is None:
        return None
    of = frozenset(task_nos)
    found: Steps = {}
    commits = size = 0
    while True:
        rows = await store.read_journal(after, limit=_AT_ONCE)
        until = run.ended_at
        wanted = [row for row in rows if until is None or row.at <= until]
        size += await in_thread(_take_all, wanted, of, found, _BYTES - size)
        if size > _BYTES:
            return None
        commits += len(wanted)
        if len(wanted) < _AT_ONCE:
            return found
        if commits >= _COMMITS:
            return None
        after = rows[-1].commit_no


async def first_commit_at(store: Store, at: Timestamp) -> int | None:
    """Return the number before the first commit at or after a timestamp, found by binary search.

    ``None`` if commits since then have been deleted. Timestamps increase with commit numbers
    unless the clock was set back.
    """
    oldest = await store.oldest_commit()
    if oldest is None:
        return None
    low, high = oldest, await _last_commit(store)
    first = await store.read_journal(oldest - 1, limit=1)
    if not first or (oldest > 1 and first[0].at > at):
        return None  # the journal no longer reaches back that far
    while low < high:
        middle = (low + high) // 2
        found = await store.read_journal(middle - 1, limit=1)
        if found and found[0].at < at:
            low = found[0].commit_no + 1
        else:
            high = middle
    return low - 1


async def _last_commit(store: Store) -> int:
    return max((node.commit_no for node in await store.list_nodes()), default=0)


def _take_all(
    rows: Sequence[JournalRow], task_nos: Collection[TaskNo], found: Steps, room: int
) -> int:
    """Collect the state changes of commits until ``room`` is exceeded; see ``_take``."""
    size = 0
    for row in rows:
        size += _take(row, task_nos, found)
        if size > room:
            break
    return size


def _take(row: JournalRow, task_nos: Collection[TaskNo], found: Steps) -> int:
    """Collect the state changes of one commit. Return its size in bytes."""
    try:
        packed = unpacked(row.body)
        if len(packed) > _BYTES:
            return len(packed)
        steps = steps_of(packed)
    except ValueError:
        return len(row.body)  # `aioflow db check` reports it
    for task_no, state in steps:
        if task_no in task_nos:
            found.setdefault(task_no, []).append((row.at, TaskState(state)))
    return len(packed)
