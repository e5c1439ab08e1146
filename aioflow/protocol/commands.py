"""What the daemon tells its children; what they report is in ``protocol.reports``.

Structs are array-like, as reports are: both ends are of one version of aioflow.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from aioflow.model.dag import ValueKind
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.states import Failure
from aioflow.model.timestamps import Timestamp

__all__ = (
    "CallRecorded",
    "Describe",
    "EventsStored",
    "ForgetRun",
    "Hello",
    "Inspect",
    "ItemsStored",
    "Notify",
    "Order",
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
    """Crosses the link."""


class Hello(_Wire, frozen=True):
    """The first order of every child.

    Attributes:
        code: Folder of the version snapshots; ``<code>/<version>/`` is one.
        results: Folder of large results.
        memory_limit_bytes: Above this a host lets parked coroutines go; 0 for no limit.
        stall_seconds: A step that holds up a shared loop for longer is named.
        default_deferrable: What an operator's ``deferrable=None`` stands for, if that is set.
        default_tries: What a task has that does not say.
        traces: Whether starts are handed the span they are.
    """

    role: str
    code: str
    results: str
    memory_limit_bytes: int = 0
    stall_seconds: float = 0.1
    default_deferrable: bool | None = None
    default_tries: int = 3
    traces: bool = False


class ParserLimits(_Wire, frozen=True):
    """What a process may take that looks at one file.

    Attributes:
        processes: How many others it may have at a time, those they start included.
    """

    wall_seconds: float = 30.0
    memory_bytes: int = 1536 * 1024 * 1024
    output_bytes: int = 10 * 1024 * 1024
    processes: int = 64


class Parse(_Wire, frozen=True):
    """Import one file and describe its DAGs."""

    folder: str
    file: str
    limits: ParserLimits = ParserLimits()


class Inspect(_Wire, frozen=True):
    """Import what a plug-in's entry point names, and say which triggers are in it."""

    entry_point: str
    limits: ParserLimits = ParserLimits()


class RunInfo(_Wire, frozen=True):
    """What all tasks of a run share. Sent to a process before the first of them."""

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
        method: Where a deferred operator resumes; empty for the beginning.
        kwargs: msgpack, for ``method``.
        event: msgpack of the trigger's payload.
        results: Small results of parents the engine has at hand, by position; a
            ``None`` result is absent, what is missing for another reason is asked for.
        at_hand: Positions whose result is known, also as ``None``.
        sources: ``(position, task_no, start_no)`` of the indexed files child
            ``map_index`` takes its items from.
        widths: Of all lists of the expansion, literals too, in order; see ``core.tasks.expand``.
        recorded: Durable calls whose answers are stored; the host asks for them first.
        timeout_us: What is left of the try's time, for a coroutine's host to watch.
        events: ``(payload, key)`` of those an operator takes in this start, where it takes many.
        upto: The sequence number behind the last of them.
        is_closing: There are no more: the last start of such an operator.
        stored: Items of its output that are stored.
        item: msgpack of the item of a stream that child ``map_index`` takes, if it is at hand.
    """

    run_no: RunNo
    task_no: TaskNo
    start_no: StartNo
    position: int
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
    """Let a parked coroutine go on: the call it waits in has its answer, which is stored.

    Attributes:
        was_start_no: The start it was parked in.
        start_no: The one it goes on as.
        answer: msgpack; ``None`` if the call failed.
    """

    run_no: RunNo
    task_no: TaskNo
    was_start_no: StartNo
    start_no: StartNo
    answer: bytes | None
    failure: Failure | None = None


class CallRecorded(_Wire, frozen=True):
    """The answer of a durable call is stored.

    Attributes:
        answer: What the host does not know itself: the event a stream had at hand.
        failure: Why the call failed, where core said so; ``answer`` is then what to make it of.
    """

    task_no: TaskNo
    start_no: StartNo
    ordinal: int
    answer: bytes | None = None
    failure: Failure | None = None


class ItemsStored(_Wire, frozen=True):
    """The items of a task below ``upto`` are stored, and there is room for more."""

    task_no: TaskNo
    start_no: StartNo
    upto: int


class Recall(_Wire, frozen=True):
    """Give back these claimed tries, if they have not begun. Answered by ``Recalled``."""

    tries: tuple[tuple[TaskNo, StartNo], ...]


class StopTask(_Wire, frozen=True):
    """Cancel one hosted coroutine. It reports nothing that the engine would still heed."""

    task_no: TaskNo
    start_no: StartNo
    reason: str


class ForgetRun(_Wire, frozen=True):
    """This run has ended: drop its ``RunInfo``."""

    run_no: RunNo


class StartTrigger(_Wire, frozen=True):
    """Host a trigger.

    Attributes:
        version: The version of its run, whose code it is loaded from if ``newest`` does not
            take its fields.
        kwargs: msgpack of its fields.
        since: When its task began to wait, by the wall clock.
        window: How many events it may be ahead of the store; 0 to end with the first.
        start: Of a task that waits straight from its start: what its trigger is made of. Of one
            whose result others expand over: what it takes to write that, if an event ends it.
        is_made_there: It waits straight from its start.
        dag_id: The DAG of its task, or that it starts runs of.
        newest: The newest version of its DAG; empty where that is ``version``.
        last: Its last stored event: payload and key.
        priority: That of its task; the higher is hosted first where room is short.
        position: Where its task stands, for the log; so do ``map_index``, ``start_no`` and
            ``try_number``.
        waits_since: As ``since``, by the monotonic clock of the machine.
    """

    trigger_no: TriggerNo
    hosting: int
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
    position: int = -1
    map_index: int = -1
    start_no: StartNo = 0
    try_number: int = 1
    is_made_there: bool = False
    dag_id: str = ""
    waits_since: int | None = None


class PreviewFireTimes(_Wire, frozen=True):
    """Say when a timetable has its next slots. Answered by ``FireTimesPreviewed``.

    Attributes:
        host: What it is made of, whether it is hosted or not.
        after: Only slots behind this.
        count: At most so many.
        limit_seconds: How long that may take.
    """

    question: int
    host: StartTrigger
    after: Timestamp
    count: int
    limit_seconds: float


class StopTrigger(_Wire, frozen=True):
    """Stop hosting a trigger and confirm with ``TriggerEnded``.

    Attributes:
        reason: ``finished``, ``cancelled``, ``timeout``, ``reassigned``, ``paused`` or
            ``shutdown``.
    """

    trigger_no: TriggerNo
    hosting: int
    reason: str


class EventsStored(_Wire, frozen=True):
    """The events of a hosting below this index are stored: it may go on."""

    trigger_no: TriggerNo
    hosting: int
    upto: int


class Reply(_Wire, frozen=True):
    """The daemon's answer to an ``Query``. ``error`` tells why there is none."""

    question: int
    body: bytes
    error: str = ""


class RunCallback(_Wire, frozen=True):
    """Call what an author gave for an event. Answered by ``CallbackReturned``.

    Attributes:
        number: Of the outbox row; the same where it is called again.
        body: msgpack of the ``protocol.outbox.Callback``.
        names: Which secrets, connections and variables it is told.
        values: These, msgpack each.
    """

    number: int
    run_no: RunNo
    body: bytes
    names: tuple[tuple[ValueKind, str], ...] = ()
    values: tuple[bytes, ...] = ()


class Notify(_Wire, frozen=True):
    """Tell the people on call. Answered by ``CallbackReturned``.

    Attributes:
        number: Of the outbox row.
        body: msgpack of the ``protocol.outbox.Alert``.
        webhook: A URL; empty for none.
        webhook_secret: The name of the secret that is the URL, instead.
        signing_secret: The name of the secret to sign with; empty for none.
        email: Addresses.
        connection: The name of the connection to send mail over.
        names: See ``RunCallback``; so are ``values``.
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


class Ping(_Wire, frozen=True):
    """Say ``Pong`` as soon as the loop comes round. Shared hosts only.

    Attributes:
        sent_us: Monotonic microseconds; one clock for all processes of a machine.
    """

    sent_us: int = 0


class Describe(_Wire, frozen=True):
    """Describe triggers, or of an async host its sensors, for people, by ``Described``."""

    question: int
    numbers: tuple[TriggerNo, ...]


Order: TypeAlias = (
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
