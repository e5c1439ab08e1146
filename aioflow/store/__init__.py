"""Durable state: what a store promises, and how one is opened.

The only package that knows SQL. ``open_store`` imports SQLAlchemy when it is called, and a
database driver when it is asked for one of its databases: naming what is promised needs neither.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from aioflow.crypto import Vault
from aioflow.model.access import AccountRow, AuditHead, AuditRow, LoginRow, TokenRow
from aioflow.model.backfill import BackfillRow
from aioflow.model.batch import Batch, JournalRow
from aioflow.model.dag import ValueKind
from aioflow.model.dag_triggers import DagTriggerRow
from aioflow.model.damage import Damage
from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.rows import (
    DagFileRow,
    DagRow,
    DeletionRow,
    ExpansionRow,
    ItemRow,
    NamedEventRow,
    NodeFacts,
    OutboxRow,
    PoolRow,
    RecordRow,
    ResultRow,
    RunRow,
    TaskRow,
    TriggerRow,
    TryRow,
    ValueRow,
    VersionRow,
)
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.recovery import LiveRun, Unfinished
from aioflow.store.damaged import Damages
from aioflow.store.owner import Holder
from aioflow.store.ui_protocol import Browsed

__all__ = ("TABLES_OF_RUNS", "Claim", "Durability", "Finding", "Store", "open_store")

Durability: TypeAlias = Literal["full", "normal"]
"""What a commit survives: ``full`` a power cut, ``normal`` the death of the process alone."""

TABLES_OF_RUNS = (
    "stream_item",
    "record",
    "try",
    "result",
    "map_label",
    "task",
    "expansion",
    "clear_request",
    "run",
    "deletion",
)
"""The tables a run has rows in once no host has a trigger of it, in the order they are emptied."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """This node's right to write.

    Attributes:
        epoch: One more than that of whoever wrote as this node before.
        commit_no: Of the last batch applied; the next one is one more.
        seen_at, steady_at: When that was, by the wall clock and in steady time; ``None`` where no
            batch was applied, or an earlier version of the program applied it.
        after_crash: The last daemon that claimed the database did not end by itself.
    """

    node_no: int
    epoch: int
    commit_no: int
    seen_at: Timestamp | None = None
    steady_at: Timestamp | None = None
    after_crash: bool = False


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What people must hear of a database."""

    reason: str
    message: str


class Store(Browsed, Protocol):
    """Durable state, one instance per node.

    A row that cannot be read is named in ``damages``, and marked where its Struct has room for
    that, see ``damaged.marked``; what cannot be read of it is a placeholder. Of what a run is
    made of again ``LiveRun.damage`` says so.

    Reads may run side by side; they see committed rows only and never hold up the writer.
    Writes come from the engine alone, one batch at a time. Lists have a stable order and
    come in pages; a page shorter than its limit is the last one.

    Raises:
        StoreUnavailable: From any method, if the database cannot be reached, stays locked,
            or its disk is full or failing. Nothing was written, or it cannot be known
            whether it was; the same call may be made again.
        StrangeDatabase: From any method, if this is not the database it was: the file was
            replaced, a table is missing, it is damaged. It is not written to any more.
        SyncFailed: From any method, once the disk failed to sync it. The process has to end.
    """

    damages: Damages

    def limited(self, seconds: float) -> Store:
        """Return this store for those who may be told that they ask too much.

        Its reads raise ``StoreSlow`` where a statement takes longer than that.
        """

    async def claim(self, about: NodeFacts | None = None) -> Claim:
        """Advance this node's epoch and return it; whoever wrote under the old one is fenced.

        Called once before the first ``commit``.

        Raises:
            ForeignDatabase: If the check after an unclean end finds damage. As much of the file is
                checked before as there is time for.
        """

    async def find_holder(self) -> Holder | None:
        """Return the daemon that claimed the database last and has not left it, if it tells.

        Of a file there is none: its lock says whether one lives.
        """

    async def opens_sealed(self) -> bool:
        """Return whether a key at hand opens any of what is sealed, if there is any."""

    async def beat(self, at: Timestamp) -> None:
        """Say that this daemon lives, where others watch for that. Any commit says so, too.

        Raises:
            Fenced: If another daemon has claimed the database.
        """

    async def leave(self) -> None:
        """Say that this daemon has ended well: the next one need not wait for it."""

    async def commit(self, batch: Batch) -> None:
        """Apply every change of ``batch`` in one transaction, or none of them.

        A batch that was applied already is left as it is: after a lost reply the caller
        asks again with the same one. Cancelled, it is applied whole or not at all.
        Versions that are known already are left as they are; of several rows for one DAG,
        file, pool or result in a batch the last one counts.

        Raises:
            Fenced: If this node has been declared dead. Nothing was written, and nothing
                the node remembers can be trusted any more.
            BatchRefused: If a row did not stand where a change expects it, or a value
                cannot be stored. Nothing was written, and repeating it cannot help.
            StrangeDatabase: If the commit number is neither the one before nor this one.
        """

    async def find_refused(self, batch: Batch) -> dict[str, int]:
        """Return what names the first row of a refused batch that the database does not take.

        That is ``run_no``, ``task_no`` or ``trigger_no``, as far as its table has them; nothing
        where no single row is refused. Nothing is written.
        """

    async def lease_numbers(self, count: int) -> int:
        """Return the first of ``count`` row numbers that nobody else gets, not even later.

        Raises:
            ValueError: If ``count`` is below 1.
        """

    def unfinished(self) -> AbstractAsyncContextManager[AsyncIterator[Unfinished]]:
        """Open everything unfinished as of one moment, versions without their sources.

        First comes a ``Snapshot`` without runs; then these by number, large ones in pieces, see
        ``LiveRun.is_whole``; and between them the rows that are its ``stray_triggers``.
        """

    async def load_run(self, run_no: RunNo) -> LiveRun | None:
        """Return everything needed to go on with a run where it stands, ended or not."""

    def pieces_of_run(self, run_no: RunNo) -> AbstractAsyncContextManager[AsyncIterator[LiveRun]]:
        """Open the same as of one moment, a large run in pieces, see ``LiveRun.is_whole``."""

    async def find_run(self, run_id: str) -> RunRow | None:
        """Return the run of that id."""

    async def find_run_no(self, run_no: RunNo) -> RunRow | None:
        """Return the run of that number."""

    async def list_owed(self, kind: str, *, after: int, limit: int) -> list[OutboxRow]:
        """Return what is owed of a kind, by number, behind ``after``."""

    async def find_run_by_key(self, dag_id: str, key: str) -> RunRow | None:
        """Return the run a request with that idempotency key made."""

    async def find_taken(self, run_ids: Collection[str]) -> list[tuple[RunRow, bool]]:
        """Return the runs of these ids, and whether each is being deleted, in no order."""

    async def find_taken_keys(
        self, dag_id: str, keys: Collection[str]
    ) -> list[tuple[RunRow, bool]]:
        """Return the same of runs that requests with these idempotency keys made."""

    async def find_clear(self, run_no: RunNo, key: str) -> int | None:
        """Return how many tasks of a run the request with that idempotency key has cleared."""

    async def find_runs(self, run_ids: Collection[str]) -> list[RunRow]:
        """Return those that there are of many runs, in no order; 500 with one statement."""

    async def find_runs_at(self, dag_id: str, logical_dates: Collection[Timestamp]) -> list[RunRow]:
        """Return the newest run of a DAG for each of these slots that has one, in no order."""

    async def find_runs_before(
        self, dag_id: str, places: Sequence[tuple[Timestamp, RunNo]]
    ) -> list[RunRow | None]:
        """Return for each logical date and number the run of a DAG that comes right before.

        All as of one moment; a look at an index for each.
        """

    async def latest_ended_run(self, dag_id: str, since: Timestamp) -> RunRow | None:
        """Return the first run of a DAG that ended at or after ``since``."""

    async def list_runs(
        self,
        *,
        dag_id: str | None = None,
        state: RunState | None = None,
        limit: int = 100,
        before: RunNo | None = None,
    ) -> list[RunRow]:
        """Return runs, the newest first; ``before`` is the last number of the page before."""

    async def list_tasks_between(
        self, first: TaskNo, end: TaskNo, limit: int = 1000
    ) -> list[TaskRow]:
        """Return task rows by number, ``end`` excluded; a task without a row is pending."""

    async def find_tasks(self, task_nos: Collection[TaskNo]) -> list[TaskRow]:
        """Return those that there are of many tasks, in no order; 500 with one statement."""

    async def count_states(self, run_no: RunNo) -> list[tuple[int, TaskState, int]]:
        """Return ``(position, state, count)`` of the task rows of a run, all but removed ones.

        It reads every one of them: of a live run memory knows, see ``CountTasks``.
        """

    async def list_expansions(self, run_no: RunNo) -> list[ExpansionRow]:
        """Return the expansions of a run by position."""

    async def list_expansions_of(self, run_nos: Collection[RunNo]) -> list[ExpansionRow]:
        """Return those of many runs, in no order; 500 with one statement."""

    async def list_results(self, first: TaskNo, end: TaskNo, limit: int = 1000) -> list[ResultRow]:
        """Return results by task number, ``end`` excluded."""

    async def list_labels(self, first: TaskNo, end: TaskNo, limit: int = 1000) -> dict[TaskNo, str]:
        """Return what children are called, by task number, ``end`` excluded."""

    async def list_tries(self, task_no: TaskNo) -> list[TryRow]:
        """Return the kept tries of a task, in the order of their starts."""

    async def list_records(
        self, task_no: TaskNo, after: int = -1, limit: int = 1000
    ) -> list[RecordRow]:
        """Return the recorded calls of a task after an ordinal, in order."""

    async def list_named_events(
        self, name: str, *, after: int = -1, limit: int = 1000
    ) -> list[NamedEventRow]:
        """Return the events of a name after a number, in the order they were stored."""

    async def latest_named_events(
        self, *, name: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[NamedEventRow]:
        """Return named events, the newest first; ``before`` is the last of the page before."""

    async def find_named_event(self, name: str, request: str) -> NamedEventRow | None:
        """Return the event that a request with that idempotency key brought."""

    async def find_value(self, kind: ValueKind, name: str) -> ValueRow | None:
        """Return a secret, connection or variable, unsealed."""

    async def list_values(self, kind: ValueKind) -> list[ValueRow]:
        """Return all of a kind by name, unsealed."""

    async def list_accounts(self) -> list[AccountRow]:
        """Return every account by name."""

    async def list_tokens(self) -> list[TokenRow]:
        """Return every token by number."""

    async def list_logins(self) -> list[LoginRow]:
        """Return every session by number."""

    async def list_audit(self, *, before: int | None = None, limit: int = 100) -> list[AuditRow]:
        """Return lines of the audit, the newest first; ``before`` the last of the page before."""

    async def read_audit(self, after: int = -1, limit: int = 1000) -> list[AuditRow]:
        """Return lines of the audit after a number, in order."""

    async def find_audit_head(self) -> AuditHead:
        """Return where the audit ends; ``LOST`` where that is gone, or no key at hand opens it."""

    async def list_pools(self) -> list[PoolRow]:
        """Return the limited pools by name."""

    async def list_items(
        self, task_no: TaskNo, after: int = -1, limit: int = 1000
    ) -> list[ItemRow]:
        """Return the items a task has given on after an index, in order."""

    async def list_triggers(self, limit: int = 1000, after: TriggerNo = -1) -> list[TriggerRow]:
        """Return trigger rows by number, kwargs unsealed."""

    async def list_dag_triggers(
        self, *, after: TriggerNo = -1, upto: TriggerNo = sys.maxsize, limit: int = 1000
    ) -> list[DagTriggerRow]:
        """Return the triggers that start runs of DAGs by number, fields unsealed."""

    async def find_dag_triggers(self, dag_ids: Collection[str]) -> dict[str, DagTriggerRow]:
        """Return the triggers that start runs of DAGs by ``dag_id``, fields unsealed."""

    async def find_event_keys(
        self, wanted: Mapping[TriggerNo, Collection[str]]
    ) -> set[tuple[TriggerNo, str]]:
        """Return those of many keys that DAGs' triggers have had, as far as that is kept.

        500 with one statement, however many triggers they are of.
        """

    async def list_dags(self) -> list[DagRow]:
        """Return every DAG by name."""

    async def list_dag_files(self) -> list[DagFileRow]:
        """Return every DAG file by name."""

    async def list_needed_versions(self) -> list[VersionRow]:
        """Return the versions something may still run, without their sources."""

    async def find_version(self, version: str) -> VersionRow | None:
        """Return a version with its sources."""

    async def find_keyed_backfill(self, dag_id: str, key: str) -> BackfillRow | None:
        """Return the backfill of a DAG that a request with this idempotency key has begun."""

    async def list_backfills(
        self, *, dag_id: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[tuple[BackfillRow, dict[RunState, int]]]:
        """As ``find_backfills``, the newest first, those below the number ``before``."""

    async def find_backfills(
        self, backfill_nos: Collection[int]
    ) -> list[tuple[BackfillRow, dict[RunState, int]]]:
        """Return those of such numbers, each with how many of its runs stand how at that moment.

        They come in the order of the numbers; deleted runs are not counted.
        """

    async def list_deletions(self) -> list[DeletionRow]:
        """Return the runs that are being deleted; others hide them."""

    async def has_triggers(self, run_no: RunNo) -> bool:
        """Return whether a host may still have a trigger of a run."""

    async def last_owed(self, kind: str) -> int | None:
        """Return the highest number of what is owed of a kind; ``None`` if nothing is."""

    async def list_erasable(
        self, table: str, run_no: RunNo, *, after: TaskNo = -1, limit: int = 1000
    ) -> list[tuple[Any, ...]]:
        """Return keys of rows that a run has in a table of ``TABLES_OF_RUNS``, in order.

        Args:
            after: The task to begin with, where a table knows runs by their tasks alone.
        """

    async def list_old_runs(
        self, dag_id: str, *, before: Timestamp, after: tuple[Timestamp, RunNo], limit: int
    ) -> list[RunRow]:
        """Return runs of a DAG that ended before an instant, those first that ended first.

        Args:
            after: When the last run of the page before ended, and its number.
        """

    async def newest_ended_run(self, dag_id: str) -> RunRow | None:
        """Return the run of a DAG that ended last."""

    async def find_runs_after(
        self, dag_id: str, places: Sequence[tuple[Timestamp, RunNo]]
    ) -> list[RunRow | None]:
        """Return for each logical date and number the run of a DAG that comes right after.

        A look at an index for each.
        """

    async def list_unneeded_versions(self, *, before: Timestamp, limit: int) -> list[str]:
        """Return versions made before an instant that no DAG, file or run has, the oldest first."""

    async def list_versions(self, *, after: str = "", limit: int = 1000) -> list[str]:
        """Return a page of all versions, in order."""

    async def oldest_live_run(self) -> RunNo | None:
        """Return the lowest number of a run that has not ended."""

    async def list_numbers(
        self, table: str, *, after: int, limit: int
    ) -> list[tuple[int, Timestamp]]:
        """Return numbers and instants of rows in a table of ``erasing.AGED``, by number."""

    async def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Return journal rows after a commit number, in order."""

    async def find_damage(self) -> list[Damage]:
        """Return what is wrong with every row of every table. It reads all of them: for checks."""

    async def list_damaged(self) -> list[Damage]:
        """Return the damaged rows that reading has met, and that are still damaged."""

    async def scan(self, tables: Sequence[Any]) -> list[Sequence[Sequence[Any]]]:
        """Return whole tables as of one moment, as they are stored. For checks only."""

    def verify(self) -> None:
        """Check that the database is still the one that was opened. Cheap; every commit does.

        Raises:
            StrangeDatabase: If it is not.
        """

    @property
    def is_damaged(self) -> bool:
        """Whether damage was found since it was opened."""

    async def examine(self) -> list[Finding]:
        """Return what people must hear of the last life of this database, and of its state.

        Checks what was left unchecked after an unclean end, which may take minutes.
        """

    async def size_bytes(self) -> int:
        """Return what the database takes on disk, logs of its own included."""

    async def checkpoint(self) -> None:
        """Move what was committed into its final place, as far as readers allow now.

        Never needed: the stores look after themselves. Good before a copy of the file.
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
) -> AsyncIterator[Store]:
    """Open a database; it is closed at the end of the block.

    An empty database gets its tables. An older schema is brought up to date: in a SQLite
    file always, on PostgreSQL only if ``migrate`` says so.

    Args:
        url: ``sqlite:///path`` or ``postgresql://user@host/name``.
        vault: Opens and seals what must not lie open.
        durability: What a commit survives.
        exclusive: For the daemon. A SQLite file is locked against other daemons; without
            it, the store only reads, and neither creates nor migrates anything.
        migrate: See above.
        home: A SQLite file must be of this home, and how it is closed is noted there.

    Raises:
        SettingsError: If the URL cannot be used, or its driver is not installed.
        HomeBusy: If another daemon serves the file.
        SchemaMismatch: If the schema is newer than this program, or older and may not be
            migrated.
        ForeignDatabase: If aioflow did not make it, or it is damaged.
        StrangeDatabase: If it is of another home, or has the log of another file.
        StoreUnavailable: If it cannot be reached, read or written.
    """
    from aioflow.store.opening import opened  # SQLAlchemy takes a while to import

    async with opened(
        url, vault, durability=durability, exclusive=exclusive, migrate=migrate, home=home
    ) as store:
        yield store
