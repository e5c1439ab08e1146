"""The protocol of a store, and the function that opens one.

Only this package contains SQL. ``open_store`` imports SQLAlchemy and the database driver on its
first call, so importing the protocol needs neither.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from aioflow.crypto import Vault
from aioflow.errors import SettingsError
from aioflow.model.access import (
    EVERY_ENTRY,
    AccountRow,
    AuditFilter,
    AuditHead,
    AuditRow,
    SessionRow,
    TokenRow,
)
from aioflow.model.batch import Batch, JournalRow
from aioflow.model.dag import BackfillRow, ValueKind
from aioflow.model.history import OF_RUN, HistoryRow
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.pool_usage import PoolUsageKey, PoolUsageRow
from aioflow.model.rows import (
    DagFileRow,
    DagRow,
    Damage,
    DeletionRow,
    ExpansionRow,
    ItemRow,
    NamedEventRow,
    NamedEventSummary,
    NodeFacts,
    NodeMark,
    OutboxRow,
    PoolRow,
    RecordRow,
    ResultRow,
    RunRow,
    TaskRow,
    TriggerRow,
    TryRow,
    TryWorkerRow,
    ValueRow,
    VersionRow,
)
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import DagTriggerRow
from aioflow.protocol.inputs import LiveRun, UnfinishedWork
from aioflow.store.membership import Membership
from aioflow.store.node_messages import NodeMessages
from aioflow.store.rows import Damages
from aioflow.store.ui_protocol import Browsed

__all__ = (
    "TABLES_OF_RUNS",
    "Claim",
    "Durability",
    "Finding",
    "Owner",
    "Store",
    "open_store",
)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon that last claimed a database, if it has not shut down cleanly.

    Attributes:
        home: The identity of the daemon's home; empty if unknown.
        mark: A value that changes with each commit and each heartbeat of the daemon.
    """

    home: str
    mark: NodeMark
    host: str | None
    pid: int | None

    @property
    def name(self) -> str:
        """The daemon's process id and host name."""
        return f"process {self.pid} on {self.host}"


Durability: TypeAlias = Literal["full", "normal"]
"""``full``: a commit survives a power failure. ``normal``: it survives only a process crash."""

TABLES_OF_RUNS = (
    "stream_item",
    "record",
    "decision",
    "try",
    "try_worker",
    "result",
    "map_label",
    "task",
    "expansion",
    "clear_request",
    "note",
    "run",
    "deletion",
)
"""Tables with rows of a run, in deletion order.

The rows of a run are deleted only when no triggerer can still run a trigger of the run.
"""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The exclusive right of this node to write.

    Attributes:
        epoch: The term of this claim. It is higher than that of any earlier claim of any node.
        commit_no: Number of this node's last applied batch. The next batch has the following
            number.
        seen_at, steady_at: Time of the last applied batch of any node, on the wall clock and on the
            steady clock. ``None`` if there was no batch, or if an older version applied it.
        after_crash: Whether the daemon that claimed the database last did not shut down cleanly.
    """

    node_no: int
    epoch: int
    commit_no: int
    seen_at: Timestamp | None = None
    steady_at: Timestamp | None = None
    after_crash: bool = False


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with the database that must be reported to the operator."""

    reason: str
    message: str


class Store(Browsed, Protocol):
    """Durable state, one instance per node.

    A read adds each unreadable row to ``damages``, and marks the row itself if its Struct has a
    field for that, see ``rows.mark_damaged``. Unreadable values are replaced by placeholders. For
    rows that restore a run, ``LiveRun.damage`` reports the damage.

    Reads may run concurrently. They see only committed rows and never block the writer. Only the
    engine writes, one batch at a time. Lists have a stable order and are paged. A page shorter than
    its limit is the last one.

    Raises:
        StoreUnavailable: From any method, if the database is unreachable or stays locked, or its
            disk is full or failing. Nothing was written, or the outcome of the write is unknown.
            The same call may be repeated.
        StrangeDatabase: From any method, if the database has changed since it was opened: the file
            was replaced, a table is missing, or the database is damaged. The store stops writing.
        SyncFailed: From any method, once an fsync has failed. The process has to exit.

    Attributes:
        membership: The other daemons on the database; ``None`` if this daemon is alone on it.
        node_messages: The messages to and from the other daemons; ``None`` if this daemon is alone.
    """

    damages: Damages
    membership: Membership | None
    node_messages: NodeMessages | None

    def limited(self, seconds: float) -> Store:
        """Return this store with a time limit for each read statement.

        A read raises ``StoreSlow`` if one of its statements takes longer than ``seconds``.
        """

    async def claim(self, about: NodeFacts | None = None) -> Claim:
        """Make this node active under a new term. Writers with an older epoch are fenced.

        Called once, before the first ``commit``.

        Raises:
            HomeBusy: If another node is active, and the claim does not take over from it.
            ForeignDatabase: If the integrity check after an unclean shutdown finds damage. The
                check has a time limit, so it may cover only a part of the file.
        """

    async def find_owner(self) -> Owner | None:
        """Return the daemon that claimed the database last, unless it shut down cleanly.

        Always ``None`` for a SQLite file: its lock shows whether a daemon is alive.
        """

    async def can_decrypt(self) -> bool:
        """Return whether any encrypted value can be decrypted; true if no value is encrypted."""

    async def heartbeat(self, at: Timestamp) -> None:
        """Record a heartbeat of this daemon for other daemons to see. Any commit counts as one.

        Raises:
            Fenced: If another daemon has claimed the database.
        """

    async def leave(self) -> None:
        """Record a clean shutdown, so that the next daemon does not wait for this one."""

    async def commit(self, batch: Batch) -> None:
        """Apply all changes of ``batch`` in one transaction, or none.

        A batch that has already been applied is ignored, so the caller may repeat it after a lost
        reply. If the call is cancelled, the batch is applied completely or not at all. A version
        that is already stored is not changed. If a batch has several rows for one DAG, file, pool
        or result, the last one wins.

        Raises:
            Fenced: If this node has been declared dead. Nothing was written, and the state in the
                node's memory is no longer valid.
            BatchRefused: If a row is not in the state that a change expects, or a value cannot be
                stored. Nothing was written, and repeating the call cannot succeed.
            StrangeDatabase: If the last commit number in the database is neither the number of this
                batch nor the number before.
        """

    async def find_refused(self, batch: Batch) -> dict[str, int]:
        """Return the ids of the first row in a refused batch that the database rejects.

        The ids are ``run_no``, ``task_no`` and ``trigger_no``, as far as the row's table has these
        columns. The result is empty if the database rejects no single row. Nothing is written.
        """

    async def lease_numbers(self, count: int) -> int:
        """Reserve ``count`` consecutive row numbers and return the first.

        They are never issued again.

        Raises:
            ValueError: If ``count`` is below 1.
        """

    async def mark_storage(self, proposal: str) -> str:
        """Return the mark of this database in external storage. The first proposal is stored.

        The mark distinguishes databases that use the same external storage.
        """

    async def put_result_chunk(
        self, task_no: TaskNo, start_no: StartNo, chunk_no: int, body: bytes, at: Timestamp
    ) -> None:
        """Store a chunk of a large result durably, outside any batch.

        If the start never commits its result, the chunks are deleted later; see
        ``maintenance.result_orphans``.
        """

    async def delete_result_chunks(self, task_no: TaskNo, start_no: StartNo) -> None:
        """Delete the chunks of a large result. Missing chunks are ignored."""

    async def find_result_chunk(
        self, task_no: TaskNo, start_no: StartNo, chunk_no: int
    ) -> bytes | None:
        """Return a chunk of a large result; ``None`` if there is no such chunk."""

    async def list_chunked_results(
        self, first: TaskNo, end: TaskNo
    ) -> list[tuple[TaskNo, StartNo, Timestamp]]:
        """Return the large results that are stored in chunks, ``end`` excluded."""

    async def next_chunked_task(self, first: TaskNo) -> TaskNo | None:
        """Return the first task, at or after ``first``, whose result is stored in chunks."""

    def unfinished(self) -> AbstractAsyncContextManager[AsyncIterator[UnfinishedWork]]:
        """Open a consistent view of all unfinished work. Versions come without their sources.

        The first item is a ``RecoverySnapshot`` without runs. The runs follow by number, large ones
        in pieces, see ``LiveRun.is_whole``. Triggers without a live run come between the runs.
        """

    async def load_run(self, run_no: RunNo) -> LiveRun | None:
        """Return all rows needed to resume a run, whether it has ended or not."""

    def pieces_of_run(self, run_no: RunNo) -> AbstractAsyncContextManager[AsyncIterator[LiveRun]]:
        """Open a consistent view of a run as ``load_run`` returns it.

        A large run comes in pieces, see ``LiveRun.is_whole``.
        """

    async def find_run(self, run_id: str) -> RunRow | None:
        """Return the run with that id."""

    async def find_run_no(self, run_no: RunNo) -> RunRow | None:
        """Return the run with that number."""

    async def list_outbox(self, kind: str, *, after: int, limit: int) -> list[OutboxRow]:
        """Return the outbox rows of one kind with numbers above ``after``, by number."""

    async def find_run_by_key(self, dag_id: str, key: str) -> RunRow | None:
        """Return the run that was created with that idempotency key."""

    async def find_existing(self, run_ids: Collection[str]) -> list[tuple[RunRow, bool]]:
        """Return the runs with these ids, and whether each is being deleted, in no order."""

    async def find_existing_by_keys(
        self, dag_id: str, keys: Collection[str]
    ) -> list[tuple[RunRow, bool]]:
        """Return the runs created with these idempotency keys, and whether each is being deleted.

        The runs come in no order.
        """

    async def find_clear(self, run_no: RunNo, key: str) -> int | None:
        """Return how many tasks of a run were cleared by the request with that idempotency key."""

    async def find_runs(self, run_ids: Collection[str]) -> list[RunRow]:
        """Return the runs with these ids that exist, in no order. One statement per 500 ids."""

    async def find_runs_at(self, dag_id: str, logical_dates: Collection[Timestamp]) -> list[RunRow]:
        """Return the newest run of a DAG for each of these logical dates, in no order.

        Dates without a run are omitted.
        """

    async def find_runs_before(
        self, dag_id: str, places: Sequence[tuple[Timestamp, RunNo]]
    ) -> list[RunRow | None]:
        """Return the run of a DAG right before each pair of logical date and number.

        All reads see the same committed state. Each pair takes one index lookup.
        """

    async def first_run_ended_since(self, dag_id: str, since: Timestamp) -> RunRow | None:
        """Return the first run of a DAG that ended at or after ``since``."""

    async def list_runs(
        self,
        *,
        dag_id: str | None = None,
        state: RunState | None = None,
        limit: int = 100,
        before: RunNo | None = None,
    ) -> list[RunRow]:
        """Return runs, the newest first; ``before`` is the last number of the previous page."""

    async def list_tasks_between(
        self, first: TaskNo, end: TaskNo, limit: int = 1000
    ) -> list[TaskRow]:
        """Return task rows by number, ``end`` excluded. A task without a row is pending."""

    async def find_tasks(self, task_nos: Collection[TaskNo]) -> list[TaskRow]:
        """Return the existing rows of these tasks, in no order. One statement per 500 tasks."""

    async def count_states(self, run_no: RunNo) -> list[tuple[int, TaskState, int]]:
        """Return ``(task_index, state, count)`` of the task rows of a run, removed tasks excluded.

        Reads every task row of the run. For a live run use ``CountTasks``, which counts in memory.
        """

    async def list_expansions(self, run_no: RunNo) -> list[ExpansionRow]:
        """Return the expansions of a run by task index."""

    async def list_expansions_of(self, run_nos: Collection[RunNo]) -> list[ExpansionRow]:
        """Return the expansions of many runs, in no order. One statement per 500 runs."""

    async def list_results(self, first: TaskNo, end: TaskNo, limit: int = 1000) -> list[ResultRow]:
        """Return results by task number, ``end`` excluded."""

    async def list_labels(self, first: TaskNo, end: TaskNo, limit: int = 1000) -> dict[TaskNo, str]:
        """Return the labels of mapped tasks by task number, ``end`` excluded."""

    async def list_tries(self, task_no: TaskNo) -> list[TryRow]:
        """Return the stored tries of a task, in the order of their starts."""

    async def list_try_workers(self, task_no: TaskNo) -> list[TryWorkerRow]:
        """Return the remote workers that ran the starts of a task, in the order of the starts."""

    async def list_records(
        self, task_no: TaskNo, after: int = -1, limit: int = 1000
    ) -> list[RecordRow]:
        """Return the recorded calls of a task with ordinals above ``after``, in order."""

    async def list_named_events(
        self, name: str, *, after: int = -1, limit: int = 1000
    ) -> list[NamedEventRow]:
        """Return the named events of one name with numbers above ``after``, by number."""

    async def latest_named_events(
        self, *, name: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[NamedEventRow]:
        """Return named events, the newest first.

        Args:
            before: Number of the last event of the previous page.
        """

    async def latest_updates(self, names: Collection[str]) -> dict[str, NamedEventSummary]:
        """Return the newest named event of each name that has one, without its data."""

    async def find_named_event(self, name: str, request: str) -> NamedEventRow | None:
        """Return the event of that name that was sent with that idempotency key."""

    async def find_value(self, kind: ValueKind, name: str) -> ValueRow | None:
        """Return a secret, connection or variable, decrypted."""

    async def list_values(self, kind: ValueKind) -> list[ValueRow]:
        """Return all values of a kind by name, decrypted."""

    async def list_accounts(self) -> list[AccountRow]:
        """Return every account by name."""

    async def list_tokens(self) -> list[TokenRow]:
        """Return every token by number."""

    async def list_sessions(self) -> list[SessionRow]:
        """Return every session by number."""

    async def list_audit(
        self,
        wanted: AuditFilter = EVERY_ENTRY,
        *,
        before: int | None = None,
        limit: int = 100,
    ) -> list[AuditRow]:
        """Return the audit entries that match a filter, the newest first.

        Args:
            before: Number of the last entry of the previous page.
        """

    async def find_audit(self, audit_no: int) -> AuditRow | None:
        """Return the audit entry with a number; ``None`` if there is none."""

    async def read_audit(self, after: int = -1, limit: int = 1000) -> list[AuditRow]:
        """Return audit entries with numbers above ``after``, in order."""

    async def find_audit_head(self) -> AuditHead:
        """Return the head of the audit chain; ``LOST`` if it is missing or cannot be decrypted."""

    async def list_pools(self) -> list[PoolRow]:
        """Return the limited pools by name."""

    async def list_items(
        self, task_no: TaskNo, after: int = -1, limit: int = 1000
    ) -> list[ItemRow]:
        """Return the items with an index above ``after`` that a task has yielded, in order."""

    async def list_triggers(self, limit: int = 1000, after: TriggerNo = -1) -> list[TriggerRow]:
        """Return trigger rows by number, kwargs decrypted."""

    async def list_dag_triggers(
        self, *, after: TriggerNo = -1, upto: TriggerNo = sys.maxsize, limit: int = 1000
    ) -> list[DagTriggerRow]:
        """Return the triggers that start DAG runs, ordered by number, fields decrypted."""

    async def find_dag_triggers(self, dag_ids: Collection[str]) -> dict[str, DagTriggerRow]:
        """Return the triggers that start runs of these DAGs, by ``dag_id``, fields decrypted."""

    async def find_event_keys(
        self, wanted: Mapping[TriggerNo, Collection[str]]
    ) -> set[tuple[TriggerNo, str]]:
        """Return which of these event keys are stored as used by their DAG triggers.

        Used keys are deleted after some time. One statement covers 500 keys, regardless of how many
        triggers they belong to.
        """

    async def list_dags(self) -> list[DagRow]:
        """Return every DAG by name."""

    async def list_dag_files(self) -> list[DagFileRow]:
        """Return every DAG file by name."""

    async def list_needed_versions(self) -> list[VersionRow]:
        """Return the versions that may still run, without their sources."""

    async def list_needed_version_names(self) -> list[str]:
        """Return the names of the versions that may still run."""

    async def find_version(self, version: str) -> VersionRow | None:
        """Return a version with its sources."""

    async def find_keyed_backfill(self, dag_id: str, key: str) -> BackfillRow | None:
        """Return the backfill of a DAG that was created with that idempotency key."""

    async def list_backfills(
        self, *, dag_id: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[tuple[BackfillRow, dict[RunState, int]]]:
        """Return a page of backfills, the newest first, each with its runs counted by state.

        Args:
            before: Only backfills with a lower number.
        """

    async def find_backfills(
        self, backfill_nos: Collection[int]
    ) -> list[tuple[BackfillRow, dict[RunState, int]]]:
        """Return the backfills with these numbers, each with its runs counted by state.

        The order is that of ``backfill_nos``. Runs that are being deleted are not counted.
        """

    async def list_deletions(self) -> list[DeletionRow]:
        """Return the runs that are being deleted. Other reads hide them."""

    async def has_triggers(self, run_no: RunNo) -> bool:
        """Return whether a triggerer may still run a trigger of a run."""

    async def last_outbox_no(self, kind: str) -> int | None:
        """Return the highest number of an outbox row of a kind; ``None`` if there is no row."""

    async def list_stored_results(self, first: TaskNo, end: TaskNo) -> list[tuple[TaskNo, StartNo]]:
        """Return task and start of the results stored outside their rows, ``end`` excluded.

        Results that consist of stream items are included, and results of deleted runs as long as
        their rows exist.
        """

    async def list_erasable(
        self, table: str, run_no: RunNo, *, after: TaskNo = -1, limit: int = 1000
    ) -> list[tuple[Any, ...]]:
        """Return keys of the rows that a run has in a table of ``TABLES_OF_RUNS``, in order.

        Args:
            after: The lowest task number, itself included. Used only for tables that refer to a run
                by task number.
        """

    async def list_old_runs(
        self, dag_id: str, *, before: Timestamp, after: tuple[Timestamp, RunNo], limit: int
    ) -> list[RunRow]:
        """Return runs of a DAG that ended before a timestamp, in the order in which they ended.

        Args:
            after: End time and number of the last run of the previous page.
        """

    async def newest_ended_run(self, dag_id: str) -> RunRow | None:
        """Return the run of a DAG that ended last."""

    async def find_runs_after(
        self, dag_id: str, places: Sequence[tuple[Timestamp, RunNo]]
    ) -> list[RunRow | None]:
        """Return the run of a DAG right after each pair of logical date and number.

        Each pair takes one index lookup.
        """

    async def list_unneeded_versions(self, *, before: Timestamp, limit: int) -> list[str]:
        """Return unused versions created before a timestamp, the oldest first.

        A version is unused if no DAG, DAG file or run refers to it.
        """

    async def list_versions(self, *, after: str = "", limit: int = 1000) -> list[str]:
        """Return a page of all version ids, in order."""

    async def oldest_live_run(self) -> RunNo | None:
        """Return the lowest number of a run that has not ended."""

    async def list_numbers(
        self, table: str, *, after: int, limit: int
    ) -> list[tuple[int, Timestamp]]:
        """Return numbers and timestamps of rows in a table of ``retention.AGED``, by number."""

    async def count_run_ends(
        self, since: Timestamp, until: Timestamp
    ) -> list[tuple[Timestamp, int, int]]:
        """Return ``(hour, final state, count)`` of the ended runs of all DAGs, by hour."""

    async def count_ends_by_dag(
        self, since: Timestamp, until: Timestamp
    ) -> list[tuple[str, int, int]]:
        """Return ``(dag_id, final state, count)`` of the runs that ended in a period."""

    async def count_durations_by_dag(
        self, since: Timestamp, until: Timestamp
    ) -> list[tuple[str, int, int]]:
        """Return ``(dag_id, bucket, count)`` of the durations of successful runs."""

    async def count_durations_of_tasks(
        self, tasks: Collection[tuple[str, str]], since: Timestamp, until: Timestamp
    ) -> list[HistoryRow]:
        """Return the durations of these tasks, each ``(dag_id, task_id)``, in a period.

        Each row has the number of occurrences in one bucket. Its start and its sum are 0.
        """

    async def list_history(
        self,
        dag_id: str,
        task_id: str = OF_RUN,
        *,
        since: Timestamp,
        until: Timestamp,
        limit: int = 100_000,
    ) -> list[HistoryRow]:
        """Return the history of the runs of a DAG, or of one of its tasks."""

    async def sum_history_by_task(
        self, dag_id: str, *, since: Timestamp, until: Timestamp
    ) -> list[HistoryRow]:
        """Return the history of all tasks of a DAG and of its runs, added up over a period."""

    async def list_old_history(
        self, *, before: Timestamp, is_daily: bool, limit: int
    ) -> list[HistoryRow]:
        """Return history rows from before a time, the oldest first.

        Args:
            is_daily: Return the rows whose hour begins a UTC day. If false, return all other rows.
        """

    async def list_history_of_dag(self, dag_id: str, *, limit: int) -> list[HistoryRow]:
        """Return some rows of the history of a DAG and its tasks."""

    async def list_pool_usage(
        self, pool: str, *, since: Timestamp, until: Timestamp
    ) -> list[PoolUsageRow]:
        """Return the samples of a pool in a period, in order."""

    async def list_old_pool_usage(self, *, before: Timestamp, limit: int) -> list[PoolUsageKey]:
        """Return the keys of samples before a time, the oldest first."""

    async def list_runs_between(
        self, since: Timestamp, until: Timestamp, *, limit: int
    ) -> list[RunRow]:
        """Return the runs that were active in a period: live ones, then by end, latest first."""

    async def list_failed_runs(
        self, dag_id: str, since: Timestamp, until: Timestamp, *, limit: int
    ) -> list[RunRow]:
        """Return the started runs of a DAG that ended failed or partial in a period, newest first.

        If the DAG has more than 50,000 runs in the period, only the newest 50,000 are examined.
        """

    async def list_scheduled_runs(
        self, since: Timestamp, until: Timestamp, *, limit: int, dag_id: str | None = None
    ) -> list[RunRow]:
        """Return the runs that schedules started for fire times in a period, the latest first.

        Args:
            dag_id: Only runs of this DAG.
        """

    async def find_uncounted_ends(
        self, limit: int = 100
    ) -> list[tuple[str, Timestamp, int, int, int]]:
        """Return the days on which more runs ended than the history counts. For checks only.

        Days before the history of the DAG begins are not compared. The history may count more runs
        than are stored, because a run that is cleared ends again, and expired runs are deleted.

        Returns:
            ``(dag_id, day, final state, ended, counted)``.
        """

    async def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Return journal rows with a ``seq`` above ``after``, in order."""

    async def find_damage(self) -> list[Damage]:
        """Return every damaged value in every table. For checks only: it reads all rows."""

    async def find_dangling(self) -> list[Damage]:
        """Return rows that refer to a missing row of another table, at most 100 per foreign key.

        For checks only: it looks up all references.
        """

    async def list_damaged(self) -> list[Damage]:
        """Return the damaged rows found by earlier reads that are still damaged."""

    async def scan(self, tables: Sequence[Any]) -> list[Sequence[Sequence[Any]]]:
        """Return all rows of tables as stored, in one committed state. For checks only."""

    def verify(self) -> None:
        """Check that the database is still the one that was opened. Cheap: every commit calls it.

        Raises:
            StrangeDatabase: If it is a different database.
        """

    @property
    def is_damaged(self) -> bool:
        """Whether damage has been found since the database was opened."""

    async def examine(self) -> list[Finding]:
        """Return problems with the last shutdown and with the database, for the operator.

        After an unclean shutdown, this checks the part of the file that ``claim`` did not check,
        which may take minutes.
        """

    async def size_bytes(self) -> int:
        """Return the size of the database on disk, including SQLite's log."""

    async def checkpoint(self) -> None:
        """Move committed data from the log to the database file, as far as current readers allow.

        Never required, because a store checkpoints by itself. Useful before the file is copied.
        """


@asynccontextmanager
async def open_store(
    url: str,
    vault: Vault,
    *,
    durability: Durability = "full",
    exclusive: bool = True,
    migrate: bool = False,
    home: Path | None = None,
    lease_seconds: float | None = None,
) -> AsyncIterator[Store]:
    """Open a database and close it at the end of the block.

    An empty database gets its tables. An older schema is migrated: always in a SQLite file, only
    with ``migrate`` on PostgreSQL.

    Args:
        url: ``sqlite:///path`` or ``postgresql://user@host/name``.
        vault: Encrypts and decrypts confidential values.
        durability: Which failures a commit survives.
        exclusive: Open the database for the daemon, and lock a SQLite file against other daemons.
            If false, the store only reads, and neither creates nor migrates anything.
        migrate: Allow the migration of a PostgreSQL schema.
        home: The home that a SQLite file must belong to. The store records there how the database
            was closed.
        lease_seconds: Set if the daemon is one of several on a PostgreSQL database: its locks are
            released within this time. The store then has a ``membership``.

    Raises:
        SettingsError: If the URL is invalid, or its driver is not installed.
        HomeBusy: If another daemon serves the file.
        SchemaMismatch: If the schema is newer than this version of aioflow, or if it is older and
            must not be migrated.
        ForeignDatabase: If aioflow did not create the database, or the database is damaged.
        StrangeDatabase: If the database belongs to another home, or its log to another file.
        StoreUnavailable: If the database cannot be reached, read or written.
    """
    async with _store_of_url(
        url,
        vault,
        durability=durability,
        exclusive=exclusive,
        migrate=migrate,
        home=home,
        lease_seconds=lease_seconds,
    ) as store:
        yield store


def _store_of_url(
    url: str,
    vault: Vault,
    *,
    durability: Durability,
    exclusive: bool,
    migrate: bool,
    home: Path | None,
    lease_seconds: float | None,
) -> AbstractAsyncContextManager[Store]:
    """Return a context manager that opens a database; see ``open_store``."""
    from sqlalchemy.engine import make_url  # SQLAlchemy takes a while to import
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as exc:
        raise SettingsError("the database URL cannot be understood") from exc
    match parsed.get_backend_name():
        case "sqlite":
            if not parsed.database or parsed.database == ":memory:":
                raise SettingsError("the database URL names no file: sqlite:///path/to/file")
            from aioflow.store.sqlite.store import open_sqlite

            path = Path(parsed.database)
            return open_sqlite(path, vault, durability=durability, exclusive=exclusive, home=home)
        case "postgresql":
            try:
                from aioflow.store.postgres.store import open_postgres
            except ModuleNotFoundError as exc:
                if exc.name != "asyncpg":
                    raise
                hint = "pip install 'aioflow-engine[postgres]'"
                raise SettingsError(f"PostgreSQL needs asyncpg: {hint}") from exc

            return open_postgres(
                parsed,
                vault,
                durability=durability,
                exclusive=exclusive,
                migrate=migrate,
                lease_seconds=lease_seconds,
            )
        case other:
            raise SettingsError(
                f"the database URL names {other!r}; sqlite:///path and postgresql://… work"
            )
