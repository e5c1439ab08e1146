"""Rows of the database, changes that a batch makes to existing rows, and damaged rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from aioflow.model.dag import DagSpec, ValueKind
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.states import (
    Failure,
    NodeState,
    RecordState,
    RunState,
    TaskState,
    TriggerState,
)
from aioflow.model.timestamps import Timestamp

__all__ = (
    "DAMAGED",
    "FROM_START",
    "RESUMES",
    "DagFileRow",
    "DagRow",
    "Damage",
    "DeletionRow",
    "EventRow",
    "ExpansionChange",
    "ExpansionRow",
    "ItemRow",
    "NamedEventRow",
    "NamedEventSummary",
    "NodeFacts",
    "NodeMark",
    "NodeRow",
    "OutboxRow",
    "PoolRow",
    "RecordChange",
    "RecordRow",
    "ResultRow",
    "RunChange",
    "RunRow",
    "TaskChange",
    "TaskRow",
    "TriggerChange",
    "TriggerRow",
    "TryRow",
    "TryWorkerRow",
    "ValueRow",
    "VersionRow",
    "is_damage",
)

RESUMES, FROM_START = -1, -2


class DagFileRow(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a DAG folder, with the result of its last parse.

    Attributes:
        version: Its last good version, which stays active while the file is broken.
        reason: Why the last parse failed, as a machine-readable code; ``None`` if it succeeded.
    """

    file: str
    version: str | None
    reason: str | None = None
    message: str | None = None
    parsed_at: Timestamp = 0


class DagRow(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG, identified by its name.

    Attributes:
        version: The newest good version, which new runs use.
        gone: Whether its file no longer defines it. It then starts no run.
        last_fire_time: The last fire time that was handled; ``None`` if all fire times before
            ``next_run_at`` count as handled.
        late_alert_for: The last fire time for which no alert about a late run is needed.
    """

    dag_id: str
    file: str
    version: str
    paused: bool = False
    next_run_at: Timestamp | None = None
    gone: bool = False
    last_fire_time: Timestamp | None = None
    late_alert_for: Timestamp | None = None


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One version of the code of one file, with the DAGs it defines.

    Attributes:
        version: Hex digest over the file and the local modules it imports.
        sources: The content of the snapshot folder: relative path -> content.
    """

    version: str
    file: str
    dags: tuple[DagSpec, ...]
    sources: dict[str, bytes]
    created_at: Timestamp


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        cause: ``manual``, ``schedule``, ``event``, ``backfill``, or ``task`` for ``run_dag``.
        logical_date: The fire time of the run; ``None`` if a person started it without one.
        conf: msgpack of the parameters that were set; ``None`` if none were.
        key: Idempotency key, unique in its DAG.
        quarantine: Why the engine has suspended it; ``None`` for a healthy run.
        caller: If a durable call created the run and waits for it, the number of the trigger with
            which it waits.
        backfill: The number of the backfill that created it.
        started_by: The person who started it, its backfill, or the run that called it; ``None`` if
            no person did. For a token, this is the creator of the token.
    """

    run_no: RunNo
    run_id: str
    dag_id: str
    version: str
    state: RunState
    cause: str
    first_task_no: TaskNo
    logical_date: Timestamp | None = None
    conf: bytes | None = None
    key: str | None = None
    created_at: Timestamp = 0
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    quarantine: str | None = None
    caller: TriggerNo | None = None
    backfill: int | None = None
    started_by: str | None = None


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """One task of one run in its current try.

    Attributes:
        map_index: -1 for an unmapped task, and for a mapped task that ended without expanding.
        interruptions: How many starts were interrupted by the infrastructure. They do not count as
            tries.
        due_at: When it continues: the time of a retry, or of a sensor's next poke. During a try
            with a timeout, when the timeout expires. In steady time, like ``deadline_at``.
        deadline_at: When a sensor times out. Set at its first poke, and the same in every try.
        queued_at: When it was first ready to run in this try.
        failure: Why the last try failed; ``None`` once a later try has succeeded.
    """

    task_no: TaskNo
    run_no: RunNo
    task_index: int
    map_index: int
    state: TaskState
    try_number: int
    start_no: StartNo
    interruptions: int = 0
    due_at: Timestamp | None = None
    deadline_at: Timestamp | None = None
    queued_at: Timestamp | None = None
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    failure: Failure | None = None


class ExpansionRow(msgspec.Struct, frozen=True, kw_only=True):
    """The width of a mapped task of a run. Written before its first child.

    Attributes:
        is_open: Whether the width still grows, with items or iterations. Once closed, the width is
            final, unless a clear or mark reopens a loop.
    """

    run_no: RunNo
    task_index: int
    width: int
    first_task_no: TaskNo
    is_open: bool = False


class TryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A try, stored for display. A task that succeeds at the first try has no such row."""

    task_no: TaskNo
    start_no: StartNo
    run_no: RunNo
    try_number: int
    state: TaskState
    started_at: Timestamp | None
    ended_at: Timestamp
    failure: Failure | None


class TryWorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """The remote worker in which a start of a task ran, stored for display when the start began.

    A start in a local worker, in the async host or as a trigger has no such row.

    Attributes:
        executor: Name of the executor.
        host, worker: See ``WorkerLocation``.
    """

    task_no: TaskNo
    start_no: StartNo
    run_no: RunNo
    executor: str
    host: str
    worker: str


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a task. A result of ``None`` has no row.

    Attributes:
        start_no: The start that returned it. The file of a large result is named after ``task_no``
            and ``start_no``.
        body: msgpack, at most 64 KiB; ``None`` if the result is in a file.
        size: The size in bytes.
        width: The number of items, if other tasks expand over the result. The result is then in an
            indexed file.
    """

    task_no: TaskNo
    run_no: RunNo
    start_no: StartNo
    body: bytes | None
    size: int
    width: int | None = None


class TriggerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger for which a task waits.

    Attributes:
        kwargs: msgpack of the trigger's fields. Encrypted at rest: the store encrypts on write and
            decrypts on read; ``None`` if no available key decrypts it.
        since: When its task began to wait.
        deadline_at: When the wait times out.
        next_method: The method in which the task resumes.
        next_kwargs: msgpack, passed to ``next_method``; encrypted at rest as well.
        event: msgpack of the event's payload, once the trigger has fired. For a stream: the payload
            of the last consumed event. ``event_key`` is the key of the event.
        timeout_method: The method in which the task resumes if the deadline passes; empty to fail.
        ordinal: The recorded call in which the coroutine waits; ``RESUMES`` if the task resumes in
            a method, ``FROM_START`` if the task was deferred before it ran.
        branch: The index of the trigger within that call.
        window: The maximum number of events that a stream may be ahead of the store; 0 for a
            trigger that ends with its first event.
        failure: Why a stream failed. Stored until its task has received the failure.
    """

    trigger_no: TriggerNo
    task_no: TaskNo
    run_no: RunNo
    state: TriggerState
    class_path: str
    kwargs: bytes | None
    since: Timestamp
    deadline_at: Timestamp | None = None
    next_method: str = ""
    next_kwargs: bytes | None = None
    event: bytes | None = None
    event_key: str | None = None
    ordinal: int = RESUMES
    branch: int = 0
    window: int = 0
    failure: Failure | None = None
    timeout_method: str = ""


class RecordRow(msgspec.Struct, frozen=True, kw_only=True):
    """A durable call of a coroutine, with its answer.

    Attributes:
        ordinal: Counts the durable calls of a task from 0, without gaps.
        kind: ``wait``, ``any_of``, ``all_of``, ``sleep``, ``step``, ``now``, ``uuid`` ...
        name: The trigger class or function. A replay must call the same one.
        source_location: ``file:line`` of the call.
        answer: msgpack of the answer; ``None`` until there is one.
        label: The purpose of the call, in its author's words. A replay does not compare it.
    """

    task_no: TaskNo
    ordinal: int
    run_no: RunNo
    state: RecordState
    kind: str
    name: str
    source_location: str = ""
    answer: bytes | None = None
    failure: Failure | None = None
    label: str = ""


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream, stored as long as its trigger, so that a repeated key is detected.

    Attributes:
        sequence: Counts the events of a trigger from 0, without gaps.
        payload: msgpack; ``None`` once the event was consumed.
    """

    trigger_no: TriggerNo
    sequence: int
    run_no: RunNo
    key: str | None
    payload: bytes | None


class NamedEventRow(msgspec.Struct, frozen=True, kw_only=True):
    """An event emitted under a name, for all waiters for that name.

    Attributes:
        event_no: Grows with each stored event, and is higher than the number of every run created
            before the event.
        key: Distinguishes events with the same name, so that a wait can select one of them.
        data: msgpack.
        run_no: The run whose task emitted it; ``None`` if it is external.
        request: Idempotency key of the request that emitted it, unique per event name.
    """

    event_no: int
    name: str
    key: str | None
    data: bytes
    at: Timestamp
    run_no: RunNo | None = None
    request: str | None = None


class NamedEventSummary(msgspec.Struct, frozen=True, array_like=True):
    """A named event without its data."""

    event_no: int
    name: str
    at: Timestamp
    run_no: RunNo | None


class ItemRow(msgspec.Struct, frozen=True, kw_only=True):
    """One item that a running task has yielded.

    Attributes:
        item_index: Counts the items of a task from 0, without gaps.
        payload: msgpack.
    """

    task_no: TaskNo
    item_index: int
    run_no: RunNo
    payload: bytes


class PoolRow(msgspec.Struct, frozen=True, kw_only=True):
    """A named limit on running tasks. The default pool has no row and no limit.

    Attributes:
        include_deferred: Whether tasks use its slots even while they are deferred, and until they
            have resumed.
    """

    name: str
    slots: int
    include_deferred: bool = False


class ValueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A secret, connection or variable, as last set.

    Attributes:
        value_no: A new number each time the value is set. The encrypted value is bound to it.
        value: msgpack; ``None`` if no available key decrypts it. In a batch, ``None`` deletes the
            row.
    """

    kind: ValueKind
    name: str
    value_no: int
    at: Timestamp
    value: bytes | None

    def __repr__(self) -> str:
        return f"ValueRow({self.kind} {self.name!r} #{self.value_no})"


class NodeMark(NamedTuple):
    """A snapshot of the active node's counters. Each commit and each heartbeat changes it."""

    node_no: int
    epoch: int
    commit_no: int
    heartbeat: int


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The data that a node provides when it claims the database.

    Attributes:
        home: The identity of its home; empty if not reported.
        name: Name of the node in lists and messages.
        heartbeat_ms: Interval of its heartbeats; 0 if it expects no standby.
        after: The mark of the active node from which it takes over. If another node is active, or
            this one has committed or sent a heartbeat since, the claim is refused.
        is_forced: Whether to take over from any active node, even a living one.
        joined_epoch: The epoch under which it stands by; 0 if it does not.
    """

    started_at: Timestamp
    version: str
    pid: int
    host: str
    home: str = ""
    name: str = ""
    heartbeat_ms: int = 0
    after: NodeMark | None = None
    is_forced: bool = False
    joined_epoch: int = 0


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has written to this database.

    Attributes:
        is_drained: Whether the node starts no tasks and hosts no further triggers.
        started_at: When it last claimed the database.
        seen_at: When it last committed, or sent a heartbeat.
        version: The version of aioflow.
        name: Its name; by default the name of its machine.
        heartbeat_ms: Interval of its heartbeats; 0 if other nodes cannot stand by for it.
    """

    node_no: int
    epoch: int
    commit_no: int
    is_drained: bool = False
    started_at: Timestamp | None = None
    seen_at: Timestamp | None = None
    version: str | None = None
    pid: int | None = None
    host: str | None = None
    name: str | None = None
    state: NodeState = NodeState.LEFT
    heartbeat_ms: int = 0


class DeletionRow(msgspec.Struct, frozen=True, kw_only=True):
    """An ended run that is being deleted. It is hidden, and its rows are deleted in batches."""

    run_no: RunNo
    at: Timestamp


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """An effect to perform at least once. The input that reports completion deletes the row."""

    outbox_no: int
    kind: str
    body: bytes


class RunChange(msgspec.Struct, frozen=True, array_like=True):
    """Move a run from ``was`` to ``state``. The other attributes are new column values."""

    run_no: RunNo
    was: RunState
    state: RunState
    started_at: Timestamp | None
    ended_at: Timestamp | None
    quarantine: str | None


class TaskChange(msgspec.Struct, frozen=True, array_like=True):
    """Update a task row, if it still has ``was`` and ``was_start_no``.

    The other attributes are new column values.
    """

    task_no: TaskNo
    was: TaskState
    was_start_no: StartNo
    state: TaskState
    try_number: int
    start_no: StartNo
    interruptions: int
    due_at: Timestamp | None
    deadline_at: Timestamp | None
    queued_at: Timestamp | None
    started_at: Timestamp | None
    ended_at: Timestamp | None
    failure: Failure | None


class TriggerChange(msgspec.Struct, frozen=True, array_like=True):
    """Move a trigger row from ``was`` to ``state``. If ``state`` is ``None``, delete the row."""

    trigger_no: TriggerNo
    was: TriggerState
    state: TriggerState | None
    event: bytes | None
    event_key: str | None
    failure: Failure | None = None


class RecordChange(msgspec.Struct, frozen=True, array_like=True):
    """Store the answer or the failure of an open record."""

    task_no: TaskNo
    ordinal: int
    state: RecordState
    answer: bytes | None
    failure: Failure | None


class ExpansionChange(msgspec.Struct, frozen=True, array_like=True):
    """Grow an open expansion from ``was`` to ``width``, or close it."""

    run_no: RunNo
    task_index: int
    was: int
    width: int
    is_open: bool


DAMAGED = "damaged"
"""The reason of failures, alerts and waits that are caused by a damaged row."""


_PREFIX = "damaged: "


def is_damage(text: str | None) -> bool:
    """Return whether a text is the message about a damaged row."""
    return text is not None and text.startswith(_PREFIX)


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A damaged row.

    Attributes:
        key: The key columns of the row and their values.
        key_values: Only the values, to find the row again; empty if it was read without a key.
        column: The first column that cannot be read.
        reason: What is wrong with it.
        run_no, dag_id: The run and DAG of the row, if readable.
    """

    table: str
    key: str
    column: str
    reason: str
    key_values: tuple[Any, ...] = ()
    run_no: RunNo | None = None
    dag_id: str | None = None

    def __str__(self) -> str:
        return f"{_PREFIX}table {self.table}, row {self.key}, column {self.column}: {self.reason}"

    @property
    def failure(self) -> Failure:
        """The failure of a task that cannot continue because of this row."""
        return Failure(type="DamagedRow", message=str(self)[:1000], reason=DAMAGED)
