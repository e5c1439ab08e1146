"""A batch: the net changes of one turn, committed in one transaction."""

from __future__ import annotations

import msgspec

from aioflow.model.access import AccountRow, AuditHead, AuditRow, SessionRow, TokenRow
from aioflow.model.dag import BackfillRow
from aioflow.model.decisions import DecisionEnd, DecisionRow, DecisionVotes
from aioflow.model.history import HistoryRow
from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.notes import NoteKey, NoteRow
from aioflow.model.pool_usage import PoolUsageRow
from aioflow.model.rows import (
    DagFileRow,
    DagRow,
    DeletionRow,
    EventRow,
    ExpansionChange,
    ExpansionRow,
    ItemRow,
    NamedEventRow,
    OutboxRow,
    PoolRow,
    RecordChange,
    RecordRow,
    ResultRow,
    RunChange,
    RunRow,
    TaskChange,
    TaskRow,
    TriggerChange,
    TriggerRow,
    TryRow,
    TryWorkerRow,
    ValueRow,
    VersionRow,
)
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import DagTriggerChanges

__all__ = (
    "Batch",
    "JournalRow",
)


class JournalRow(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one batch in compact form, as history and as a source to rebuild tables from.

    Attributes:
        seq: Orders the rows of all nodes. Numbers may be missing.
        commit_no: Number of the batch among the batches of its node. No number is missing.
    """

    seq: int
    at: Timestamp
    body: bytes
    node_no: int = 1
    commit_no: int = 0


# ── a batch: the net change of one turn ─────────────────────────────────────────────────
class Batch(msgspec.Struct, kw_only=True):
    """All changes of one turn, applied in one transaction or not at all.

    Attributes:
        number: This node's commit number, one more than that of its previous batch.
        at: When the batch was decided.
        steady_at: ``at`` in steady time; equal to ``at`` by default.
        steps: For the journal: ``(task_no, state)`` of each step in order. The other attributes
            contain only net changes.
        run_versions: ``(run_no, old, new)``: runs that are moved to another version of their DAG.
        labels, results: Labels and results, which replace those of an earlier try. Labels are
            ``(task_no, run_no, label)``.
        dags, dag_files, pools, values, backfills: Whole rows, inserted or replaced. A value may
            also be deleted.
        gone_dags, gone_files, gone_pools: DAGs, files and pools whose row is deleted.
        reencrypted: Triggers whose fields and ``next_kwargs`` are encrypted again, with the same
            content.
        reencrypted_decisions: ``(decision_no, question, answer)`` of decisions that are encrypted
            again, with the same content.
        dropped_records: ``(task_no, ordinal)``; deleted before new records are inserted.
        consumed_events: ``(trigger_no, sequence)``.
        gone_events: Triggers whose events are all deleted.
        gone_items: Tasks whose items are all deleted.
        new_clears: ``(run_no, key, cleared)`` of clear requests that have an idempotency key.
        gone_results: Tasks whose results, if any, are deleted.
        gone_expansions: ``(run_no, task_index)``. The rows of the children remain, as ``removed``.
        new_deletions: Ended runs that are hidden from now on.
        of_dags: Changes of the triggers that start runs.
        drained: ``(node_no, since)`` of nodes that are drained; ``since`` is ``None`` to undrain.
        erased: Keys of rows that are deleted by retention or with their run, by table.
        history: What to add to the history, one entry per bucket.
        notes, pool_usage: Whole rows, inserted or replaced.
        gone_notes: Keys of notes that are deleted.
        accounts, tokens, sessions: Whole rows, inserted or replaced.
        gone_accounts, gone_tokens, gone_sessions: Numbers of the rows that are deleted.
    """

    number: int
    at: Timestamp
    steady_at: Timestamp | None = None
    steps: list[tuple[TaskNo, TaskState]] = msgspec.field(default_factory=list)
    new_runs: list[RunRow] = msgspec.field(default_factory=list)
    run_changes: list[RunChange] = msgspec.field(default_factory=list)
    run_versions: list[tuple[RunNo, str, str]] = msgspec.field(default_factory=list)
    new_tasks: list[TaskRow] = msgspec.field(default_factory=list)
    task_changes: list[TaskChange] = msgspec.field(default_factory=list)
    new_expansions: list[ExpansionRow] = msgspec.field(default_factory=list)
    expansion_changes: list[ExpansionChange] = msgspec.field(default_factory=list)
    new_items: list[ItemRow] = msgspec.field(default_factory=list)
    gone_items: list[TaskNo] = msgspec.field(default_factory=list)
    gone_results: list[TaskNo] = msgspec.field(default_factory=list)
    gone_expansions: list[tuple[RunNo, int]] = msgspec.field(default_factory=list)
    new_tries: list[TryRow] = msgspec.field(default_factory=list)
    try_workers: list[TryWorkerRow] = msgspec.field(default_factory=list)
    labels: list[tuple[TaskNo, RunNo, str]] = msgspec.field(default_factory=list)
    results: list[ResultRow] = msgspec.field(default_factory=list)
    new_triggers: list[TriggerRow] = msgspec.field(default_factory=list)
    trigger_changes: list[TriggerChange] = msgspec.field(default_factory=list)
    named_events: list[NamedEventRow] = msgspec.field(default_factory=list)
    new_events: list[EventRow] = msgspec.field(default_factory=list)
    consumed_events: list[tuple[TriggerNo, int]] = msgspec.field(default_factory=list)
    gone_events: list[TriggerNo] = msgspec.field(default_factory=list)
    dropped_records: list[tuple[TaskNo, int]] = msgspec.field(default_factory=list)
    new_records: list[RecordRow] = msgspec.field(default_factory=list)
    record_changes: list[RecordChange] = msgspec.field(default_factory=list)
    new_decisions: list[DecisionRow] = msgspec.field(default_factory=list)
    decision_votes: list[DecisionVotes] = msgspec.field(default_factory=list)
    decision_ends: list[DecisionEnd] = msgspec.field(default_factory=list)
    new_versions: list[VersionRow] = msgspec.field(default_factory=list)
    dags: list[DagRow] = msgspec.field(default_factory=list)
    dag_files: list[DagFileRow] = msgspec.field(default_factory=list)
    gone_dags: list[str] = msgspec.field(default_factory=list)
    gone_files: list[str] = msgspec.field(default_factory=list)
    new_outbox: list[OutboxRow] = msgspec.field(default_factory=list)
    done_outbox: list[int] = msgspec.field(default_factory=list)
    pools: list[PoolRow] = msgspec.field(default_factory=list)
    gone_pools: list[str] = msgspec.field(default_factory=list)
    values: list[ValueRow] = msgspec.field(default_factory=list)
    backfills: list[BackfillRow] = msgspec.field(default_factory=list)
    new_deletions: list[DeletionRow] = msgspec.field(default_factory=list)
    erased: dict[str, list[tuple[int | str, ...]]] = msgspec.field(default_factory=dict)
    history: list[HistoryRow] = msgspec.field(default_factory=list)
    drained: list[tuple[int, Timestamp | None]] = msgspec.field(default_factory=list)
    reencrypted: list[tuple[TriggerNo, bytes, bytes | None]] = msgspec.field(default_factory=list)
    reencrypted_decisions: list[tuple[TriggerNo, bytes, bytes | None]] = msgspec.field(
        default_factory=list
    )
    new_clears: list[tuple[RunNo, str, int]] = msgspec.field(default_factory=list)
    of_dags: DagTriggerChanges = msgspec.field(default_factory=DagTriggerChanges)
    pool_usage: list[PoolUsageRow] = msgspec.field(default_factory=list)
    notes: list[NoteRow] = msgspec.field(default_factory=list)
    gone_notes: list[NoteKey] = msgspec.field(default_factory=list)
    accounts: list[AccountRow] = msgspec.field(default_factory=list)
    gone_accounts: list[int] = msgspec.field(default_factory=list)
    tokens: list[TokenRow] = msgspec.field(default_factory=list)
    gone_tokens: list[int] = msgspec.field(default_factory=list)
    sessions: list[SessionRow] = msgspec.field(default_factory=list)
    gone_sessions: list[int] = msgspec.field(default_factory=list)
    audit: list[AuditRow] = msgspec.field(default_factory=list)
    audit_head: AuditHead | None = None

    @property
    def is_empty(self) -> bool:
        """Whether committing the batch would change nothing."""
        return not any(msgspec.structs.astuple(self)[3:])
