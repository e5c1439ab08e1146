"""Deletion of expired data, and of the rows, results and logs of runs that are marked as deleted.

Ended runs, events, journal rows, logs, versions and audit entries expire. A search for expired data
starts every hour and takes a few rows and runs at a time. An expired run is marked as deleted, just
as if a user had deleted it.

Everything is deleted in slices with pauses between them, so that running work is hardly affected.
The rows show what is left to delete, so a deletion may be interrupted anywhere and resumes at the
next start: the results of a task are deleted before its row, and everything else before the row of
the run. Nothing is deleted before the author's callbacks for the run have been called.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow._threads import in_thread
from aioflow.catalog.snapshot import Snapshots
from aioflow.clock import Clock
from aioflow.core.retention import Aged, deletable_runs, needed_versions, old_numbers
from aioflow.core.state.run_sequence import run_key
from aioflow.core.transaction import Transaction
from aioflow.engine.loop import Engine
from aioflow.errors import AioflowError, RequestError, StorageUnavailable, StoreUnavailable
from aioflow.model.batch import Batch
from aioflow.model.history import HistoryRow, day_of
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import DeletionRow, RunRow
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.outbox import callback_kind
from aioflow.protocol.requests import (
    AUDIT,
    DAG_EVENTS,
    EVENTS,
    JOURNAL,
    DeleteRun,
    EraseHistory,
    EraseOld,
    EraseRows,
    EraseVersions,
)
from aioflow.results import delete_results
from aioflow.storage.stored import StoredResults
from aioflow.store import TABLES_OF_RUNS, Store
from aioflow.telemetry.log import Logger
from aioflow.telemetry.task_log import RUNS_IN_BLOCK, TaskLog

__all__ = ("DELETION_SLICE_ROWS", "Cleaning", "Deleting", "ExpiredCounts", "RetentionDays")

_FIRST_SECONDS = 60.0
_ROUND_SECONDS = 3_600.0
_PART_SECONDS = 1.0
"""Pause between two parts of the hourly deletion."""

_AWAY_SECONDS = 60.0
"""Delay before a retry while the database is unavailable. Nothing here is urgent."""

_RUNS_AT_ONCE = 100
"""Maximum number of runs that one part marks as deleted.

A background part marks none while as many runs are being deleted.
"""

_SLICE_ROWS = 2_000
_SLICES = 5
_BLOCKS_AT_ONCE = 20
_SHARE = 4
"""Ratio of the pause after a slice to the duration of the slice."""

_DRY_RUNS, _DRY_ROWS, _DRY_BLOCKS = 10_000, 200_000, 200
"""Maximum numbers of runs, rows, and blocks of logs that a preview counts."""

_VERSIONS_AT_ONCE = 500
_CODE_SECONDS = 600.0
"""Minimum age of code folders to delete: code is written shortly before its version is stored."""
_KEYS_DAYS = 90.0
"""Days for which event keys of DAG triggers are stored. A stored key starts no second run."""

_DAY_US = 86_400_000_000

_log = Logger(__name__)


_Part: TypeAlias = Callable[[], Awaitable[tuple[int, bool]]]
"""A function that deletes a part of one kind of data.

It returns the number of deletions, and whether there may be more to delete.
"""


class RetentionDays(msgspec.Struct, frozen=True, kw_only=True):
    """Retention in days by kind of data; 0 means forever."""

    runs_days: float
    events_days: float
    journal_days: float
    logs_days: float
    versions_days: float = 0.0
    audit_days: float = 0.0
    hourly_history_days: float = 0.0
    history_days: float = 0.0


class ExpiredCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of deletions by kind of data, real or previewed; see ``api.schemas.CleanedView``.

    Attributes:
        more: Whether there is more expired data.
    """

    runs: int
    events: int
    journal: int
    logs: int
    versions: int
    audit: int
    history: int
    more: bool


class Cleaning:
    """The service that deletes expired data."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        tasklog: TaskLog,
        clock: Clock,
        days: RetentionDays,
        snapshots: Snapshots,
    ) -> None:
        self._engine = engine
        self._store = store
        self._tasklog = tasklog
        self._clock = clock
        self._days = days
        self._snapshots = snapshots
        self._next_block = 0
        self._parts: dict[str, _Part] = {
            "runs": self._delete_runs,
            "events": self._erase_events,
            "journal": partial(self._erase, JOURNAL),
            "logs": self._delete_logs,
            "versions": self._delete_versions,
            "audit": partial(self._erase, AUDIT),
            "history": self._erase_history,
        }
        self._gentle_parts: dict[str, _Part] = self._parts | {"runs": self._delete_few_runs}
        self._locks = {kind: anyio.Lock() for kind in self._parts}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Delete expired data every hour until cancelled, each kind independently of the others."""
        async with anyio.create_task_group() as kinds:
            for kind in self._parts:
                kinds.start_soon(self._rounds, kind)
            task_status.started()

    async def _rounds(self, kind: str) -> None:
        await self._clock.sleep(_FIRST_SECONDS)
        total = 0
        while True:
            count, pause_seconds = await self._gentle_part(kind)
            total += count
            if pause_seconds == _ROUND_SECONDS:
                if total:
                    _log.info("retention pass done", kind=kind, count=total)
                total = 0
            await self._clock.sleep(pause_seconds)

    async def _gentle_part(self, kind: str) -> tuple[int, float]:
        """Delete a part of one kind. Return the number of deletions, and the pause after it."""
        try:
            count, more = await self._part(kind, self._gentle_parts[kind])
        except StoreUnavailable as exc:
            _log.warning("retention waits for the database", kind=kind, error=str(exc))
            return 0, _AWAY_SECONDS
        except (AioflowError, OSError) as exc:
            _log.error("retention failed, retrying later", kind=kind, error=str(exc))
            return 0, _ROUND_SECONDS
        return count, _PART_SECONDS if more else _ROUND_SECONDS

    async def _part(self, kind: str, part: _Part) -> tuple[int, bool]:
        async with self._locks[kind]:
            return await part()

    async def clean(self) -> ExpiredCounts:
        """Delete a part of the expired data of each kind.

        Raises:
            StoreUnavailable: If the database does not respond. Data that was deleted before stays
                deleted.
        """
        counts, left = {}, False
        for kind, part in self._parts.items():
            counts[kind], more = await self._part(kind, part)
            left = left or more
        return ExpiredCounts(**counts, more=left)

    async def preview(self) -> ExpiredCounts:
        """Return how much would be deleted."""
        runs = len(await self._old_runs(_DRY_RUNS))
        events = await self._count_rows(EVENTS) + await self._count_rows(DAG_EVENTS)
        journal = await self._count_rows(JOURNAL)
        logs, more_logs = await self._count_logs()
        versions = len(await self._unneeded_versions(_DRY_RUNS))
        audit = await self._count_rows(AUDIT)
        history = len(await self._old_history(is_daily=True, limit=_DRY_ROWS))
        more = more_logs or max(runs, versions) >= _DRY_RUNS
        more = more or max(events, journal, audit, history) >= _DRY_ROWS
        return ExpiredCounts(
            runs=runs,
            events=events,
            journal=journal,
            logs=logs,
            versions=versions,
            audit=audit,
            history=history,
            more=more,
        )

    def _before(self, days: float) -> Timestamp | None:
        """Return the timestamp before which data has expired; ``None`` if it never expires."""
        return self._clock.now() - int(days * _DAY_US) if days else None

    async def _rest(self, began: int) -> None:
        """Pause after a slice that started at ``began``, in monotonic microseconds."""
        await self._clock.sleep(_SHARE * (self._clock.monotonic_us() - began) / 1e6)

    # ── runs ────────────────────────────────────────────────────────────────────────────

    async def _delete_few_runs(self) -> tuple[int, bool]:
        """Mark expired runs as deleted, until ``_RUNS_AT_ONCE`` runs are being deleted."""
        capacity = _RUNS_AT_ONCE
        if self._days.runs_days:
            capacity -= len(await self._store.list_deletions())
        return await self._delete_runs(capacity) if capacity > 0 else (0, True)

    async def _delete_runs(self, capacity: int = _RUNS_AT_ONCE) -> tuple[int, bool]:
        """Mark up to ``capacity`` expired runs as deleted."""
        found = await self._old_runs(capacity)
        count = 0
        for run in found:
            try:
                await self._engine.ask(DeleteRun(run_id=run.run_id))
            except RequestError as exc:  # the run was resumed, or deleted by another request
                _log.info("an expired run was not deleted", run_id=run.run_id, why=str(exc))
            else:
                count += 1
        return count, count > 0 and len(found) == capacity

    async def _old_runs(self, limit: int) -> list[RunRow]:
        """Return up to ``limit`` runs that may be deleted."""
        before = self._before(self._days.runs_days)
        found: list[RunRow] = []
        if before is None:
            return found
        for dag in await self._store.list_dags():
            found += await self._old_runs_of(dag.dag_id, before, limit - len(found))
            if len(found) == limit:
                break
        return found

    async def _old_runs_of(self, dag_id: str, before: Timestamp, limit: int) -> list[RunRow]:
        newest = await self._store.newest_ended_run(dag_id)
        cursor: tuple[Timestamp, RunNo] = (-sys.maxsize, -1)
        found: list[RunRow] = []
        while newest is not None and len(found) < limit:
            page = await self._store.list_old_runs(
                dag_id, before=before, after=cursor, limit=_RUNS_AT_ONCE
            )
            aged = await self._aged(dag_id, page)
            found += deletable_runs(aged, before=before, newest=newest.run_no)
            if len(page) < _RUNS_AT_ONCE:
                break
            cursor = (page[-1].ended_at or 0, page[-1].run_no)
        return found[:limit]

    async def _aged(self, dag_id: str, page: list[RunRow]) -> list[Aged]:
        places = [order for order in map(run_key, page) if order is not None]
        found = iter(await self._store.find_runs_after(dag_id, places))
        return [Aged(run, None if run_key(run) is None else next(found)) for run in page]

    # ── rows that belong to no run ──────────────────────────────────────────────────────

    async def _erase_events(self) -> tuple[int, bool]:
        """Delete some expired events, both named events and those of DAG triggers."""
        named, more_named = await self._erase(EVENTS)
        of_dags, more_of_dags = await self._erase(DAG_EVENTS)
        return named + of_dags, more_named or more_of_dags

    async def _erase(self, table: str) -> tuple[int, bool]:
        """Delete some expired rows of a table, with pauses."""
        count = 0
        for _ in range(_SLICES):
            began = self._clock.monotonic_us()
            numbers = await self._old_numbers(table, -1)
            if not numbers:
                return count, False
            try:
                await self._engine.ask(EraseOld(table=table, numbers=numbers))
            except RequestError as exc:  # an older run was resumed
                _log.info("expired rows were not deleted", table=table, why=str(exc))
                return count, False
            count += len(numbers)
            if len(numbers) < _SLICE_ROWS:
                return count, False
            await self._rest(began)
        return count, True

    async def _count_rows(self, table: str) -> int:
        count, last = 0, -1
        while count < _DRY_ROWS:
            numbers = await self._old_numbers(table, last)
            count += len(numbers)
            if len(numbers) < _SLICE_ROWS:
                break
            last = numbers[-1]
        return count

    async def _old_numbers(self, table: str, after: int) -> list[int]:
        limits = self._days
        days = {
            EVENTS: limits.events_days,
            DAG_EVENTS: _KEYS_DAYS,
            JOURNAL: limits.journal_days,
            AUDIT: limits.audit_days,
        }
        before = self._before(days[table])
        if before is None:
            return []
        below = await self._store.oldest_live_run() if table == EVENTS else None
        rows = await self._store.list_numbers(table, after=after, limit=_SLICE_ROWS)
        return old_numbers(rows, before=before, below=below)

    # ── history ─────────────────────────────────────────────────────────────────────────

    async def _erase_history(self) -> tuple[int, bool]:
        """Merge some old hours into days, and delete some expired days, with pauses.

        Returns:
            How many rows of expired days were deleted, and whether there is more to do.
        """
        count = 0
        for _ in range(_SLICES):
            began = self._clock.monotonic_us()
            hours = await self._old_history(is_daily=False, limit=_SLICE_ROWS)
            days = await self._old_history(is_daily=True, limit=_SLICE_ROWS)
            expired = [*days, *([] if self._merges_hours else hours)]
            if hours and self._merges_hours:
                await self._engine.ask(EraseHistory(rows=hours, is_merged=True))
            if expired:
                await self._engine.ask(EraseHistory(rows=expired))
            count += len(expired)
            if max(len(hours), len(days)) < _SLICE_ROWS:
                return count, False
            await self._rest(began)
        return count, True

    @property
    def _merges_hours(self) -> bool:
        """Whether hours are merged into days before they expire; else they expire as hours."""
        hourly, daily = self._days.hourly_history_days, self._days.history_days
        return bool(hourly) and (not daily or hourly < daily)

    async def _old_history(self, *, is_daily: bool, limit: int) -> list[HistoryRow]:
        """Return some days that have expired, or some hours to be merged into days or deleted.

        The current day and the day before are never among them: more may be added to their hours.
        """
        is_merged = not is_daily and self._merges_hours
        days = self._days.hourly_history_days if is_merged else self._days.history_days
        before = self._before(days)
        if before is None:
            return []
        before = min(day_of(before), day_of(self._clock.now()) - _DAY_US)
        return await self._store.list_old_history(before=before, is_daily=is_daily, limit=limit)

    # ── versions ────────────────────────────────────────────────────────────────────────

    async def _delete_versions(self) -> tuple[int, bool]:
        """Delete some versions that nothing refers to, then code whose version is gone."""
        found, count = await self._unneeded_versions(_VERSIONS_AT_ONCE), 0
        if found:
            try:
                count = cast("int", await self._engine.ask(EraseVersions(versions=found)))
            except StoreUnavailable:
                raise
            except AioflowError as exc:  # a run uses one of these versions now
                _log.info("expired versions were not deleted", why=str(exc))
        if count and len(found) == _VERSIONS_AT_ONCE:
            return count, True
        return count, await self._delete_code()

    async def _unneeded_versions(self, limit: int) -> list[str]:
        """Return some versions that neither rows nor memory refer to.

        The query limit is raised by the number of versions in memory, so that these cannot fill the
        result.
        """
        before = self._before(self._days.versions_days)
        if before is None:
            return []
        held = needed_versions(self._engine.memory)
        most = limit + len(held)
        found = await self._store.list_unneeded_versions(before=before, limit=most)
        return [version for version in found if version not in held][:limit]

    async def _delete_code(self) -> bool:
        """Delete some code folders of versions that are not in the database, except new folders.

        Returns:
            Whether there are more such folders.
        """
        before = self._clock.now() / 1e6 - _CODE_SECONDS
        folders = await self._snapshots.list_old(before_seconds=before)
        known, last = set[str](), ""
        while folders and (page := await self._store.list_versions(after=last)):
            known.update(page)
            last = page[-1]
        stray = [version for version in folders if version not in known]
        stored = self._engine.memory.stored_versions
        first = stray[:_VERSIONS_AT_ONCE]
        count = await self._snapshots.discard(first, stored.__contains__)
        if count:
            _log.info("deleted code of old versions", count=count)
        return count > 0 and len(stray) > len(first)

    # ── logs ────────────────────────────────────────────────────────────────────────────

    async def _delete_logs(self) -> tuple[int, bool]:
        """Delete the expired logs in some blocks of runs, with pauses."""
        before = self._before(self._days.logs_days)
        if before is None:
            return 0, False
        blocks = [no for no in await self._tasklog.list_blocks() if no >= self._next_block]
        count = 0
        for block in blocks[:_BLOCKS_AT_ONCE]:
            began = self._clock.monotonic_us()
            count += await self._old_logs(block, before)
            await self._rest(began)
        is_over = len(blocks) <= _BLOCKS_AT_ONCE
        self._next_block = 0 if is_over else blocks[_BLOCKS_AT_ONCE]
        return count, not is_over

    async def _count_logs(self) -> tuple[int, bool]:
        before = self._before(self._days.logs_days)
        if before is None:
            return 0, False
        blocks = await self._tasklog.list_blocks()
        counts = [await self._old_logs(no, before, dry_run=True) for no in blocks[:_DRY_BLOCKS]]
        return sum(counts), len(blocks) > _DRY_BLOCKS

    async def _old_logs(self, block: int, before: Timestamp, *, dry_run: bool = False) -> int:
        task, first = self._engine.memory.runs, block * RUNS_IN_BLOCK
        retained = {run_no for run_no in range(first, first + RUNS_IN_BLOCK) if run_no in task}
        return await self._tasklog.delete_old(
            block, before=before, retained=retained, dry_run=dry_run
        )


DELETION_SLICE_ROWS = 2_000
"""Maximum number of rows to delete in one commit, divided among the runs being deleted."""

_PARALLEL_DELETIONS = 8
"""Number of runs to delete at once.

Small runs are read quickly and mostly wait for commits, which they share.
"""

_LEAST_REST_SECONDS = 0.01
_DELETION_RETRY_SECONDS = 1.0
"""Delay before a retry if a triggerer still runs a trigger, or the database does not respond."""


class Deleting:
    """The service that deletes runs.

    Args:
        results: The folder of large results.
        stored: The results that are stored outside of the home; ``None`` if none are.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        tasklog: TaskLog,
        results: Path,
        clock: Clock,
        stored: StoredResults | None = None,
    ) -> None:
        self._given_up: set[RunNo] = set()  # runs not to be deleted before the next start
        self._last_outbox_no: dict[RunNo, int | None] = {}  # number of the last callback to await
        self._under_way = 0
        self._is_away = False
        self._engine = engine
        self._store = store
        self._tasklog = tasklog
        self._results = results
        self._stored = stored
        self._clock = clock
        self._wanted = anyio.Event()
        self._wanted.set()  # an earlier process may have left runs to delete

    def committed(self, batch: Batch, _: Transaction) -> None:
        """Handle a durable batch: start deleting if it marks runs as deleted."""
        if batch.new_deletions:
            self._wanted.set()

    async def run(self) -> None:
        """Delete the runs that are marked as deleted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            self._is_away = False
            try:
                are_left = await self._delete_all()
            except StoreUnavailable as exc:
                _log.warning("deleting runs waits for the database", error=str(exc))
                are_left = True
            if are_left:
                self._wanted.set()
                await self._clock.sleep(_DELETION_RETRY_SECONDS)

    async def _delete_all(self) -> bool:
        """Delete the runs that are marked as deleted. Return whether any of them has to wait."""
        named = iter(await self._store.list_deletions())
        left: list[DeletionRow] = []
        async with anyio.create_task_group() as runs:
            for _ in range(_PARALLEL_DELETIONS):
                runs.start_soon(self._delete_each, named, left)
        return bool(left)

    async def _delete_each(self, named: Iterator[DeletionRow], left: list[DeletionRow]) -> None:
        """Delete one run after the other. Add the runs that have to wait to ``left``."""
        for deletion in named:
            if deletion.run_no in self._given_up:
                continue
            try:
                if await self._is_needed(deletion.run_no):
                    left.append(deletion)
                    continue
                self._under_way += 1
                try:
                    await self._delete(deletion)
                finally:
                    self._under_way -= 1
            except (StoreUnavailable, StorageUnavailable) as exc:
                if not self._is_away:  # runs deleted in parallel get the same error
                    is_storage = isinstance(exc, StorageUnavailable)
                    what = "storage of results or logs" if is_storage else "database"
                    _log.warning(f"deleting runs waits for the {what}", error=str(exc))
                self._is_away = True
                left.append(deletion)
                return
            except (AioflowError, OSError) as exc:
                _log.error("a run cannot be deleted", run_no=deletion.run_no, error=str(exc))
                self._given_up.add(deletion.run_no)

    async def _is_needed(self, run_no: RunNo) -> bool:
        """Return whether a trigger of the run may still be running, or a callback may be pending.

        Callbacks of one DAG are delivered in order. So it is enough to wait for the callbacks that
        were in the outbox when the deletion started.
        """
        run = await self._store.find_run_no(run_no)
        if run is None:
            return False
        kind = callback_kind(run.dag_id)
        if run_no not in self._last_outbox_no:
            self._last_outbox_no[run_no] = await self._store.last_outbox_no(kind)
        last = self._last_outbox_no[run_no]
        if last is not None:
            pending = await self._store.list_outbox(kind, after=-1, limit=1)
            if pending and pending[0].outbox_no <= last:
                return True
        return await self._store.has_triggers(run_no)

    async def _delete(self, deletion: DeletionRow) -> None:
        for table in TABLES_OF_RUNS:
            if table == "run":
                await self._tasklog.delete(deletion.run_no)
            await self._empty(table, deletion)
        self._last_outbox_no.pop(deletion.run_no, None)
        _log.info("run deleted", run_no=deletion.run_no)

    async def _empty(self, table: str, deletion: DeletionRow) -> None:
        after, number = -1, deletion.run_no
        while True:
            began = self._clock.monotonic_us()
            limit = max(1, DELETION_SLICE_ROWS // self._under_way)
            keys = await self._store.list_erasable(table, number, after=after, limit=limit)
            if not keys:
                return
            if table in {"task", "result"}:
                await self._delete_results(table, [key[0] for key in keys])
            await self._engine.ask(EraseRows(run_no=number, table=table, keys=keys))
            after = keys[-1][0]
            took = (self._clock.monotonic_us() - began) / 1e6
            await self._clock.sleep(max(_LEAST_REST_SECONDS, _SHARE * took))
            if len(keys) < limit:
                return

    async def _delete_results(self, table: str, numbers: list[TaskNo]) -> None:
        """Delete the large results of these tasks, before their rows in a table.

        The rows name the results that are stored outside of the home. A result that was stored
        there by a start that never committed has no row: see ``result_orphans``.
        """
        if table == "task":
            await in_thread(partial(delete_results, self._results, numbers))
            if self._stored is not None:
                await self._stored.copies.delete(numbers)
        elif self._stored is not None:
            keys = await self._store.list_stored_results(numbers[0], numbers[-1] + 1)
            deleted = set(numbers)
            await self._stored.storage.delete([key for key in keys if key[0] in deleted])
