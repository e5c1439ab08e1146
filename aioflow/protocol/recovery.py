"""What a restart reads: everything unfinished, as of one moment."""

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
    """How far the coroutine of one task has come, in its records.

    Attributes:
        count: Of its records.
        first_failed: The first ordinal that failed; -1 if none did.
        open_kind: The kind of the last record while it is open, else empty.
        open_name: Its name.
    """

    task_no: TaskNo
    count: int
    first_failed: int = -1
    open_kind: str = ""
    open_name: str = ""


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to go on with one run where it stands.

    Attributes:
        tasks: All its rows, ended ones too, by ``task_no``.
        widths: ``(task_no, width)`` of the results that feed an ``expand``.
        triggers: All its trigger rows.
        progress: Of the tasks that have records.
        events: Of the streams among its triggers, in order of trigger and sequence.
        items: ``(task_no, count)`` of the items that its tasks have given on.
        is_whole: Whether that is all, or the last of it; else more tasks and triggers follow,
            all tasks before the first trigger.
        damage: Of the first of all these rows that cannot be read as it is.
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
    """Everything unfinished, read at start.

    Attributes:
        versions: The newest of each DAG and those of the live runs, without sources.
        runs: Those that have not ended. A cancelled run ends with its last task.
        outbox: What waits for an instant.
        owed: What else is owed: by kind how many rows there are, and the lowest number of these.
        stray_triggers: Rows of runs that have ended before a host had let go of them.
        backfills: Those that go on.
        audit_head: Where the audit ends.
        drained: Nodes that take no more work.
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
"""What ``Store.unfinished`` yields."""
