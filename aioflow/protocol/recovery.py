"""The unfinished work that a restart reads, as of one moment."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from aioflow.model.access import AccountRow, AuditHead, LoginRow, TokenRow
from aioflow.model.backfill import BackfillRow
from aioflow.model.dag_triggers import DagEventRow, DagTriggerRow
from aioflow.model.damage import Damage
from aioflow.model.ids import TaskNo
from aioflow.model.rows import (
    DagFileRow,
    DagRow,
    EventRow,
    ExpansionRow,
    OutboxRow,
    PoolRow,
    RunRow,
    TaskRow,
    TriggerRow,
    VersionRow,
)

__all__ = ("LiveRun", "Progress", "Snapshot", "Unfinished")


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """The progress of one task's coroutine, according to its records.

    Attributes:
        count: The number of its records.
        first_failed: The first ordinal that failed; -1 if none did.
        open_kind: The kind of the last record while it is open, else empty.
        open_name: The name of that record.
    """

    task_no: TaskNo
    count: int
    first_failed: int = -1
    open_kind: str = ""
    open_name: str = ""


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """All data needed to continue one run.

    Attributes:
        tasks: All its rows, including ended ones, by ``task_no``.
        widths: ``(task_no, width)`` of the results that feed an ``expand``.
        triggers: All its trigger rows.
        progress: The progress of tasks that have records.
        events: Events of the streams among its triggers, in order of trigger and sequence.
        items: ``(task_no, count)`` of the items that its tasks have yielded.
        is_whole: Whether this is the whole run or its last part. Otherwise more tasks and triggers
            follow, all tasks before the first trigger.
        damage: The first of all these rows that is damaged.
    """

    run: RunRow
    tasks: list[TaskRow]
    expansions: list[ExpansionRow]
    widths: list[tuple[TaskNo, int]]
    triggers: list[TriggerRow]
    progress: list[Progress] = []
    events: list[EventRow] = []
    items: list[tuple[TaskNo, int]] = []
    is_whole: bool = True
    damage: Damage | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All unfinished work, read at start.

    Attributes:
        versions: The newest version of each DAG and those of the live runs, without sources.
        runs: Runs that have not ended. A cancelled run ends with its last task.
        outbox: Rows that the engine processes itself.
        owed: Other outbox rows: the count of each kind, and its lowest number.
        stray_triggers: Rows of runs that ended before a host had released them.
        backfills: Running backfills.
        audit_head: The end of the audit.
        drained: Drained nodes.
    """

    dags: list[DagRow]
    dag_files: list[DagFileRow]
    versions: list[VersionRow]
    runs: list[LiveRun]
    pools: list[PoolRow]
    outbox: list[OutboxRow]
    owed: dict[str, tuple[int, int]] = {}
    stray_triggers: list[TriggerRow] = []
    dag_triggers: list[DagTriggerRow] = []
    held_events: list[DagEventRow] = []
    backfills: list[BackfillRow] = []
    accounts: list[AccountRow] = []
    tokens: list[TokenRow] = []
    logins: list[LoginRow] = []
    audit_head: AuditHead = AuditHead()
    drained: list[int] = []


Unfinished: TypeAlias = Snapshot | LiveRun | TriggerRow
"""The parts that ``Store.unfinished`` yields."""
