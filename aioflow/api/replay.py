"""Replay for reconnecting clients: read missed commits from the journal if they are few."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from aioflow._threads import in_thread
from aioflow.api.live_stream import News, Topic, frame
from aioflow.api.queries import RunReader
from aioflow.errors import UnknownDag
from aioflow.model.batch import JournalRow
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import RunRow, TaskRow
from aioflow.model.states import TaskState
from aioflow.store.changes import KINDS
from aioflow.store.journal import Entry, decode

__all__ = ("MISSED", "missed")

MISSED = 2_000
"""Commits. A client that missed more has to reload everything."""

_AT_ONCE = 10
_CHANGES = 20_000
_BYTES = 4 * 1024 * 1024
"""Limits for one client: row changes, and bytes as stored."""

_TASKS = 500
_COLUMNS = {kind.name: tuple(reversed((*kind.columns, *kind.guards))) for kind in KINDS}
"""Names in reverse order: if a guard and a column share a name, the column's new value wins."""


async def missed(
    reader: RunReader, wanted: Topic, *, after: int, upto: int
) -> AsyncIterator[bytes]:
    """Yield messages for the commits after one, up to another; or a ``reset`` message."""
    oldest = await reader.store.oldest_commit()
    is_gone = after > upto or upto - after > MISSED
    if is_gone or (after < upto and (oldest is None or oldest > after + 1)):
        yield frame("reset", {"commit": upto}, upto)
        return
    changes = size = 0
    while after < upto:
        rows = await reader.store.read_journal(after, limit=min(_AT_ONCE, upto - after))
        if not rows:
            return
        taken = _Changes()
        for row in rows:
            size += len(row.body)
            if size <= _BYTES:
                changes += await in_thread(taken.take, row.body, _CHANGES - changes)
            if size > _BYTES or changes > _CHANGES or taken.is_damaged:
                yield frame("reset", {"commit": upto}, upto)
                return
        after = rows[-1].commit_no
        news = await _news(reader, rows[-1], taken)
        yield news.sorted().encoded(wanted)


class _Changes:
    """The changes of commits that clients can watch."""

    def __init__(self) -> None:
        self.run_nos: dict[RunNo, None] = {}
        self.states: dict[TaskNo, TaskState] = {}
        self.news = News()
        self.is_damaged = False

    def take(self, body: bytes, room: int) -> int:
        """Add the changes of one commit unless there are more than ``room``. Return their number.

        Many changes take long, so this runs in a thread.
        """
        try:
            entry = decode(body)
        except ValueError:
            self.is_damaged = True  # `aioflow db check` reports it
            return 0
        count = sum(map(len, entry.changes.values()))
        if count <= room:
            self._take_all(entry)
        return count

    def _take_all(self, entry: Entry) -> None:
        for name, changes in entry.changes.items():
            for values in changes:
                row = dict(zip(_COLUMNS.get(name, ()), reversed(values), strict=False))
                self._take(name, row)

    def _take(self, name: str, row: Mapping[str, Any]) -> None:
        match name:
            case "new run" | "run change":
                self.run_nos[row["run_no"]] = None
            case "new task" | "task change":
                self.states[row["task_no"]] = TaskState(row["state"])
            case "dag" | "gone dag":
                self.news.dags[row["dag_id"]] = None
            case "new trigger" | "moved trigger" | "gone trigger":
                self.news.triggers += 1
            case _:
                pass  # clients do not watch other changes


async def _news(reader: RunReader, last: JournalRow, taken: _Changes) -> News:
    news = taken.news
    news.commit_no, news.at = last.commit_no, last.at
    found = await reader.store.find_runs_by_no(taken.run_nos)
    news.runs = {run_no: found[run_no] for run_no in taken.run_nos if run_no in found}
    task_nos = list(taken.states)
    for first in range(0, len(task_nos), _TASKS):
        await _add_tasks(reader, task_nos[first : first + _TASKS], taken.states, found, news)
    return news


async def _add_tasks(
    reader: RunReader,
    task_nos: Sequence[TaskNo],
    states: Mapping[TaskNo, TaskState],
    runs: dict[RunNo, RunRow],
    news: News,
) -> None:
    rows = await reader.store.find_tasks(task_nos)
    runs = runs | await reader.store.find_runs_by_no(
        {row.run_no for row in rows if row.run_no not in runs}
    )
    for row in rows:
        run = runs.get(row.run_no)
        if run is not None:
            await _add_task(reader, row, run, states[row.task_no], news)


async def _add_task(
    reader: RunReader, row: TaskRow, run: RunRow, state: TaskState, news: News
) -> None:
    try:
        spec = await reader.spec(run.version, run.dag_id)
    except UnknownDag:
        return  # the DAG has been deleted since
    news.move(run, spec, (row.position, row.map_index), state)
