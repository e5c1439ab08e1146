"""Queries of a restart: the live runs with all their rows, and the rows that belong to no run.

Damage in a row of a run is reported with the run; other damage is reported on its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from msgspec.structs import replace
from sqlalchemy import Select

from aioflow.crypto import Vault
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import Damage, RunRow, TriggerRow
from aioflow.protocol.inputs import CoroutineProgress, LiveRun, RecoverySnapshot, UnfinishedWork
from aioflow.store import rows, selects
from aioflow.store.accounts import ACCESS_ROWS, access_fields
from aioflow.store.columns import read_rows
from aioflow.store.query_protocol import (
    PAGE_ROWS,
    Fetch,
    QueryInterface,
    Question,
    RowsByRun,
    fetch_everything,
)
from aioflow.store.rows import Damages, mark_damaged
from aioflow.store.run_causes import (
    ALL_DAG_TRIGGERS,
    HELD_EVENTS,
    RUNNING_BACKFILLS,
    dag_event_row,
    dag_trigger_row,
)

__all__ = ("RecoveryReader",)

Row = TypeVar("Row")

_WHOLE = (
    selects.ALL_DAGS,
    selects.ALL_DAG_FILES,
    selects.NEEDED_VERSIONS,
    selects.ALL_POOLS,
    selects.OUTBOX_IN_MEMORY,
    selects.OUTBOX_COUNTS,
    ALL_DAG_TRIGGERS,
    HELD_EVENTS,
    RUNNING_BACKFILLS,
    selects.ALL_DRAINED,
    *ACCESS_ROWS,
    selects.LIVE_RUNS,
)
_OF_LIVE_RUNS = (
    selects.LIVE_TASKS,
    selects.LIVE_EXPANSIONS,
    selects.LIVE_WIDTHS,
    selects.ALL_TRIGGERS,
    selects.LIVE_PROGRESS,
    selects.LIVE_EVENTS,
    selects.LIVE_ITEMS,
)
_OF_ONE_RUN = (
    selects.RUN_BY_NO,
    selects.TASKS_OF_RUN,
    selects.EXPANSIONS,
    selects.WIDTHS_OF_RUN,
    selects.TRIGGERS_OF_RUN,
    selects.PROGRESS_OF_RUN,
    selects.EVENTS_OF_RUN,
    selects.ITEMS_OF_RUN,
)
_RUN_COLUMNS = (1, 0, 0, 2, 0, 2, 0)
"""Index of the column with the run number in each result of ``_OF_LIVE_RUNS``."""
_TASKS, _TRIGGERS = 0, 3  # indexes in these results


class _OfRun:
    """Converts the rows of one run, and keeps the first damage found in them.

    Args:
        damage: Damage in the row of the run itself, if any.
    """

    def __init__(self, damages: Damages, damage: Damage | None) -> None:
        self._damages = damages
        self.damage = damage

    def made(
        self, statement: Select[Any], made: Callable[[rows.Values], Row], found: Sequence[Any]
    ) -> list[Row]:
        return read_rows(statement, made, found, self._note)

    def _note(self, damage: Damage, row: Row | None) -> Row | None:
        self._damages.note(damage)
        self.damage = self.damage or damage
        return row


class RecoveryReader(QueryInterface):
    """The part of a store that reads unfinished work."""

    _vault: Vault
    damages: Damages

    @abstractmethod
    def _streaming(self, questions: Sequence[Question]) -> AbstractAsyncContextManager[list[Fetch]]:
        """Run all statements on one consistent snapshot. Return their results page by page."""

    @abstractmethod
    def _trigger(self, values: rows.Values) -> TriggerRow:
        """Return a trigger row, decrypted."""

    @asynccontextmanager
    async def unfinished(self) -> AsyncIterator[AsyncIterator[UnfinishedWork]]:
        """See ``Store``."""
        questions = [self._question(statement) for statement in (*_WHOLE, *_OF_LIVE_RUNS)]
        async with self._streaming(questions) as fetches:
            yield self._unfinished(fetches)

    async def _unfinished(self, fetches: Sequence[Fetch]) -> AsyncIterator[UnfinishedWork]:
        *of_all, runs = fetches[: len(_WHOLE)]
        yield self._snapshot([await fetch_everything(fetch) for fetch in of_all])
        parts = [
            RowsByRun(fetch, column)
            for fetch, column in zip(fetches[len(_WHOLE) :], _RUN_COLUMNS, strict=True)
        ]
        triggers = parts[_TRIGGERS]
        while found := await runs(PAGE_ROWS):
            for run, damage in self._runs(selects.LIVE_RUNS, found):
                while strays := await triggers.before(run.run_no):
                    for stray in self._healthy(selects.ALL_TRIGGERS, self._trigger, strays):
                        yield stray
                async for piece in self._pieces(run, _OfRun(self.damages, damage), parts):
                    yield piece
        while strays := await triggers.before(None):
            for stray in self._healthy(selects.ALL_TRIGGERS, self._trigger, strays):
                yield stray

    def _snapshot(self, found: Sequence[Sequence[rows.Values]]) -> RecoverySnapshot:
        """Return the rows that belong to no run.

        Damaged rows of DAGs, files, versions, pools and DAG triggers are included with
        placeholders, so that other work continues. A DAG with a damaged row is paused. Other
        damaged rows are omitted.
        """
        dags, dag_files, versions, pools, outbox, outbox_counts, of_dags, held, backfills, *more = (
            found
        )
        drained, *people = more
        return RecoverySnapshot(
            dags=self._shown(selects.ALL_DAGS, rows.dag_row, dags),
            dag_files=self._shown(selects.ALL_DAG_FILES, rows.dag_file_row, dag_files),
            versions=self._shown(selects.NEEDED_VERSIONS, rows.version_row, versions),
            runs=[],
            pools=self._shown(selects.ALL_POOLS, rows.pool_row, pools),
            outbox=self._healthy(selects.OUTBOX_IN_MEMORY, rows.outbox_row, outbox),
            outbox_totals={
                kind: (count, first)
                for kind, count, first in self._healthy(selects.OUTBOX_COUNTS, tuple, outbox_counts)
            },
            dag_triggers=self._shown(
                ALL_DAG_TRIGGERS, lambda row: dag_trigger_row(row, self._vault), of_dags
            ),
            held_events=self._healthy(HELD_EVENTS, dag_event_row, held),
            backfills=self._healthy(RUNNING_BACKFILLS, rows.backfill_row, backfills),
            drained=[no for no, *_ in self._healthy(selects.ALL_DRAINED, tuple, drained)],
            **access_fields(people, self._vault, self._healthy),
        )

    def _shown(
        self, statement: Select[Any], made: Callable[[rows.Values], Row], found: Sequence[Any]
    ) -> list[Row]:
        def stands_for(damage: Damage, row: Row | None) -> Row | None:
            self.damages.note(damage)
            return mark_damaged(damage, row)

        return read_rows(statement, made, found, stands_for)

    def _healthy(
        self, statement: Select[Any], made: Callable[[rows.Values], Row], found: Sequence[Any]
    ) -> list[Row]:
        return read_rows(statement, made, found, lambda damage, _: self.damages.note(damage))

    def _runs(
        self, statement: Select[Any], found: Sequence[rows.Values]
    ) -> list[tuple[RunRow, Damage | None]]:
        """Return the rows of runs, each with the damage in it, if any."""
        damages: dict[RunNo, Damage] = {}

        def note(damage: Damage, row: RunRow | None) -> RunRow | None:
            self.damages.note(damage)
            if row is not None:
                damages[row.run_no] = damage
            return mark_damaged(damage, row)

        made = read_rows(statement, rows.run_row, found, note)
        return [(run, damages.get(run.run_no)) for run in made]

    async def _pieces(
        self, run: RunRow, of_run: _OfRun, parts: Sequence[RowsByRun]
    ) -> AsyncIterator[LiveRun]:
        """Yield one run. A large run comes in pieces, each with one page of tasks or triggers."""
        number = run.run_no
        tasks, _, _, triggers, *_ = parts
        head = await self._head(run, of_run, parts)
        some = await tasks.of(number)
        while more := await tasks.of(number):
            yield self._piece(head, of_run, tasks=some)
            some = more
        waits = await triggers.of(number)
        last = some
        while more := await triggers.of(number):
            yield self._piece(head, of_run, tasks=last, triggers=waits)
            last, waits = (), more
        yield self._piece(head, of_run, tasks=last, triggers=waits, is_whole=True)

    async def _head(self, run: RunRow, of_run: _OfRun, parts: Sequence[RowsByRun]) -> LiveRun:
        _, expansions, widths, _, progress, events, items = [
            (statement, await part.all_of(run.run_no))
            if at not in {_TASKS, _TRIGGERS}
            else (statement, ())
            for at, (statement, part) in enumerate(zip(_OF_LIVE_RUNS, parts, strict=True))
        ]
        return LiveRun(
            run=run,
            tasks=[],
            expansions=of_run.made(expansions[0], rows.expansion_row, expansions[1]),
            widths=of_run.made(widths[0], _counted, widths[1]),
            triggers=[],
            progress=of_run.made(progress[0], _progress, progress[1]),
            events=of_run.made(events[0], rows.event_row, events[1]),
            items=of_run.made(items[0], _counted, items[1]),
            is_whole=False,
        )

    def _piece(
        self,
        head: LiveRun,
        of_run: _OfRun,
        *,
        tasks: Sequence[rows.Values],
        triggers: Sequence[rows.Values] = (),
        is_whole: bool = False,
    ) -> LiveRun:
        made_tasks = of_run.made(selects.LIVE_TASKS, rows.task_row, tasks)
        made_triggers = of_run.made(selects.ALL_TRIGGERS, self._trigger, triggers)
        return replace(
            head,
            tasks=made_tasks,
            triggers=made_triggers,
            is_whole=is_whole,
            damage=of_run.damage,
        )

    async def load_run(self, run_no: RunNo) -> LiveRun | None:
        """See ``Store``."""
        found, tasks, expansions, widths, triggers, progress, events, items = await self._fetch(
            [self._question(statement, run_no=run_no) for statement in _OF_ONE_RUN]
        )
        for run, damage in self._runs(selects.RUN_BY_NO, found):
            of_run = _OfRun(self.damages, damage)
            made = LiveRun(
                run=run,
                tasks=of_run.made(selects.TASKS_OF_RUN, rows.task_row, tasks),
                expansions=of_run.made(selects.EXPANSIONS, rows.expansion_row, expansions),
                widths=of_run.made(selects.WIDTHS_OF_RUN, _counted, widths),
                triggers=of_run.made(selects.TRIGGERS_OF_RUN, self._trigger, triggers),
                progress=of_run.made(selects.PROGRESS_OF_RUN, _progress, progress),
                events=of_run.made(selects.EVENTS_OF_RUN, rows.event_row, events),
                items=of_run.made(selects.ITEMS_OF_RUN, _counted, items),
            )
            return replace(made, damage=of_run.damage)
        return None

    @asynccontextmanager
    async def pieces_of_run(self, run_no: RunNo) -> AsyncIterator[AsyncIterator[LiveRun]]:
        """See ``Store``."""
        questions = [self._question(statement, run_no=run_no) for statement in _OF_ONE_RUN]
        async with self._streaming(questions) as (found, *fetches):
            parts = list(map(RowsByRun, fetches, _RUN_COLUMNS))
            yield self._of_runs(await found(PAGE_ROWS), parts)

    async def _of_runs(
        self, found: Sequence[rows.Values], parts: Sequence[RowsByRun]
    ) -> AsyncIterator[LiveRun]:
        for run, damage in self._runs(selects.RUN_BY_NO, found):
            async for piece in self._pieces(run, _OfRun(self.damages, damage), parts):
                yield piece


def _counted(values: rows.Values) -> tuple[TaskNo, int]:
    _, task_no, count = values
    return task_no, count


def _progress(values: rows.Values) -> CoroutineProgress:
    _, task_no, count, first_failed, open_kind, open_name = values
    first = -1 if first_failed is None else first_failed
    return CoroutineProgress(task_no, count, first, open_kind or "", open_name or "")
