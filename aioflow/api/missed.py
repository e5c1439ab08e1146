"""What somebody missed who watched and was away: read out of the journal, where that is little."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from aioflow.api.commits import News, Wanted, frame
from aioflow.api.reader import RunReader
from aioflow.errors import UnknownDag
from aioflow.model import RunNo, TaskNo, TaskState
from aioflow.rows import JournalRow, RunRow, TaskRow
from aioflow.store.changes import KINDS
from aioflow.store.journal import Entry, decode
from aioflow.threads import in_thread

__all__ = ("MISSED", "missed")

MISSED = 2_000
"""Commits; who missed more reads everything anew."""

_AT_ONCE = 100
_TASKS = 5_000
_COLUMNS = {kind.name: tuple(reversed((*kind.columns, *kind.guards))) for kind in KINDS}
"""The last ones first: what a guard expects gives way to what is new."""


async def missed(
    reader: RunReader, wanted: Wanted, *, after: int, upto: int
) -> AsyncIterator[bytes]:
    """Yield messages about the commits after one, up to another; or one that says: ``reset``."""
    oldest = await reader.store.oldest_commit()
    is_gone = after > upto or upto - after > MISSED
    if is_gone or (after < upto and (oldest is None or oldest > after + 1)):
        yield frame("reset", {"commit": upto}, upto)
        return
    while after < upto:
        rows = await reader.store.read_journal(after, limit=min(_AT_ONCE, upto - after))
        if not rows:
            return
        entries = await in_thread(_entries, rows)
        if entries is None:
            yield frame("reset", {"commit": upto}, upto)
            return
        news = await _news(reader, rows, entries)
        after = rows[-1].commit_no
        yield news.encoded(wanted)


def _entries(rows: Sequence[JournalRow]) -> list[Entry] | None:
    try:
        return [decode(row.body) for row in rows]
    except ValueError:
        return None  # `aioflow db check` tells of it


async def _news(reader: RunReader, rows: Sequence[JournalRow], entries: Sequence[Entry]) -> News:
    news = News()
    news.commit_no, news.at = rows[-1].commit_no, rows[-1].at
    run_nos: dict[RunNo, None] = {}
    states: dict[TaskNo, TaskState] = {}
    for entry in entries:
        for name, changes in entry.changes.items():
            for values in changes:
                row = dict(zip(_COLUMNS.get(name, ()), reversed(values), strict=False))
                _take(name, row, run_nos, states, news)
    found = await reader.store.find_runs_by_no(run_nos)
    news.runs = {run_no: found[run_no] for run_no in run_nos if run_no in found}
    await _add_tasks(reader, states, found, news)
    return news


def _take(
    name: str,
    row: Mapping[str, Any],
    run_nos: dict[RunNo, None],
    states: dict[TaskNo, TaskState],
    news: News,
) -> None:
    match name:
        case "new run" | "run change":
            run_nos[row["run_no"]] = None
        case "new task" | "task change":
            states[row["task_no"]] = TaskState(row["state"])
        case "dag" | "gone dag":
            news.dags[row["dag_id"]] = None
        case "new trigger" | "moved trigger" | "gone trigger":
            news.triggers += 1
        case _:
            pass  # nobody watches for that


async def _add_tasks(
    reader: RunReader,
    states: Mapping[TaskNo, TaskState],
    runs: dict[RunNo, RunRow],
    news: News,
) -> None:
    """Name the tasks; of very many some are enough to know that there is something to read."""
    rows = await reader.store.find_tasks(list(states)[:_TASKS])
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
        return  # it has been deleted since
    place = (run.run_no, row.position, row.map_index)
    news.tasks[place] = (run, spec, row.position, row.map_index, state)
