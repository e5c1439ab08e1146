"""The reading half of a store, the same for both databases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Select, Table
from sqlalchemy.engine.interfaces import Dialect

from aioflow.model import Instant, RunNo, RunState, TaskNo, TaskState, TriggerNo
from aioflow.rows import (
    DagFileRow,
    DagRow,
    ExpansionRow,
    JournalRow,
    LiveRun,
    ResultRow,
    RunRow,
    Snapshot,
    TaskRow,
    TriggerRow,
    TryRow,
    VersionRow,
)
from aioflow.secrets import Vault
from aioflow.store import rows, selects
from aioflow.store.sql import compiled

__all__ = ("Question", "Reading")

Question: TypeAlias = tuple[str, tuple[Any, ...]]
"""SQL and its parameters, in order."""

Row = TypeVar("Row")


class Reading(ABC):
    """Asks for rows and makes Structs of them; how they are fetched is the backend's."""

    def __init__(self, dialect: Dialect, vault: Vault) -> None:
        self._dialect = dialect
        self._vault = vault

    @abstractmethod
    async def _fetch(self, questions: Sequence[Question]) -> list[Sequence[rows.Values]]:
        """Return the answers of all questions as of one moment, on a connection for reading."""

    async def load(self) -> Snapshot:
        """See ``Store``."""
        (
            dags,
            dag_files,
            versions,
            pools,
            outbox,
            runs,
            tasks,
            expansions,
            widths,
            triggers,
        ) = await self._fetch(
            [
                self._question(statement)
                for statement in (
                    selects.ALL_DAGS,
                    selects.ALL_DAG_FILES,
                    selects.NEEDED_VERSIONS,
                    selects.ALL_POOLS,
                    selects.ALL_OUTBOX,
                    selects.LIVE_RUNS,
                    selects.LIVE_TASKS,
                    selects.LIVE_EXPANSIONS,
                    selects.LIVE_WIDTHS,
                    selects.ALL_TRIGGERS,
                )
            ]
        )
        tasks_of = _grouped(map(rows.task_row, tasks))
        expansions_of = _grouped(map(rows.expansion_row, expansions))
        triggers_of = _grouped(map(self._trigger, triggers))
        widths_of: defaultdict[RunNo, list[tuple[TaskNo, int]]] = defaultdict(list)
        for run_no, task_no, width in widths:
            widths_of[run_no].append((task_no, width))
        live_runs = [rows.run_row(row) for row in runs]
        live_numbers = {run.run_no for run in live_runs}
        return Snapshot(
            dags=[rows.dag_row(row) for row in dags],
            dag_files=[rows.dag_file_row(row) for row in dag_files],
            versions=[rows.version_row(row) for row in versions],
            runs=[
                LiveRun(
                    run=run,
                    tasks=tasks_of[run.run_no],
                    expansions=expansions_of[run.run_no],
                    widths=widths_of[run.run_no],
                    triggers=triggers_of[run.run_no],
                )
                for run in live_runs
            ],
            stray_triggers=[
                row
                for run_no, of_run in triggers_of.items()
                if run_no not in live_numbers
                for row in of_run
            ],
            pools=[rows.pool_row(row) for row in pools],
            outbox=[rows.outbox_row(row) for row in outbox],
        )

    async def load_run(self, run_no: RunNo) -> LiveRun | None:
        """See ``Store``."""
        statements = (
            selects.RUN_BY_NO,
            selects.TASKS_OF_RUN,
            selects.EXPANSIONS,
            selects.WIDTHS_OF_RUN,
            selects.TRIGGERS_OF_RUN,
        )
        runs, tasks, expansions, widths, triggers = await self._fetch(
            [self._question(statement, run_no=run_no) for statement in statements]
        )
        if not runs:
            return None
        return LiveRun(
            run=rows.run_row(runs[0]),
            tasks=[rows.task_row(row) for row in tasks],
            expansions=[rows.expansion_row(row) for row in expansions],
            widths=[(task_no, width) for task_no, width in widths],
            triggers=[self._trigger(row) for row in triggers],
        )

    # ── runs ────────────────────────────────────────────────────────────────────────────

    async def find_run(self, run_id: str) -> RunRow | None:
        """See ``Store``."""
        return await self._one(rows.run_row, selects.RUN_BY_ID, run_id=run_id)

    async def find_run_by_key(self, dag_id: str, key: str) -> RunRow | None:
        """See ``Store``."""
        return await self._one(rows.run_row, selects.RUN_BY_KEY, dag_id=dag_id, key=key)

    async def find_run_at(self, dag_id: str, logical_date: Instant) -> RunRow | None:
        """See ``Store``."""
        return await self._one(
            rows.run_row, selects.RUN_BY_DATE, dag_id=dag_id, logical_date=logical_date
        )

    async def latest_ended_run(self, dag_id: str, since: Instant) -> RunRow | None:
        """See ``Store``."""
        return await self._one(rows.run_row, selects.ENDED_RUN, dag_id=dag_id, since=since)

    async def list_runs(
        self,
        *,
        dag_id: str | None = None,
        state: RunState | None = None,
        limit: int = 100,
        before: RunNo | None = None,
    ) -> list[RunRow]:
        """See ``Store``."""
        page = selects.runs_page(
            of_dag=dag_id is not None,
            in_state=state is not None,
            live=state is not None and state.is_live,
            before=before is not None,
        )
        return await self._all(
            rows.run_row,
            page,
            dag_id=dag_id,
            state=None if state is None else int(state),
            limit=limit,
            before=before,
        )

    # ── of one run ──────────────────────────────────────────────────────────────────────

    async def list_tasks(
        self, run_no: RunNo, *, after: TaskNo = -1, limit: int = 1000
    ) -> list[TaskRow]:
        """See ``Store``."""
        return await self._all(
            rows.task_row, selects.TASKS_PAGE, run_no=run_no, after=after, limit=limit
        )

    async def list_tasks_between(
        self, first: TaskNo, end: TaskNo, limit: int = 1000
    ) -> list[TaskRow]:
        """See ``Store``."""
        return await self._all(
            rows.task_row, selects.TASKS_BETWEEN, first=first, end=end, limit=limit
        )

    async def count_states(self, run_no: RunNo) -> list[tuple[int, TaskState, int]]:
        """See ``Store``."""
        return await self._all(
            lambda row: (row[0], TaskState(row[1]), row[2]), selects.STATE_COUNTS, run_no=run_no
        )

    async def list_expansions(self, run_no: RunNo) -> list[ExpansionRow]:
        """See ``Store``."""
        return await self._all(rows.expansion_row, selects.EXPANSIONS, run_no=run_no)

    async def list_results(self, first: TaskNo, end: TaskNo, limit: int = 1000) -> list[ResultRow]:
        """See ``Store``."""
        return await self._all(
            rows.result_row, selects.RESULTS_BETWEEN, first=first, end=end, limit=limit
        )

    async def list_tries(self, task_no: TaskNo) -> list[TryRow]:
        """See ``Store``."""
        return await self._all(rows.try_row, selects.TRIES, task_no=task_no)

    # ── the rest ────────────────────────────────────────────────────────────────────────

    async def list_triggers(self, limit: int = 1000, after: TriggerNo = -1) -> list[TriggerRow]:
        """See ``Store``."""
        return await self._all(self._trigger, selects.TRIGGERS_PAGE, after=after, limit=limit)

    async def list_dags(self) -> list[DagRow]:
        """See ``Store``."""
        return await self._all(rows.dag_row, selects.ALL_DAGS)

    async def list_dag_files(self) -> list[DagFileRow]:
        """See ``Store``."""
        return await self._all(rows.dag_file_row, selects.ALL_DAG_FILES)

    async def list_needed_versions(self) -> list[VersionRow]:
        """See ``Store``."""
        return await self._all(rows.version_row, selects.NEEDED_VERSIONS)

    async def find_version(self, version: str) -> VersionRow | None:
        """See ``Store``."""
        return await self._one(rows.version_row, selects.VERSION, version=version)

    async def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalRow]:
        """See ``Store``."""
        return await self._all(rows.journal_row, selects.JOURNAL, after=after, limit=limit)

    async def scan(self, tables: Sequence[Table]) -> list[Sequence[rows.Values]]:
        """See ``Store``."""
        return await self._fetch([self._question(selects.whole(table)) for table in tables])

    # ── how ─────────────────────────────────────────────────────────────────────────────

    def _question(self, statement: Select[Any], **values: Any) -> Question:
        ready = compiled(statement, self._dialect)
        return ready.sql, ready.placed(values)

    async def _all(
        self, made: Callable[[rows.Values], Row], statement: Select[Any], **values: Any
    ) -> list[Row]:
        if not all(map(_is_storable, values.values())):
            return []  # what no row can hold matches none
        (found,) = await self._fetch([self._question(statement, **values)])
        return [made(row) for row in found]

    async def _one(
        self, made: Callable[[rows.Values], Row], statement: Select[Any], **values: Any
    ) -> Row | None:
        found = await self._all(made, statement, **values)
        return found[0] if found else None

    def _trigger(self, values: rows.Values) -> TriggerRow:
        return rows.trigger_row(values, self._vault)


def _is_storable(value: object) -> bool:
    match value:
        case str():
            return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
        case int():
            return -(2**63) <= value < 2**63
        case _:
            return True


def _grouped(found: Any) -> defaultdict[RunNo, list[Any]]:
    groups: defaultdict[RunNo, list[Any]] = defaultdict(list)
    for row in found:
        groups[row.run_no].append(row)
    return groups
