"""Reports of child processes to the daemon. The daemon's commands are in ``protocol.commands``.

Reports cross the link and enter the engine's inbox unchanged. Only the results of parsing DAG files
and plug-ins go to the catalog instead. A report with an old ``start_no`` or ``assignment_id`` is
outdated and ignored.

Structs are array-like: a frame contains only values, so both ends must have the same version of
aioflow. They do, because the daemon starts its children from its own code.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from aioflow.model.dag import DagSpec
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.states import Failure
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import TriggerDescription

__all__ = (
    "NO_PARSER_CAPACITY",
    "Awaiting",
    "CallAnswered",
    "CallbackReturned",
    "CancelQuery",
    "DagFailure",
    "DataFiles",
    "Deferred",
    "Described",
    "Ended",
    "EventEmitted",
    "EventsHandled",
    "Failed",
    "FireTimesPreviewed",
    "Inspected",
    "ItemYielded",
    "Labelled",
    "NamesFound",
    "NextEventRequested",
    "NextFireTime",
    "NotSuspended",
    "Output",
    "Parsed",
    "ParserDied",
    "Pong",
    "Query",
    "Recalled",
    "RecordDropped",
    "Report",
    "ResultWriteFailed",
    "RunCalled",
    "SensorNotReady",
    "Skipped",
    "StreamOpened",
    "Succeeded",
    "TaskReport",
    "TaskStarted",
    "TaskStopped",
    "TriggerEnded",
    "TriggerFired",
    "TriggerKind",
)

NO_PARSER_CAPACITY = "no_room"
"""The ``limit`` if the machine lacked resources to start a parser, which is not the file's fault.
"""


class _ParserReport(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base class of parser messages on the link, see ``protocol.reports``."""


class DagFailure(_ParserReport, frozen=True):
    """The reason why a file could not be parsed, or one of its DAGs is invalid."""

    reason: str
    message: str
    line: int = 0


class DataFiles(_ParserReport, frozen=True):
    """The files that a DAG file uses besides its modules, relative to the DAG folder.

    Attributes:
        paths: Targets of expressions built on ``__file__``, even outside the DAG folder, each with
            the line of the expression; 0 if that is in an imported module.
        named: Files and folders that its strings name, and folders that its import listed.
        opened: Files that its import has read, each with its stamp at that time. If there was no
            such file, the stamp is empty.
        written: Files that its import has written.
        patterns: Patterns of its line ``# aioflow: files = [...]``; ``None`` without such a line.
        reads: Patterns of files that its DAGs declare to read.
    """

    paths: dict[str, int] = {}
    named: tuple[str, ...] = ()
    opened: dict[str, tuple[int, ...]] = {}
    written: tuple[str, ...] = ()
    patterns: tuple[str, ...] | None = None
    reads: tuple[str, ...] = ()


class Parsed(_ParserReport, frozen=True):
    """The result of parsing a file.

    Attributes:
        dags: The valid DAGs.
        failures: Errors. After a syntax error there are no DAGs.
        modules: The local files that it imported, and the file itself, relative to the DAG folder.
        wanted: See ``NamesFound``.
        triggers: The local trigger classes it may use, by class path, each with a digest of the
            code on which it depends.
        odd: Warnings about valid code that is probably a mistake.
        beside: Other files that it uses.
    """

    dags: tuple[DagSpec, ...]
    failures: tuple[DagFailure, ...]
    modules: tuple[str, ...]
    triggers: dict[str, str] = {}
    odd: tuple[DagFailure, ...] = ()
    wanted: tuple[str, ...] = ()
    beside: DataFiles = DataFiles()


class NamesFound(_ParserReport, frozen=True):
    """The local files that a DAG file imports, found in the sources before any code runs.

    Attributes:
        modules: The file itself, and all local files that it imports directly or indirectly,
            relative to the DAG folder.
        wanted: Targets of imports that do not exist yet, as paths in the DAG folder without a
            suffix.
    """

    modules: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()


class ParserDied(_ParserReport, frozen=True):
    """The report that a parser process ended before it had a result.

    Attributes:
        status: The exit code as in ``subprocess``: negative for a signal. If the process could not
            be started, the error number.
        last_words: The end of its output.
        limit: The exceeded limit for which it was killed; empty if it died by itself;
            ``NO_PARSER_CAPACITY`` if it could not be started.
        named: The names that were found in the file before the process ended.
    """

    status: int
    last_words: bytes
    limit: str = ""
    message: str = ""
    named: NamesFound = NamesFound()


class TriggerKind(msgspec.Struct, frozen=True, omit_defaults=True):
    """A trigger class of a plug-in.

    Attributes:
        summary: The first line of its docstring, if any.
        public_fields: Names of the fields that viewers may read.
    """

    class_path: str
    summary: str
    public_fields: tuple[str, ...] = ()


class Inspected(_ParserReport, frozen=True):
    """The result of inspecting a plug-in, or its failure."""

    kinds: tuple[TriggerKind, ...]
    failure: DagFailure | None = None


class _Wire(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base class of the messages on the link."""


class TaskReport(_Wire, frozen=True):
    """A report about one start of a task."""

    task_no: TaskNo
    start_no: StartNo


# ── reports of task hosts ───────────────────────────────────────────────────────────────


class TaskStarted(TaskReport, frozen=True):
    """User code of this start begins now in a worker. A claimed try uses its slot from now on.

    A coroutine uses its slot as soon as it is started, so it sends no such report.
    """

    at: Timestamp


class Labelled(TaskReport, frozen=True):
    """The display name of this child. Reported in each try, before the task's body begins."""

    label: str


class Succeeded(TaskReport, frozen=True):
    """The task returned.

    Attributes:
        body: msgpack of the result; ``None`` if the result is ``None`` or in a file.
        size: Size of the result in bytes; 0 for ``None``. If ``body`` is ``None`` and the size is
            not 0, the result is in the file of this start.
        width: Number of items, if other tasks expand over the result.
        skips: Indexes of the tasks to skip, unless they have started.
        again: For the task that decides whether a loop ends: whether there is another iteration.
    """

    began_at: Timestamp
    at: Timestamp
    body: bytes | None = None
    size: int = 0
    width: int | None = None
    skips: tuple[int, ...] = ()
    again: bool = False


class Failed(TaskReport, frozen=True):
    """The try failed.

    Attributes:
        retryable: Whether another try may help, according to the failure itself.
        retry_after_us: The delay that the task requested instead of that of its retry policy.
        interrupted: Whether the infrastructure is at fault. The start then counts as an
            interruption, not as a try.
    """

    began_at: Timestamp | None
    at: Timestamp
    failure: Failure
    retryable: bool = True
    retry_after_us: int | None = None
    interrupted: bool = False


class Skipped(TaskReport, frozen=True):
    """The task requested to be skipped."""

    began_at: Timestamp
    at: Timestamp
    message: str = ""


class SensorNotReady(TaskReport, frozen=True):
    """The condition of a sensor that pokes in a slot is not met yet.

    Attributes:
        recheck_in_us: The time until the next poke, if the sensor itself has set it.
    """

    began_at: Timestamp
    at: Timestamp
    recheck_in_us: int | None = None


class Deferred(TaskReport, frozen=True):
    """The task waits for a trigger and has freed its slot.

    Attributes:
        kwargs: msgpack of the trigger's fields.
        next_kwargs: msgpack of the arguments of ``next_method`` besides the event.
        timeout_us: How long it may wait.
        timeout_method: The method in which it resumes after the timeout; if empty, it fails.
    """

    began_at: Timestamp
    at: Timestamp
    class_path: str
    kwargs: bytes
    next_method: str
    next_kwargs: bytes | None = None
    timeout_us: int | None = None
    timeout_method: str = ""


class EventsHandled(TaskReport, frozen=True):
    """An operator has handled events of its stream, and waits for the next events.

    Attributes:
        upto: The sequence number after the last event that it received.
        items: msgpack of the items that it adds to its output.
        is_last: Whether there are no more events. The task has then succeeded.
    """

    began_at: Timestamp
    at: Timestamp
    upto: int
    items: tuple[bytes, ...] = ()
    is_last: bool = False


class ItemYielded(TaskReport, frozen=True):
    """A generator yielded, and continues once the item is stored. Answered by ``ItemsStored``.

    Attributes:
        index: Counts the items of the task from 0, including those of earlier tries.
        payload: msgpack.
    """

    index: int
    payload: bytes


class CallAnswered(TaskReport, frozen=True):
    """A durable call that does not suspend its task has an answer. Answered by ``CallRecorded``.

    Attributes:
        ordinal: Counts the durable calls of the task from 0.
        kind: ``step``, ``now``, ``uuid`` ...
        name: The called function or class, which a replay compares.
        source_location: ``file:line`` of the call.
        answer: msgpack; ``None`` if it failed.
        label: The purpose of the call in its author's words; masked.
    """

    ordinal: int
    kind: str
    name: str
    source_location: str
    answer: bytes | None
    failure: Failure | None = None
    label: str = ""


class Awaiting(TaskReport, frozen=True):
    """A coroutine waits in a durable call. It is suspended, so it uses no slot.

    Attributes:
        kind: ``wait``, ``any_of``, ``all_of`` or ``sleep``.
        triggers: ``(class_path, kwargs)`` of each; empty for a ``sleep``.
        timeout_us: Time after which the call raises or, for a ``sleep``, returns.
        label: What the task waits for, in its author's words; masked.
    """

    began_at: Timestamp
    at: Timestamp
    ordinal: int
    kind: str
    name: str
    source_location: str
    triggers: tuple[tuple[str, bytes], ...]
    timeout_us: int | None = None
    label: str = ""


class StreamOpened(TaskReport, frozen=True):
    """A coroutine opens a stream, which is a durable call. Answered by ``CallRecorded``.

    Attributes:
        window: How many events the trigger may be ahead of the store.
        label: What the task waits for, in its author's words; masked.
    """

    ordinal: int
    kind: str
    name: str
    source_location: str
    class_path: str
    kwargs: bytes
    window: int
    label: str = ""


class NextEventRequested(TaskReport, frozen=True):
    """A coroutine requests the next event of a stream. It is suspended until there is one.

    If there already is an event, this is answered by ``CallRecorded``, else by ``ResumeCoroutine``.
    An answer of ``None`` means that the stream has ended.

    Attributes:
        stream: The ordinal of the call that opened the stream.
        timeout_us: Time after which the call raises.
    """

    began_at: Timestamp
    at: Timestamp
    ordinal: int
    kind: str
    name: str
    source_location: str
    stream: int
    timeout_us: int | None = None


class EventEmitted(TaskReport, frozen=True):
    """A coroutine emits a named event, which is a durable call. Answered by ``CallRecorded``.

    Attributes:
        data: msgpack.
    """

    ordinal: int
    kind: str
    name: str
    source_location: str
    event: str
    key: str | None
    data: bytes


class RunCalled(TaskReport, frozen=True):
    """A coroutine starts a run of another DAG, and is suspended until the run has ended.

    If the run cannot be created, this is answered by ``CallRecorded``, else by ``ResumeCoroutine``.

    Attributes:
        conf: msgpack of the parameters that were set; ``None`` if none were.
        waits: Whether the coroutine waits. If not, it is not suspended, and the answer is a
            ``CallRecorded`` with the run's id.
    """

    began_at: Timestamp
    at: Timestamp
    ordinal: int
    kind: str
    name: str
    source_location: str
    dag_id: str
    conf: bytes | None
    waits: bool = True


class RecordDropped(TaskReport, frozen=True):
    """The code has changed, and its author requested to drop the records from ``first`` on.

    Attributes:
        starts_over: Whether the coroutine has ended. If so, the task runs again from the start,
            without using up a try.
    """

    first: int
    starts_over: bool


class NotSuspended(TaskReport, frozen=True):
    """A host does not have the coroutine that it should resume, or whose call it should confirm."""


class ResultWriteFailed(TaskReport, frozen=True):
    """The body has returned, but its result could not be written. The process retains the result.

    Attributes:
        disk_is_full: Whether the disk is full. If so, no task starts until the result is written.
    """

    disk_is_full: bool


class Recalled(_Wire, frozen=True):
    """These claimed tries have not started, and will not start in this process."""

    tries: tuple[tuple[TaskNo, StartNo], ...]


class Output(_Wire, frozen=True):
    """Output of a hosted coroutine or trigger, for its log. It does not reach the engine.

    For a trigger, ``task_no`` is the number of the trigger, and ``start_no`` is the number of its
    assignment.

    Attributes:
        is_stderr: Whether it was written to ``sys.stderr``.
    """

    task_no: TaskNo
    start_no: StartNo
    data: bytes
    is_stderr: bool = False


class TaskStopped(_Wire, frozen=True):
    """A start that was stopped has ended completely. For its log; it does not reach the engine."""

    task_no: TaskNo
    start_no: StartNo


Ended: TypeAlias = (
    Succeeded | Failed | Skipped | SensorNotReady | Deferred | Awaiting | EventsHandled
)


# ── reports of trigger hosts ────────────────────────────────────────────────────────────


class TriggerFired(_Wire, frozen=True):
    """A hosted trigger yielded an event.

    Attributes:
        index: Counts the events of this assignment from 0.
        payload: msgpack.
        key: Identifies the event, even across assignments.
        ends: ``success``, ``failed`` or ``skipped`` if the event ends the task without resuming it.
            ``payload`` is then its result, or the error message.
        size: The size of a result that is in a file or has a ``width``; see ``Succeeded``.
        is_last: Whether the trigger has ended completely. No ``TriggerEnded`` follows unless it is
            requested.
        result: The task and start that name the file of a result; ``None`` if there is no file.
    """

    trigger_no: TriggerNo
    assignment_id: int
    index: int
    at: Timestamp
    payload: bytes
    key: str | None = None
    ends: str = ""
    size: int = 0
    width: int | None = None
    is_last: bool = False
    result: tuple[TaskNo, StartNo] | None = None


class TriggerEnded(_Wire, frozen=True):
    """A hosted trigger has left its host, because it returned, raised, or was stopped.

    Attributes:
        reason: The reason in the command to stop; empty if it ended by itself.
    """

    trigger_no: TriggerNo
    assignment_id: int
    at: Timestamp
    failure: Failure | None = None
    reason: str = ""


class NextFireTime(_Wire, frozen=True):
    """A hosted timetable waits for its next fire time. For previews; it does not reach the engine.

    Attributes:
        fire_time: ``None`` if there is no further fire time.
    """

    trigger_no: TriggerNo
    assignment_id: int
    fire_time: Timestamp | None


class FireTimesPreviewed(_Wire, frozen=True):
    """The answer to a ``PreviewFireTimes``. It does not reach the engine.

    Attributes:
        fire_times: In order.
        failure: Why they cannot be computed.
    """

    question: int
    fire_times: tuple[Timestamp, ...] = ()
    failure: Failure | None = None


class Query(_Wire, frozen=True):
    """A query from a child to the daemon.

    Attributes:
        question: Number that identifies the query in the reply.
        kind: ``results`` (a page of a parent's results), ``records`` (the records of a task),
            ``runs`` (how runs end, or how a task in each of them ends), ``events`` (the events of a
            name), ``values``, or ``files`` (copies of stored results).
        body: msgpack of the fields specific to the kind, see ``worker.query.messages``.
    """

    question: int
    run_no: RunNo
    kind: str
    body: bytes


class CancelQuery(_Wire, frozen=True):
    """A child cancels a query.

    Attributes:
        question: The query; -1 for all queries of the child. For a child that has died, the daemon
            itself reports -1.
        numbers: For a query about runs: the runs to cancel; empty for the whole query.
    """

    question: int
    numbers: tuple[int, ...] = ()


class Pong(_Wire, frozen=True):
    """The answer to a ``Ping``, for the health check. It does not reach the engine.

    It shows that the event loop of the host runs.

    Attributes:
        late_us: How long the ``Ping`` had waited for the event loop.
        evicted: Number of suspended coroutines that the process has evicted to save memory.
        watches: For a few trigger classes: class path, number of watches, and time of the next
            check.
        changed: Name of a package that has changed since the process imported it; empty if none.
    """

    late_us: int = 0
    evicted: int = 0
    watches: tuple[tuple[str, int, Timestamp | None], ...] | None = None
    changed: str = ""


class Described(_Wire, frozen=True):
    """The answer to ``Describe``. It does not reach the engine.

    Attributes:
        triggers: The number and description of each trigger or sensor in this host.
    """

    question: int
    triggers: tuple[tuple[TriggerNo, TriggerDescription], ...]


class CallbackReturned(_Wire, frozen=True):
    """The answer to a ``RunCallback`` or a ``Notify``. It does not reach the engine.

    Attributes:
        may_pass: Whether the failure may be temporary.
    """

    number: int
    failure: Failure | None = None
    may_pass: bool = False


_OfCalls: TypeAlias = CallAnswered | StreamOpened | NextEventRequested | EventEmitted | RunCalled
_OfTasks: TypeAlias = (
    TaskStarted
    | Ended
    | ItemYielded
    | _OfCalls
    | NotSuspended
    | RecordDropped
    | Labelled
    | ResultWriteFailed
)
_OfTriggers: TypeAlias = TriggerFired | TriggerEnded | NextFireTime | FireTimesPreviewed | Described
_OfProcesses: TypeAlias = (
    Recalled | Output | TaskStopped | Query | CancelQuery | Pong | CallbackReturned
)
_OfParsers: TypeAlias = Parsed | NamesFound | ParserDied | Inspected

Report: TypeAlias = _OfTasks | _OfTriggers | _OfProcesses | _OfParsers
