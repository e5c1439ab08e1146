"""What children report to the daemon; what it tells them is in ``protocol.commands``.

They cross the link as they are and enter the engine's inbox as they are. One that carries an
old ``start_no`` or ``hosting`` is late and ignored.

Structs are array-like: a frame holds values only, so both ends must be of one version of
aioflow, which they are, because the daemon starts its children from its own code.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.states import Failure
from aioflow.model.timestamps import Timestamp
from aioflow.model.trigger_description import Watched
from aioflow.protocol.parse_results import Inspected, Named, Parsed, ParserDied

__all__ = (
    "Awaiting",
    "CallAnswered",
    "CallbackReturned",
    "CancelQuery",
    "Deferred",
    "Described",
    "Ended",
    "EventEmitted",
    "EventsHandled",
    "Failed",
    "FireTimesPreviewed",
    "ItemYielded",
    "Labelled",
    "NextEventRequested",
    "NextFireTime",
    "NotSuspended",
    "Output",
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
)


class _Wire(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Crosses the link."""


class TaskReport(_Wire, frozen=True):
    """What a process says of one start of a task."""

    task_no: TaskNo
    start_no: StartNo


# ── reports of task hosts ───────────────────────────────────────────────────────────────


class TaskStarted(TaskReport, frozen=True):
    """User code of this start begins now, in a worker: a claimed try has its slot from here on.

    A coroutine has had its place since it was ordered, and says nothing.
    """

    at: Timestamp


class Labelled(TaskReport, frozen=True):
    """What people are to call this child; told before its body begins, in each try again."""

    label: str


class Succeeded(TaskReport, frozen=True):
    """The task returned.

    Attributes:
        body: msgpack of the result; ``None`` if it is ``None`` or in a file.
        size: Bytes of the result; 0 for ``None``. With ``body`` ``None`` and a size, the
            result is in the file of this start.
        width: Items, where it feeds an ``expand``.
        skips: Positions of the tasks it wants skipped, if they have not begun.
        again: The loop it decides over is to go round again.
    """

    began_at: Timestamp
    at: Timestamp
    body: bytes | None = None
    size: int = 0
    width: int | None = None
    skips: tuple[int, ...] = ()
    again: bool = False


class Failed(TaskReport, frozen=True):
    """The try ended badly.

    Attributes:
        retryable: Whether another try may help, as far as the failure itself says.
        retry_after_us: The delay the task asked for, instead of its policy's.
        interrupted: Infrastructure's fault: costs an interruption, not a try.
    """

    began_at: Timestamp | None
    at: Timestamp
    failure: Failure
    retryable: bool = True
    retry_after_us: int | None = None
    interrupted: bool = False


class Skipped(TaskReport, frozen=True):
    """The task asked to be skipped."""

    began_at: Timestamp
    at: Timestamp
    message: str = ""


class SensorNotReady(TaskReport, frozen=True):
    """A sensor that looks from a slot found nothing yet.

    Attributes:
        recheck_in_us: When to look again, if it said so itself.
    """

    began_at: Timestamp
    at: Timestamp
    recheck_in_us: int | None = None


class Deferred(TaskReport, frozen=True):
    """The task waits for a trigger and gave its slot back.

    Attributes:
        kwargs: msgpack of the trigger's fields.
        next_kwargs: msgpack of what ``next_method`` is called with besides the event.
        timeout_us: How long it may wait.
        timeout_method: Where it resumes if that is over; empty to fail then.
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
    """An operator has taken events of its stream, and waits for the next ones.

    Attributes:
        upto: The sequence number behind the last event it was given.
        items: msgpack of what it adds to its output.
        is_last: There are no more events, and with this its task has succeeded.
    """

    began_at: Timestamp
    at: Timestamp
    upto: int
    items: tuple[bytes, ...] = ()
    is_last: bool = False


class ItemYielded(TaskReport, frozen=True):
    """A generator yielded, and goes on when that is stored. Answered by ``ItemsStored``.

    Attributes:
        index: Counts the items of the task from 0, those of earlier tries too.
        payload: msgpack.
    """

    index: int
    payload: bytes


class CallAnswered(TaskReport, frozen=True):
    """A durable call that waits for nothing has its answer. Answered by ``CallRecorded``.

    Attributes:
        ordinal: Counts the durable calls of the task from 0.
        kind: ``step``, ``now``, ``uuid`` ...
        name: What was called, as a replay compares it.
        place: ``file:line`` of the call.
        answer: msgpack; ``None`` if it failed.
    """

    ordinal: int
    kind: str
    name: str
    place: str
    answer: bytes | None
    failure: Failure | None = None


class Awaiting(TaskReport, frozen=True):
    """A coroutine waits in a durable call and is parked: it holds no place meanwhile.

    Attributes:
        kind: ``wait``, ``any_of``, ``all_of`` or ``sleep``.
        triggers: ``(class_path, kwargs)`` of each; none for a ``sleep``.
        timeout_us: After this the call raises, and a ``sleep`` returns.
    """

    began_at: Timestamp
    at: Timestamp
    ordinal: int
    kind: str
    name: str
    place: str
    triggers: tuple[tuple[str, bytes], ...]
    timeout_us: int | None = None


class StreamOpened(TaskReport, frozen=True):
    """A coroutine opens a stream: a durable call of its own. Answered by ``CallRecorded``.

    Attributes:
        window: How many events the trigger may be ahead of the store.
    """

    ordinal: int
    kind: str
    name: str
    place: str
    class_path: str
    kwargs: bytes
    window: int


class NextEventRequested(TaskReport, frozen=True):
    """A coroutine takes the next event of a stream; it is parked until there is one.

    Answered by ``CallRecorded`` if there is one already, else by ``ResumeCoroutine``. An answer of
    ``None`` says that the stream is over.

    Attributes:
        stream: The ordinal of the call that opened it.
        timeout_us: After this the call raises.
    """

    began_at: Timestamp
    at: Timestamp
    ordinal: int
    kind: str
    name: str
    place: str
    stream: int
    timeout_us: int | None = None


class EventEmitted(TaskReport, frozen=True):
    """A coroutine emits a named event: a durable call. Answered by ``CallRecorded``.

    Attributes:
        data: msgpack.
    """

    ordinal: int
    kind: str
    name: str
    place: str
    event: str
    key: str | None
    data: bytes


class RunCalled(TaskReport, frozen=True):
    """A coroutine starts a run of another DAG and is parked until that has ended.

    Answered by ``CallRecorded`` if there can be no such run, else by ``ResumeCoroutine``.

    Attributes:
        conf: msgpack of the parameters that were given; ``None`` if none were.
        waits: Whether it is; else it goes on, answered by ``CallRecorded`` with the run's id.
    """

    began_at: Timestamp
    at: Timestamp
    ordinal: int
    kind: str
    name: str
    place: str
    dag_id: str
    conf: bytes | None
    waits: bool = True


class RecordDropped(TaskReport, frozen=True):
    """The code has changed, and its author wants no call from ``first`` on to be remembered.

    Attributes:
        starts_over: The coroutine is gone; the task runs again from the top, uncharged.
    """

    first: int
    starts_over: bool


class NotSuspended(TaskReport, frozen=True):
    """A host was to resume a coroutine, or to confirm its call, and does not have it (any more)."""


class ResultWriteFailed(TaskReport, frozen=True):
    """The body has returned, and an attempt to write its result failed: the process keeps it.

    Attributes:
        disk_is_full: No task starts until the result is written.
    """

    disk_is_full: bool


class Recalled(_Wire, frozen=True):
    """These claimed tries had not begun and will not begin in that process."""

    tries: tuple[tuple[TaskNo, StartNo], ...]


class Output(_Wire, frozen=True):
    """What a hosted coroutine printed. For the task log, never for the engine.

    A trigger host puts the number of the trigger and its hosting where another one puts
    those of a task and its start.
    """

    task_no: TaskNo
    start_no: StartNo
    data: bytes


class TaskStopped(_Wire, frozen=True):
    """Nothing is left of a start that was stopped. For its log, never for the engine."""

    task_no: TaskNo
    start_no: StartNo


Ended: TypeAlias = (
    Succeeded | Failed | Skipped | SensorNotReady | Deferred | Awaiting | EventsHandled
)


# ── reports of trigger hosts ────────────────────────────────────────────────────────────


class TriggerFired(_Wire, frozen=True):
    """A hosted trigger yielded.

    Attributes:
        index: Counts the events of this hosting from 0.
        payload: msgpack.
        key: Same key, same event, also from another hosting.
        ends: ``success``, ``failed`` or ``skipped`` where the event ends the task without
            resuming it; ``payload`` is its result then, or the message.
        size: Of a result that is in a file, or ``width`` is given; see ``Succeeded``.
        is_last: Nothing is left of the hosting; no ``TriggerEnded`` follows but one that is asked
            for.
    """

    trigger_no: TriggerNo
    hosting: int
    index: int
    at: Timestamp
    payload: bytes
    key: str | None = None
    ends: str = ""
    size: int = 0
    width: int | None = None
    is_last: bool = False


class TriggerEnded(_Wire, frozen=True):
    """A hosted trigger is gone from its host: it returned, raised, or was told to end.

    Attributes:
        reason: What it was told to end for; empty if it ended by itself.
    """

    trigger_no: TriggerNo
    hosting: int
    at: Timestamp
    failure: Failure | None = None
    reason: str = ""


class NextFireTime(_Wire, frozen=True):
    """A hosted timetable waits for its next slot. For whoever is asked, never the engine.

    Attributes:
        slot: ``None`` for none any more.
    """

    trigger_no: TriggerNo
    hosting: int
    slot: Timestamp | None


class FireTimesPreviewed(_Wire, frozen=True):
    """The answer to a ``PreviewFireTimes``; never for the engine.

    Attributes:
        slots: In their order.
        failure: Why they cannot be said.
    """

    question: int
    slots: tuple[Timestamp, ...] = ()
    failure: Failure | None = None


class Query(_Wire, frozen=True):
    """A child asks the daemon.

    Attributes:
        question: Names the asker's wait; comes back in the answer.
        kind: ``results`` (a page of a parent's results), ``records`` (those of a task), ``runs``
            (how they end, or a task in each), ``events`` (those of a name) or ``values``.
        body: msgpack of the kind's own fields, see ``worker.queries``.
    """

    question: int
    run_no: RunNo
    kind: str
    body: bytes


class CancelQuery(_Wire, frozen=True):
    """A child wants no answer any more to what it asked.

    Attributes:
        question: -1 for all it has asked, which the daemon says of one that has died.
        numbers: Only these of a question about runs; none for all of it.
    """

    question: int
    numbers: tuple[int, ...] = ()


class Pong(_Wire, frozen=True):
    """The answer to a ``Ping``: the loop turns. For whoever watches the host, never the engine.

    Attributes:
        late_us: How long the ``Ping`` had waited for it.
        evicted: Parked coroutines the process has let go of for want of memory.
        watches: Class path of triggers, how many watches they have, the next look; of few classes.
        changed: Name of a package that is no longer as the process imported it; empty if none.
    """

    late_us: int = 0
    evicted: int = 0
    watches: tuple[tuple[str, int, Timestamp | None], ...] | None = None
    changed: str = ""


class Described(_Wire, frozen=True):
    """The answer to ``Describe``. For who asked, never for the engine.

    Attributes:
        triggers: For each trigger or sensor that is here its number, and what is known of it.
    """

    question: int
    triggers: tuple[tuple[TriggerNo, Watched], ...]


class CallbackReturned(_Wire, frozen=True):
    """The answer to a ``RunCallback`` or a ``Notify``; never for the engine.

    Attributes:
        may_pass: Whether it failed of something that may be over later.
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
_OfParsers: TypeAlias = Parsed | Named | ParserDied | Inspected

Report: TypeAlias = _OfTasks | _OfTriggers | _OfProcesses | _OfParsers
