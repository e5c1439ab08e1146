"""Queries of committed data for scripts and users."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from anyio.lowlevel import checkpoint

from aioflow.api.dags import (
    GONE,
    Catalogue,
    KnownDags,
    Timetables,
    broken_view,
    calendar_fire_times,
    import_error,
    next_run_at,
    timetable_fire_times,
)
from aioflow.api.declarations import Declarations
from aioflow.api.logs.lines import LineRange, LineReader, TriedLog
from aioflow.api.logs.run_log import RunLogRange, RunLogs
from aioflow.api.page.schemas import LogLinesView, RunLogView
from aioflow.api.paging import Key, Page, decode_cursor, number_after, page_of
from aioflow.api.schedule_texts import schedule_text
from aioflow.api.schemas import (
    DagDetailView,
    DagView,
    DamageView,
    ErrorView,
    RunSummary,
    RunView,
    TaskSpecView,
    TaskView,
    damage_view,
    error_view,
    iso,
    plain_fields,
    quarantine_reason,
    run_state_name,
    summary,
)
from aioflow.api.task_instances import (
    CopyResult,
    RunLayout,
    ShownResults,
    TaskLocation,
    absent_state,
    log_part_of_try,
    task_view,
)
from aioflow.api.trigger_details import PublicFields
from aioflow.api.validation import params_view
from aioflow.errors import RequestError, UnknownDag, UnknownRound, UnknownRun, UnknownTask
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.ids import RunNo, StartNo, TaskNo
from aioflow.model.rows import DagRow, ExpansionRow, RunRow, TaskRow
from aioflow.model.run_filter import RunFilter
from aioflow.model.states import RunState, TaskState, Wait
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import (
    DagTriggerRow,
    DescribeSensors,
    DescribeTriggers,
    describe_no_sensors,
    describe_no_triggers,
)
from aioflow.model.workers import WorkerPages
from aioflow.processes.line_search import LineSearch
from aioflow.protocol.requests import OF_RUN
from aioflow.store import Store
from aioflow.telemetry.task_log import TaskLog
from aioflow.telemetry.task_log_records import LogPart

__all__ = ("PAGE", "Counted", "DagsWanted", "RunReader", "dag_key", "run_state_of")

PAGE = 1_000
"""Maximum number of task rows in a response."""

_RUN = TaskLocation(-1, -1, -1)

_ROWS_AT_ONCE = 200
"""Limited because the body of a result may take 64 KiB, even if it is too large to be shown."""

_DAGS_AT_ONCE = 200
_CACHED_SPECS = 256
_CACHED_COUNTS = 1024

DagsWanted: TypeAlias = Literal["all", "paused", "broken"]
Counted: TypeAlias = Sequence[tuple[int, TaskState, int]]


class RunReader:
    """Reads DAGs, runs and logs from the store.

    Attributes:
        lines: Reads logs as lines.
        timetables: Access to custom timetables; ``None`` if no host is available.
        watched: Fetches descriptions of triggers from their hosts.
        watched_sensors: Fetches descriptions of sensors from the async hosts.
        worker_pages: Fetches the URLs of pages about remote workers that are up.
    """

    timetables: Timetables | None = None
    watched: DescribeTriggers = staticmethod(describe_no_triggers)
    watched_sensors: DescribeSensors = staticmethod(describe_no_sensors)
    worker_pages: WorkerPages = staticmethod(dict)

    def __init__(
        self,
        store: Store,
        tasklog: TaskLog,
        results: Path | None = None,
        copy_result: CopyResult | None = None,
    ) -> None:
        self.store = store
        self.catalogue = Catalogue(store, follows=False)
        self._tasklog = tasklog
        search = LineSearch()
        self.lines = LineReader(search)
        self._run_logs = RunLogs(tasklog, search, store)
        self.public_fields = PublicFields(tasklog.masks)
        self.results = ShownResults(store, results, copy_result)
        self.declarations = Declarations(self.known_spec)
        self._specs: dict[tuple[str, str], DagSpec] = {}
        self._last_version: tuple[str, Mapping[str, DagSpec]] = "", {}
        self._counted: dict[tuple[RunNo, Timestamp | None], Counted] = {}
        self._first_errors: dict[tuple[RunNo, Timestamp | None], ErrorView | None] = {}

    # ── DAGs ────────────────────────────────────────────────────────────────────────────

    async def list_dags(
        self,
        *,
        search: str = "",
        state: DagsWanted = "all",
        limit: int | None = None,
        after: tuple[int, str] | None = None,
        tags: Collection[str] = (),
    ) -> list[DagView]:
        """Return the files that define no DAG, followed by DAGs by name.

        Args:
            search: A part of the DAG's id.
            state: ``broken`` selects files that cannot be imported, and the DAGs of these files.
            after: The key of the last entry of the previous page; see ``dag_key``.
            tags: Only DAGs with one of these tags; if empty, all DAGs and files.
        """
        known = await self.catalogue.known()
        declared = await self.declarations.read(known) if tags else {}
        wanted = search.casefold()
        section, last = after or (0, "")
        alone: list[DagView] = []
        if not section and state != "paused" and not tags:
            defining = {row.file for row in known.dags.values() if not row.gone}
            alone = [
                broken_view(row)
                for name, row in sorted(known.files.items())
                if row.reason and name not in defining and wanted in name.casefold() and name > last
            ][:limit]
        most = None if limit is None else limit - len(alone)
        found: list[tuple[DagRow, str | None]] = []
        names, gone = await self.catalogue.names(), await self._gone(known)
        for dag_id in sorted([*names, *gone]) if gone else names:
            if len(found) == most:
                break
            row = known.dags.get(dag_id)
            if row is None:
                continue  # deleted meanwhile
            error = GONE if dag_id in gone else import_error(known.files.get(row.file))
            if (section and dag_id <= last) or wanted not in dag_id.casefold():
                continue
            if tags and (dag_id not in declared or not set(tags) & set(declared[dag_id].tags)):
                continue
            if (state == "paused" and not row.paused) or (state == "broken" and error is None):
                continue
            found.append((row, error))
        return alone + await self._dag_views(found)

    async def page_of_dags(
        self,
        *,
        search: str,
        state: DagsWanted,
        limit: int,
        cursor: str | None,
        tags: Collection[str] = (),
    ) -> Page[DagView]:
        """Return a page of ``list_dags``."""
        after = None
        if cursor is not None:
            section, name = decode_cursor("dags", cursor, (int, str))
            after = int(section), str(name)
        found = await self.list_dags(
            search=search, state=state, limit=limit + 1, after=after, tags=tags
        )
        return page_of("dags", found, limit, dag_key)

    async def _gone(self, known: KnownDags) -> set[str]:
        """Return the DAGs that no file defines any more, but that still have a live run."""
        gone = {dag_id for dag_id, row in known.dags.items() if row.gone}
        return gone & await self.store.find_live_dags() if gone else gone

    async def _dag_views(self, found: Sequence[tuple[DagRow, str | None]]) -> list[DagView]:
        """Return the list entries of DAGs, with the import error of each DAG's file."""
        views: list[DagView] = []
        for first in range(0, len(found), _DAGS_AT_ONCE):
            if first:
                await checkpoint()
            some = found[first : first + _DAGS_AT_ONCE]
            specs = [await self.known_spec(row.version, row.dag_id) for row, _ in some]
            own = await self._triggers_of(specs)
            views += [
                DagView(
                    dag_id=row.dag_id,
                    file=row.file,
                    version=row.version,
                    paused=row.paused,
                    schedule=self._schedule(spec, own),
                    timezone=spec.timezone,
                    next_run_at=self._next_run_at(row, spec),
                    import_error=error,
                    tags=spec.tags,
                )
                for (row, error), spec in zip(some, specs, strict=True)
            ]
        return views

    async def _triggers_of(self, specs: Iterable[DagSpec]) -> Mapping[str, DagTriggerRow]:
        """Return the triggers that start runs of these DAGs. Not every DAG has one."""
        wanted = [spec.dag_id for spec in specs if spec.trigger is not None]
        return await self.store.find_dag_triggers(wanted) if wanted else {}

    def _schedule(self, spec: DagSpec, own: Mapping[str, DagTriggerRow]) -> str | None:
        return schedule_text(spec, own.get(spec.dag_id), self.public_fields)

    async def show_dag(self, dag_id: str) -> DagDetailView:
        """Return one DAG in its newest version."""
        row = await self.shown_row(dag_id)
        known = await self.catalogue.known()
        spec = await self.known_spec(row.version, dag_id)
        return DagDetailView(
            dag_id=dag_id,
            file=row.file,
            version=row.version,
            paused=row.paused,
            schedule=self._schedule(spec, await self._triggers_of([spec])),
            trigger=None,
            timezone=spec.timezone,
            next_run_at=self._next_run_at(row, spec),
            import_error=GONE if row.gone else import_error(known.files.get(row.file)),
            catchup=spec.catchup,
            missed=spec.missed,
            max_active_runs=spec.max_active_runs,
            isolated=spec.isolated,
            python=spec.interpreter,
            parameters=spec.parameters,
            required=spec.required,
            params=params_view(spec),
            tags=spec.tags,
            doc=spec.doc,
            tasks=_task_specs(spec),
        )

    async def next_fire_times(self, dag_id: str, after: Timestamp, count: int) -> list[str]:
        """Return the next fire times of a DAG's schedule, even if it is paused.

        There are none if the DAG starts a new run as soon as its previous run has ended. A custom
        timetable is evaluated in a child process.

        Raises:
            RequestError: If a custom timetable is unavailable, does not respond, or fails.
        """
        row = await self.dag_row(dag_id)
        spec = await self.spec(row.version, dag_id)
        if spec.trigger is not None and spec.trigger.is_timetable:
            own = (await self.store.find_dag_triggers([dag_id])).get(dag_id)
            fire_times: Sequence[Timestamp] = await timetable_fire_times(
                self.timetables, row, own, after, count
            )
        else:
            fire_times = calendar_fire_times(row, spec, after, count)
        return [iso(fire_time) or "" for fire_time in fire_times]

    def _next_run_at(self, row: DagRow, spec: DagSpec) -> str | None:
        if self.timetables is not None and spec.trigger is not None and not row.gone:
            return iso(self.timetables.expected_of(row.dag_id))
        return iso(next_run_at(row, spec))

    async def spec(self, version: str, dag_id: str) -> DagSpec:
        """Return a DAG in a given version."""
        known = self._specs.get((version, dag_id))
        if known is not None:
            return known
        if self._last_version[0] != version:
            row = await self.store.find_version(version)
            if row is None:
                raise UnknownDag(dag_id)
            self._last_version = version, {spec.dag_id: spec for spec in row.dags}
        found = self._last_version[1].get(dag_id)
        if found is None:
            raise UnknownDag(dag_id)
        _evict(self._specs, _CACHED_SPECS)
        self._specs[version, dag_id] = found
        return found

    async def known_spec(self, version: str, dag_id: str) -> DagSpec:
        """Return a DAG in a given version, without tasks if the version is missing or damaged."""
        try:
            return await self.spec(version, dag_id)
        except UnknownDag:
            return DagSpec(dag_id=dag_id, file="", tasks=())

    async def damaged(self) -> list[DamageView]:
        """Return the damaged rows found so far."""
        found = await self.store.list_damaged()
        numbers = {one.run_no for one in found if one.run_no is not None}
        runs = await self.store.find_runs_by_no(numbers)
        return [damage_view(one, runs.get(one.run_no or -1)) for one in found]

    async def dag_row(self, dag_id: str) -> DagRow:
        """Return a DAG that a file defines.

        Raises:
            UnknownDag: If no file defines it.
        """
        row = (await self.catalogue.known()).dags.get(dag_id)
        if row is not None and not row.gone:
            return row
        raise UnknownDag(dag_id)

    async def shown_row(self, dag_id: str) -> DagRow:
        """Return a DAG that a file defines, or a DAG without a file that still has a live run.

        Raises:
            UnknownDag: If there is no such DAG.
        """
        known = await self.catalogue.known()
        row = known.dags.get(dag_id)
        if row is not None and row.gone and dag_id in await self._gone(known):
            return row
        return await self.dag_row(dag_id)

    # ── runs ────────────────────────────────────────────────────────────────────────────

    async def list_runs(
        self,
        *,
        dag_id: str | None = None,
        state: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[RunSummary]:
        """Return runs, the newest first.

        Args:
            dag_id: Only runs of this DAG.
            state: Only runs in the state with this name.
            limit: Maximum number of runs.
            before: The last ``run_id`` of the previous page.
        """
        wanted = None if state is None else run_state_of(state)
        cursor = None if before is None else (await self.run(before)).run_no
        rows = await self.store.list_runs(dag_id=dag_id, state=wanted, limit=limit, before=cursor)
        return await self.summaries(rows)

    async def page_of_runs(
        self, wanted: RunFilter, *, limit: int, cursor: str | None = None
    ) -> Page[RunSummary]:
        """Return a page of the runs that match a filter, the newest first."""
        before = number_after("runs", cursor)
        rows = await self.store.find_matching_runs(wanted, limit=limit + 1, before=before)
        page = page_of("runs", rows, limit, lambda row: (row.run_no,))
        return Page(await self.summaries(page.items), page.next)

    async def summaries(self, rows: Sequence[RunRow]) -> list[RunSummary]:
        """Return the list entries of runs, with the notes on the runs."""
        notes = await self.store.find_notes_of_runs([row.run_no for row in rows]) if rows else {}
        damages, waiting = self.store.damages, self.waiting_runs(rows)
        return [
            summary(
                row,
                damages.of_run(row.run_no),
                notes.get(row.run_no),
                is_waiting=row.run_no in waiting,
            )
            for row in rows
        ]

    def waiting_runs(self, rows: Iterable[RunRow]) -> AbstractSet[RunNo]:
        """Return the numbers of the runs that only wait; an empty set without a daemon."""
        return frozenset()

    async def run(self, run_id: str) -> RunRow:
        """Return the row of a run.

        Raises:
            UnknownRun: If there is no such run.
        """
        row = await self.store.find_run(run_id)
        if row is None:
            raise UnknownRun(run_id)
        return row

    async def counts(self, runs: Sequence[RunRow]) -> list[dict[str, int]]:
        """Return the number of tasks of each run by state."""
        # The states are read first, so that the expansions read next cover all counted children.
        states = await self.states(runs)
        layouts = [await self.layout(run) for run in runs]
        return [
            layout.counts(rows, run.state)
            for run, layout, rows in zip(runs, layouts, states, strict=True)
        ]

    async def states(self, runs: Sequence[RunRow]) -> list[Counted]:
        """Return ``(task_index, state, count)`` of each run's tasks.

        Pending tasks without a row may be left out.
        """
        return [await self._count(run) for run in runs]

    async def _count(self, run: RunRow) -> Counted:
        """Count the rows of a run by task and state. The counts of an ended run are cached."""
        known = self._counted.get((run.run_no, run.ended_at))
        if known is not None:
            return known
        counted = await self.store.count_states(run.run_no)
        if run.ended_at is not None and not any(state.is_live for _, state, _ in counted):
            _evict(self._counted, _CACHED_COUNTS)
            self._counted[run.run_no, run.ended_at] = counted
        return counted

    async def first_error(self, run: RunRow) -> ErrorView | None:
        """Return the error of the first task that failed in an ended run. It is cached."""
        key = run.run_no, run.ended_at
        if key not in self._first_errors:
            task = await self.store.find_first_failed(run.run_no)
            _evict(self._first_errors, _CACHED_COUNTS)
            self._first_errors[key] = None if task is None else error_view(task.failure)
        return self._first_errors[key]

    async def layout(self, run: RunRow) -> RunLayout:
        """Return the locations of a run's tasks."""
        spec = await self.known_spec(run.version, run.dag_id)
        return RunLayout(run, spec, await self.store.list_expansions(run.run_no))

    async def layouts(self, run_nos: Iterable[RunNo]) -> dict[RunNo, tuple[RunRow, RunLayout]]:
        """Return the runs that exist, each with the locations of its tasks. Takes few queries."""
        runs = await self.store.find_runs_by_no(set(run_nos))
        expansions: dict[RunNo, list[ExpansionRow]] = {run_no: [] for run_no in runs}
        for row in await self.store.list_expansions_of(runs):
            expansions.setdefault(row.run_no, []).append(row)
        return {
            run_no: (
                run,
                RunLayout(run, await self.known_spec(run.version, run.dag_id), expansions[run_no]),
            )
            for run_no, run in runs.items()
        }

    async def show_run(self, run_id: str, *, offset: int = 0, limit: int = PAGE) -> RunView:
        """Return a run, its counts, and one page of its tasks."""
        run = await self.run(run_id)
        (states,) = await self.states([run])
        layout = await self.layout(run)
        locations = layout.page(offset, min(limit, PAGE))
        tasks = await self.tasks_at(run, layout, locations)
        return RunView(
            run_id=run.run_id,
            dag_id=run.dag_id,
            state=run_state_name(run),
            logical_date=iso(run.logical_date),
            started_at=iso(run.started_at),
            ended_at=iso(run.ended_at),
            conf=plain_fields(run.conf),
            version=run.version,
            quarantine=quarantine_reason(run, self.store.damages.of_run(run.run_no)),
            counts=layout.counts(states, run.state),
            tasks=tasks,
        )

    async def tasks_at(
        self, run: RunRow, layout: RunLayout, locations: Sequence[TaskLocation]
    ) -> list[TaskView]:
        """Return the tasks at these locations of a run."""
        rows: dict[TaskNo, TaskRow] = {}
        results: dict[TaskNo, Any] = {}
        labels: dict[TaskNo, str] = {}
        for first, end in layout.ranges(locations, _ROWS_AT_ONCE):
            found = await self.store.list_tasks_between(first, end, limit=end - first)
            rows |= {row.task_no: row for row in found}
            if any(row.state is TaskState.SUCCESS for row in found):
                for row in await self.store.list_results(first, end, limit=end - first):
                    results[row.task_no] = await self.results.shown(row)
            labels |= await self.store.list_labels(first, end, limit=end - first)
        absent = absent_state(run.state)
        waits = await self.waits(run, _waiting(locations, rows, absent))
        views = []
        for at, location in enumerate(locations, start=1):
            if at % _ROWS_AT_ONCE == 0:
                await checkpoint()
            task_row = rows.get(location.task_no)
            views.append(task_view(layout, location, task_row, run.state, waits, results, labels))
        return views

    async def waits(
        self, run: RunRow, tasks: Sequence[tuple[int, int]]
    ) -> Mapping[tuple[int, int], Wait | None]:
        """Return the waits of tasks. Empty here, because only the memory of a daemon has them."""
        return {}

    # ── logs ────────────────────────────────────────────────────────────────────────────

    async def logs(
        self,
        run_id: str,
        task_id: str,
        *,
        map_index: int = -1,
        try_number: int | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> bytes:
        """Return the log of a task, of all tries or of one, or the log of the run's callbacks."""
        log = await self.log(run_id, task_id, map_index=map_index, try_number=try_number)
        return b"" if log is None else await log.read(offset, limit)

    async def read_lines(
        self, log: TriedLog | None, wanted: LineRange, *, is_live: bool = False
    ) -> LogLinesView:
        """Return lines of a log; an empty list if the log does not exist.

        Raises:
            BadPattern: If a pattern is not valid, or takes too long.
        """
        found = LogLinesView(lines=[], next_offset=None)
        if log is not None:
            found = await self.lines.read(log, wanted)
        return msgspec.structs.replace(found, is_live=is_live)

    async def run_log(self, run_id: str, wanted: RunLogRange) -> RunLogView:
        """Return lines of all tasks of a run, and of its callbacks, in chronological order.

        Raises:
            BadPattern: If a pattern is not valid, or takes too long.
        """
        run = await self.run(run_id)
        found = await self._run_logs.read(await self.layout(run), run.run_no, wanted)
        return msgspec.structs.replace(found, is_live=run.state.is_live)

    async def log(
        self, run_id: str, task_id: str, *, map_index: int = -1, try_number: int | None = None
    ) -> TriedLog | None:
        """Return a log that can be read repeatedly; ``None`` if there is no such try.

        The log is located only once, however often it is read.

        Args:
            try_number: Number of the try, counted across clears; ``None`` for all tries.
        """
        run = await self.run(run_id)
        location = _RUN if task_id == OF_RUN else await self.locate(run, task_id, map_index)
        part: LogPart | None = LogPart(try_number=try_number)
        ended: list[StartNo] = []
        if task_id != OF_RUN:
            rows = await self.store.find_tasks([location.task_no])
            tries = await self.store.list_tries(location.task_no)
            part = log_part_of_try(tries, rows[0] if rows else None, try_number)
            ended = [one.start_no for one in tries]
        if part is None:
            return None
        reading = self._tasklog.reading
        return TriedLog(
            reading(run.run_no, location.task_index, location.map_index, part=part), ended
        )

    async def locate(self, run: RunRow, task_id: str, map_index: int) -> TaskLocation:
        """Locate a task instance.

        Args:
            map_index: The child; in a loop, the iteration. -1 means the loop's last iteration.

        Raises:
            UnknownTask: If the run has no such task, or the task no such child.
            UnknownRound: If the task's loop has not begun that iteration.
        """
        layout = await self.layout(run)
        for task_index, task in enumerate(layout.spec.tasks):
            if task.task_id == task_id:
                location = layout.locate(task_index, map_index)
                if location is not None:
                    return location
                if layout.is_in_loop(task_index):
                    raise UnknownRound(run.run_id, task_id, map_index, layout.width(task_index))
                raise UnknownTask(run.run_id, task_id, map_index)
        raise UnknownTask(run.run_id, task_id)


def dag_key(view: DagView) -> Key:
    """Return the sort key of an entry of the DAG list. Files that define no DAG come first."""
    return (0, view.file) if view.dag_id is None else (1, view.dag_id)


def _evict(cache: dict[Any, Any], limit: int) -> None:
    """Evict the oldest entries."""
    while len(cache) >= limit:
        del cache[next(iter(cache))]


def _task_specs(spec: DagSpec) -> list[TaskSpecView]:
    names = [task.task_id for task in spec.tasks]
    return [
        TaskSpecView(
            task_id=task.task_id,
            body=task.body.value,
            parents=tuple(names[parent] for parent in task.parents),
            trigger_rule=_rule(task),
            is_mapped=task.mapped is not None,
            is_sensor=task.sensor is not None,
            max_tries=task.retry.tries,
            pool=task.pool,
            doc=task.doc,
            line=task.line,
        )
        for task in spec.tasks
    ]


def _rule(task: TaskSpec) -> str:
    return task.rule.value if task.min_success is None else f"min_success={task.min_success:g}"


def run_state_of(name: str) -> RunState:
    """Return the state with this name.

    Raises:
        RequestError: If there is no such state.
    """
    for state in RunState:
        if state.label == name:
            return state
    known = ", ".join(state.label for state in RunState)
    raise RequestError(f"there is no run state {name!r}; there are {known}")


def _waiting(
    locations: Sequence[TaskLocation], rows: Mapping[TaskNo, TaskRow], absent: TaskState
) -> list[tuple[int, int]]:
    return [
        (location.task_index, location.map_index)
        for location in locations
        if (absent if (row := rows.get(location.task_no)) is None else row.state).is_live
    ]
