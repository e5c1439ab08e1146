"""Commands of the daemon to its child processes. Their reports are in ``protocol.reports``.

Structs are array-like, as in ``protocol.reports``, so both ends must have the same aioflow version.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from aioflow.model.dag import ValueKind
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.states import Failure
from aioflow.model.timestamps import Timestamp
from aioflow.model.workers import LOCAL

__all__ = (
    "CallRecorded",
    "Command",
    "Describe",
    "EventsStored",
    "ForgetRun",
    "Hello",
    "Inspect",
    "ItemsStored",
    "Notify",
    "Parse",
    "ParserLimits",
    "Ping",
    "PreviewFireTimes",
    "Recall",
    "Reply",
    "ResumeCoroutine",
    "RunCallback",
    "RunInfo",
    "StartTask",
    "StartTrigger",
    "StopTask",
    "StopTrigger",
)


class _Wire(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base class of the messages on the link."""


class Hello(_Wire, frozen=True):
    """The first command to every child.

    Attributes:
        code: Folder of the version snapshots; ``<code>/<version>/`` contains one version.
        results: Folder in which the process writes large results.
        memory_limit_bytes: Memory use above which a host evicts suspended coroutines; 0 for no
            limit.
        stall_seconds: Duration above which a step that blocks a shared event loop is reported.
        default_deferrable: The value of an operator's ``deferrable=None``, if one is configured.
        default_tries: The number of tries of a task that does not set its own.
        traces: Whether each start receives the id of its tracing span.
        default_executor: The executor of ``def`` tasks that name none.
        fetches_code: Whether the process queries code that is missing in ``code``.
        transfers_results: Whether ``results`` is a folder that the daemon cannot access.
        copies: Folder for copies of results that are stored outside the home; empty for none.
    """

    role: str
    code: str
    results: str
    memory_limit_bytes: int = 0
    stall_seconds: float = 0.1
    default_deferrable: bool | None = None
    default_tries: int = 3
    traces: bool = False
    default_executor: str = LOCAL
    fetches_code: bool = False
    transfers_results: bool = False
    copies: str = ""


class ParserLimits(_Wire, frozen=True):
    """Limits of a process that parses one file.

    Attributes:
        processes: Maximum number of its descendant processes at a time.
    """

    wall_seconds: float = 30.0
    memory_bytes: int = 1536 * 1024 * 1024
    output_bytes: int = 10 * 1024 * 1024
    processes: int = 64


class Parse(_Wire, frozen=True):
    """Import one file and describe its DAGs.

    Attributes:
        interpreter: Name of the interpreter that imports the file; empty for the daemon's own.
    """

    folder: str
    file: str
    limits: ParserLimits = ParserLimits()
    interpreter: str = ""


class Inspect(_Wire, frozen=True):
    """Import a plug-in's entry point and list its triggers."""

    entry_point: str
    limits: ParserLimits = ParserLimits()


class RunInfo(_Wire, frozen=True):
    """Data that all tasks of a run share. Sent to a process before the run's first task."""

    run_no: RunNo
    run_id: str
    dag_id: str
    version: str
    file: str
    logical_date: Timestamp | None
    created_at: Timestamp
    conf: bytes | None
    first_task_no: TaskNo
    cause: str = "manual"


class StartTask(_Wire, frozen=True):
    """Run one task.

    Attributes:
        method: The method in which a deferred operator resumes; empty to start from the beginning.
        kwargs: msgpack, for ``method``.
        event: msgpack of the trigger's payload.
        results: Small results of parents, from the engine's memory, by task index. Results of
            ``None`` are omitted.
        at_hand: Indexes of the parents whose result is known, including results of ``None``. The
            results of other parents are queried.
        sources: ``(task_index, task_no, start_no)`` of the indexed files from which child
            ``map_index`` takes its items.
        widths: Widths of all lists of the expansion, including literals, in order; see
            ``core.tasks.expand``.
        recorded: Number of durable calls with stored answers. The host queries them first.
        timeout_us: What remains of the try's timeout. The host of a coroutine enforces it.
        events: ``(payload, key)`` of each event that this start handles, if the operator handles
            its events in batches.
        upto: The sequence number after the last of ``events``.
        is_closing: Whether this is the last start of such an operator, after which no events
            follow.
        stored: Number of stored items of the task's output.
        item: msgpack of the stream item of child ``map_index``, if it is in memory.
    """

    run_no: RunNo
    task_no: TaskNo
    start_no: StartNo
    task_index: int
    map_index: int
    try_number: int
    method: str = ""
    kwargs: bytes | None = None
    event: bytes | None = None
    results: dict[int, bytes] = {}
    at_hand: tuple[int, ...] = ()
    sources: tuple[tuple[int, TaskNo, StartNo], ...] = ()
    widths: tuple[int, ...] = ()
    recorded: int = 0
    timeout_us: int | None = None
    events: tuple[tuple[bytes, str | None], ...] = ()
    upto: int = 0
    is_closing: bool = False
    stored: int = 0
    item: bytes | None = None


class ResumeCoroutine(_Wire, frozen=True):
    """Resume a suspended coroutine, because the call in which it waits has a stored answer.

    Attributes:
        was_start_no: Number of the start in which it was suspended.
        start_no: Number of the start that resumes it.
        answer: msgpack; ``None`` if the call failed.
    """

    run_no: RunNo
    task_no: TaskNo
    was_start_no: StartNo
    start_no: StartNo
    answer: bytes | None
    failure: Failure | None = None


class CallRecorded(_Wire, frozen=True):
    """Confirm that the answer of a durable call is stored.

    Attributes:
        answer: The answer, if the host does not know it yet, such as the pending event of a stream.
        failure: Why the call failed, if the engine made it fail. ``answer`` is then the data from
            which the exception is built.
    """

    task_no: TaskNo
    start_no: StartNo
    ordinal: int
    answer: bytes | None = None
    failure: Failure | None = None


class ItemsStored(_Wire, frozen=True):
    """Confirm that a task's items below index ``upto`` are stored, so that it may yield more."""

    task_no: TaskNo
    start_no: StartNo
    upto: int


class Recall(_Wire, frozen=True):
    """Return those of the claimed tries that have not started. Answered by ``Recalled``."""

    tries: tuple[tuple[TaskNo, StartNo], ...]


class StopTask(_Wire, frozen=True):
    """Cancel one hosted coroutine. The engine ignores its later reports."""

    task_no: TaskNo
    start_no: StartNo
    reason: str


class ForgetRun(_Wire, frozen=True):
    """Drop the ``RunInfo`` of a run that has ended."""

    run_no: RunNo


class StartTrigger(_Wire, frozen=True):
    """Start a trigger.

    Attributes:
        version: The version of its run. The code of this version is loaded if the class in
            ``newest`` does not accept the trigger's fields.
        kwargs: msgpack of its fields.
        since: When its task began to wait, on the wall clock.
        window: The maximum number of events that it may be ahead of the store; 0 if it ends with
            its first event.
        start: For a task that is deferred from its start: the data from which its trigger is
            created. For a task whose result other tasks expand over: the data needed to write that
            result, if an event ends the task.
        is_made_there: Whether the host creates the trigger, because its task is deferred from its
            start.
        dag_id: The DAG of its task, or the DAG whose runs it starts.
        newest: The newest version of its DAG; empty if that is ``version``.
        last: Its last stored event: payload and key.
        priority: The priority of its task. If capacity is short, triggers with a higher priority
            start first.
        task_index: The index of its task. Used for the log only, like ``map_index``, ``start_no``
            and ``try_number``.
        waits_since: Like ``since``, on the monotonic clock of the machine.
    """

    trigger_no: TriggerNo
    assignment_id: int
    run_no: RunNo
    task_no: TaskNo
    version: str
    class_path: str
    kwargs: bytes
    since: Timestamp
    logical_date: Timestamp | None
    window: int = 0
    start: StartTask | None = None
    newest: str = ""
    last: tuple[bytes, str | None] | None = None
    priority: int = 0
    task_index: int = -1
    map_index: int = -1
    start_no: StartNo = 0
    try_number: int = 1
    is_made_there: bool = False
    dag_id: str = ""
    waits_since: int | None = None


class PreviewFireTimes(_Wire, frozen=True):
    """Compute the next fire times of a timetable. Answered by ``FireTimesPreviewed``.

    Attributes:
        host: The data from which an instance of the timetable is created. The trigger that runs the
            timetable need not be in the receiving host.
        after: Only later fire times are computed.
        count: Maximum number of fire times.
        limit_seconds: Time limit for the computation.
    """

    question: int
    host: StartTrigger
    after: Timestamp
    count: int
    limit_seconds: float


class StopTrigger(_Wire, frozen=True):
    """Stop a trigger and confirm with ``TriggerEnded``.

    Attributes:
        reason: ``finished``, ``cancelled``, ``timeout``, ``reassigned``, ``paused`` or
            ``shutdown``.
    """

    trigger_no: TriggerNo
    assignment_id: int
    reason: str


class EventsStored(_Wire, frozen=True):
    """Confirm that an assignment's events with an index below ``upto`` are stored.

    The trigger may then continue.
    """

    trigger_no: TriggerNo
    assignment_id: int
    upto: int


class Reply(_Wire, frozen=True):
    """The daemon's reply to a ``Query``. If there is no answer, ``error`` contains the reason."""

    question: int
    body: bytes
    error: str = ""


class RunCallback(_Wire, frozen=True):
    """Run an author's callback for an event. Answered by ``CallbackReturned``.

    Attributes:
        number: The number of the outbox row, the same in each attempt.
        body: msgpack of the ``protocol.outbox.Callback``.
        names: The secrets, connections and variables that the callback receives.
        values: Their values, each as msgpack.
    """

    number: int
    run_no: RunNo
    body: bytes
    names: tuple[tuple[ValueKind, str], ...] = ()
    values: tuple[bytes, ...] = ()


class Notify(_Wire, frozen=True):
    """Notify the operators. Answered by ``CallbackReturned``.

    Attributes:
        number: The number of the outbox row.
        body: msgpack of the ``protocol.outbox.Alert``.
        webhook: A URL; empty for none.
        webhook_secret: Instead of ``webhook``: the name of the secret that contains the URL.
        signing_secret: The name of the secret to sign with; empty for none.
        email: Addresses.
        connection: The name of the connection used to send mail.
        names, values: See ``RunCallback``.
        url: The page of the run or DAG that the alert is about; empty for none.
    """

    number: int
    body: bytes
    webhook: str = ""
    webhook_secret: str = ""
    signing_secret: str = ""
    email: tuple[str, ...] = ()
    sender: str = ""
    connection: str = ""
    names: tuple[tuple[ValueKind, str], ...] = ()
    values: tuple[bytes, ...] = ()
    url: str = ""


class Ping(_Wire, frozen=True):
    """Answer with ``Pong`` as soon as the event loop handles this. Sent to shared hosts only.

    Attributes:
        sent_us: When it was sent, in microseconds of the monotonic clock, which all processes of
            the machine share.
    """

    sent_us: int = 0


class Describe(_Wire, frozen=True):
    """Describe triggers, or an async host's sensors, for display. Answered by ``Described``."""

    question: int
    numbers: tuple[TriggerNo, ...]


Command: TypeAlias = (
    Hello
    | Parse
    | Inspect
    | RunInfo
    | StartTask
    | ResumeCoroutine
    | CallRecorded
    | ItemsStored
    | Recall
    | StopTask
    | ForgetRun
    | StartTrigger
    | StopTrigger
    | EventsStored
    | PreviewFireTimes
    | Reply
    | RunCallback
    | Notify
    | Ping
    | Describe
)
