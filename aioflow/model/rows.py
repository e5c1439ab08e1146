"""Rows of the database, and the changes that a batch makes to existing rows."""

from __future__ import annotations

import msgspec

from aioflow.model.dag import DagSpec, ValueKind
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.states import Failure, RecordState, RunState, TaskState, TriggerState
from aioflow.model.timestamps import Timestamp

__all__ = (
    "FROM_START",
    "RESUMES",
    "DagFileRow",
    "DagRow",
    "DeletionRow",
    "EventRow",
    "ExpansionChange",
    "ExpansionRow",
    "ItemRow",
    "NamedEventRow",
    "NodeFacts",
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
    "ValueRow",
    "VersionRow",
)

RESUMES, FROM_START = -1, -2


class DagFileRow(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a DAG folder, and what came of parsing it last.

    Attributes:
        version: Its last good version; kept while the file is broken.
        reason: ``None`` if the last parse went well, else machine-readable.
    """

    file: str
    version: str | None
    reason: str | None = None
    message: str | None = None
    parsed_at: Timestamp = 0


class DagRow(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG by name.

    Attributes:
        version: The newest good version; new runs use it.
        gone: Its file no longer defines it; it starts no run.
        last_slot: Slots up to this one were dealt with; ``None`` for all before the next one.
        told_late: Of slots up to this one nobody has to be told that they are late.
    """

    dag_id: str
    file: str
    version: str
    paused: bool = False
    next_run_at: Timestamp | None = None
    gone: bool = False
    last_slot: Timestamp | None = None
    told_late: Timestamp | None = None


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One version of the code of one file, with the DAGs it defines.

    Attributes:
        version: Hex digest over the file and the local modules it imports.
        sources: Relative path -> content; what a snapshot folder is made of.
    """

    version: str
    file: str
    dags: tuple[DagSpec, ...]
    sources: dict[str, bytes]
    created_at: Timestamp


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        cause: ``manual``, ``schedule``, ``event``, ``backfill``, or ``task`` where ``run_dag`` did.
        logical_date: The slot it stands for; ``None`` if a person started it without one.
        conf: msgpack of the parameters that were given; ``None`` if none were.
        key: Idempotency key, unique in its DAG.
        quarantine: Why the engine holds it still; ``None`` for a healthy run.
        caller: The wait of the durable call that made it.
        backfill: The number of the backfill that made it.
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


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """One task of one run in its current try.

    Attributes:
        map_index: -1 for an unmapped task, and for a mapped one that ended unexpanded.
        interruptions: Starts cut short by infrastructure; they cost no try.
        due_at: When it goes on: the retry's instant, or a sensor's next look. While a try is under
            way that is limited, when its time is over. As ``deadline_at`` in steady time.
        deadline_at: When a sensor gives up; set at its first look, the same in every try.
        queued_at: When it could first have run in this try.
        failure: Why the last try failed; ``None`` once a later one succeeded.
    """

    task_no: TaskNo
    run_no: RunNo
    position: int
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
    """How wide a mapped task of a run is. Written before its first child.

    Attributes:
        is_open: It grows, with items or rounds; closed it stays, but for a loop that goes back.
    """

    run_no: RunNo
    position: int
    width: int
    first_task_no: TaskNo
    is_open: bool = False


class TryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A try that ended in anything but a first success, kept for people to read."""

    task_no: TaskNo
    start_no: StartNo
    run_no: RunNo
    try_number: int
    state: TaskState
    started_at: Timestamp | None
    ended_at: Timestamp
    failure: Failure | None


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a task returned. ``None`` has no row.

    Attributes:
        start_no: The start that returned it; with ``task_no`` it names the file.
        body: msgpack, at most 64 KiB; ``None`` if it is in a file.
        size: Bytes.
        width: Items, if it feeds an ``expand``; then it is an indexed file.
    """

    task_no: TaskNo
    run_no: RunNo
    start_no: StartNo
    body: bytes | None
    size: int
    width: int | None = None


class TriggerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A wait.

    Attributes:
        kwargs: msgpack of the trigger's fields. Sealed at rest: the store seals what it
            writes and unseals what it reads; ``None`` where no key at hand opens it.
        since: When its task began to wait.
        deadline_at: When the wait fails.
        next_method: Where the task resumes.
        next_kwargs: msgpack, handed to ``next_method``; sealed at rest as well.
        event: msgpack of the payload, once it fired; of a stream the last event there was, once
            that is consumed. ``event_key`` is its key.
        timeout_method: Where the task resumes if its deadline comes first; empty to fail.
        ordinal: The recorded call of its coroutine that waits; ``RESUMES`` where a method
            resumes, ``FROM_START`` where the task waits before anything of it ran.
        branch: Which one of the triggers of that call.
        window: How far a stream of events may run ahead of the store; 0 for a trigger that ends
            with its first event.
        failure: Why a stream ended badly, until its task learns of it.
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
    """A durable call of a coroutine: what it asked for, and what came of it.

    Attributes:
        ordinal: Counts the durable calls of a task from 0, without gaps.
        kind: ``wait``, ``any_of``, ``all_of``, ``sleep``, ``step``, ``now``, ``uuid`` ...
        name: The trigger class or function; a replay must call the same.
        place: ``file:line`` of the call.
        answer: msgpack, once it has one.
    """

    task_no: TaskNo
    ordinal: int
    run_no: RunNo
    state: RecordState
    kind: str
    name: str
    place: str = ""
    answer: bytes | None = None
    failure: Failure | None = None


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream. It stays as long as its trigger does, so that its key is known.

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
    """What somebody emitted under a name, for whoever waits for that.

    Attributes:
        event_no: Grows with each event that is stored, and is behind the number of every run
            that was there before it.
        key: Tells events of one name apart, for waits that want one of them only.
        data: msgpack.
        run_no: The run whose task emitted it; ``None`` if it came from outside.
        request: Idempotency key of the request that brought it, unique in its name.
    """

    event_no: int
    name: str
    key: str | None
    data: bytes
    at: Timestamp
    run_no: RunNo | None = None
    request: str | None = None


class ItemRow(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a task's output that is given on before the task has ended.

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
        include_deferred: Tasks weigh on it while they are deferred, too, and until they go on.
    """

    name: str
    slots: int
    include_deferred: bool = False


class ValueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A secret, connection or variable, as it was set last.

    Attributes:
        value_no: New each time it is set; the value is sealed with it.
        value: msgpack. ``None`` where no key opens it, and in a batch for a row that goes.
    """

    kind: ValueKind
    name: str
    value_no: int
    at: Timestamp
    value: bytes | None

    def __repr__(self) -> str:
        return f"ValueRow({self.kind} {self.name!r} #{self.value_no})"


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself when it claims the database.

    Attributes:
        home: The identity of its home; empty if it does not tell.
        after: The epoch it takes over from: with any other the claim is refused.
    """

    started_at: Timestamp
    version: str
    pid: int
    host: str
    home: str = ""
    after: int | None = None


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has written to this database.

    Attributes:
        is_drained: It starts no task and hosts no trigger that it does not have already.
        started_at, seen_at: When it claimed the database last, and when it committed last.
        version: Of the program.
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


class DeletionRow(msgspec.Struct, frozen=True, kw_only=True):
    """An ended run that is being deleted: nobody sees it, and its rows go a slice at a time."""

    run_no: RunNo
    at: Timestamp


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """An owed effect: done at least once, deleted by the input that reports it done."""

    outbox_no: int
    kind: str
    body: bytes


class RunChange(msgspec.Struct, frozen=True, array_like=True):
    """A run moves from ``was`` to ``state``; the other columns take these values."""

    run_no: RunNo
    was: RunState
    state: RunState
    started_at: Timestamp | None
    ended_at: Timestamp | None
    quarantine: str | None


class TaskChange(msgspec.Struct, frozen=True, array_like=True):
    """A task row moves on. Guarded by ``was`` and ``was_start_no``; the rest are new values."""

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
    """A trigger row moves from ``was`` to ``state``; ``None`` for the state deletes it."""

    trigger_no: TriggerNo
    was: TriggerState
    state: TriggerState | None
    event: bytes | None
    event_key: str | None
    failure: Failure | None = None


class RecordChange(msgspec.Struct, frozen=True, array_like=True):
    """An open record is answered, or failed."""

    task_no: TaskNo
    ordinal: int
    state: RecordState
    answer: bytes | None
    failure: Failure | None


class ExpansionChange(msgspec.Struct, frozen=True, array_like=True):
    """An open expansion grows from ``was`` to ``width``, or is closed."""

    run_no: RunNo
    position: int
    was: int
    width: int
    is_open: bool
