"""What crosses the link between daemon and children.

* **Reports** come from children. They cross the link as they are and enter the engine's
  inbox as they are. One that carries an old ``start_no`` or ``hosting`` is late and ignored.
* **Orders** go to children.

Structs are array-like: a frame holds values only, so both ends must be of one version of
aioflow, which they are, because the daemon starts its children from its own code.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from aioflow.model import DagSpec, Failure, Instant, RunNo, StartNo, TaskNo, TriggerNo

__all__ = (
    "Answer",
    "Ask",
    "Began",
    "DagFailure",
    "Deferred",
    "End",
    "Ended",
    "Failed",
    "Fired",
    "ForgetRun",
    "Host",
    "NotReadyYet",
    "Order",
    "Output",
    "Parse",
    "Parsed",
    "Ping",
    "Pong",
    "Recall",
    "Recalled",
    "Report",
    "RunInfo",
    "Skipped",
    "Start",
    "Stop",
    "Succeeded",
    "TriggerEnded",
    "Welcome",
)


class _Wire(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Crosses the link."""


# ── reports of task hosts ───────────────────────────────────────────────────────────────


class Began(_Wire, frozen=True):
    """User code of this start begins now."""

    task_no: TaskNo
    start_no: StartNo
    at: Instant


class Succeeded(_Wire, frozen=True):
    """The task returned.

    Attributes:
        body: msgpack of the result; ``None`` if it is ``None`` or in a file.
        size: Bytes of the result; 0 for ``None``. With ``body`` ``None`` and a size, the
            result is in the file of this start.
        width: Items, where it feeds an ``expand``.
    """

    task_no: TaskNo
    start_no: StartNo
    began_at: Instant
    at: Instant
    body: bytes | None = None
    size: int = 0
    width: int | None = None


class Failed(_Wire, frozen=True):
    """The try ended badly.

    Attributes:
        retryable: Whether another try may help, as far as the failure itself says.
        retry_after_us: The delay the task asked for, instead of its policy's.
        interrupted: Infrastructure's fault: costs an interruption, not a try.
    """

    task_no: TaskNo
    start_no: StartNo
    began_at: Instant | None
    at: Instant
    failure: Failure
    retryable: bool = True
    retry_after_us: int | None = None
    interrupted: bool = False


class Skipped(_Wire, frozen=True):
    """The task asked to be skipped."""

    task_no: TaskNo
    start_no: StartNo
    began_at: Instant
    at: Instant
    message: str = ""


class NotReadyYet(_Wire, frozen=True):
    """A sensor that looks from a slot found nothing yet.

    Attributes:
        recheck_in_us: When to look again, if it said so itself.
    """

    task_no: TaskNo
    start_no: StartNo
    began_at: Instant
    at: Instant
    recheck_in_us: int | None = None


class Deferred(_Wire, frozen=True):
    """The task waits for a trigger and gave its slot back.

    Attributes:
        kwargs: msgpack of the trigger's fields.
        next_kwargs: msgpack of what ``next_method`` is called with besides the event.
        timeout_us: How long it may wait.
    """

    task_no: TaskNo
    start_no: StartNo
    began_at: Instant
    at: Instant
    class_path: str
    kwargs: bytes
    next_method: str
    next_kwargs: bytes | None = None
    timeout_us: int | None = None


class Recalled(_Wire, frozen=True):
    """These claimed tries had not begun and will not begin in that process."""

    tries: tuple[tuple[TaskNo, StartNo], ...]


class Output(_Wire, frozen=True):
    """What a hosted coroutine printed. For the task log, never for the engine."""

    task_no: TaskNo
    start_no: StartNo
    data: bytes


Ended: TypeAlias = Succeeded | Failed | Skipped | NotReadyYet | Deferred


# ── reports of trigger hosts ────────────────────────────────────────────────────────────


class Fired(_Wire, frozen=True):
    """A hosted trigger yielded.

    Attributes:
        index: Counts the events of this hosting from 0.
        payload: msgpack.
        key: Same key, same event, also from another hosting.
    """

    trigger_no: TriggerNo
    hosting: int
    index: int
    at: Instant
    payload: bytes
    key: str | None = None


class TriggerEnded(_Wire, frozen=True):
    """A hosted trigger is gone from its host: it returned, raised, or was told to end."""

    trigger_no: TriggerNo
    hosting: int
    at: Instant
    failure: Failure | None = None


class Ask(_Wire, frozen=True):
    """A child asks the daemon.

    Attributes:
        question: Names the asker's wait; comes back in the answer.
        kind: ``results`` (a page of a parent's results) or ``run`` (a run or task ending).
        body: msgpack of the kind's own fields, see ``host.questions``.
    """

    question: int
    run_no: RunNo
    kind: str
    body: bytes


class Pong(_Wire, frozen=True):
    """The answer to a ``Ping``: the loop turns. For whoever watches the host, never the engine."""


# ── reports of parsers ──────────────────────────────────────────────────────────────────


class DagFailure(_Wire, frozen=True):
    """Why a file could not be parsed, or one of its DAGs is wrong."""

    reason: str
    message: str
    line: int = 0


class Parsed(_Wire, frozen=True):
    """What a parser found in a file.

    Attributes:
        dags: The valid ones.
        failures: What is wrong; with a syntax error there are no DAGs at all.
        modules: Local files it imported, relative to the DAG folder, its own file included.
    """

    dags: tuple[DagSpec, ...]
    failures: tuple[DagFailure, ...]
    modules: tuple[str, ...]


Report: TypeAlias = (
    Began
    | Succeeded
    | Failed
    | Skipped
    | NotReadyYet
    | Deferred
    | Recalled
    | Output
    | Fired
    | TriggerEnded
    | Ask
    | Pong
    | Parsed
)


# ── orders ──────────────────────────────────────────────────────────────────────────────


class Welcome(_Wire, frozen=True):
    """The first order of every child.

    Attributes:
        code: Folder of the version snapshots; ``<code>/<version>/`` is one.
        results: Folder of large results.
    """

    role: str
    code: str
    results: str


class Parse(_Wire, frozen=True):
    """Import one file and describe its DAGs."""

    folder: str
    file: str


class RunInfo(_Wire, frozen=True):
    """What all tasks of a run share. Sent to a process before the first of them."""

    run_no: RunNo
    run_id: str
    dag_id: str
    version: str
    file: str
    logical_date: Instant | None
    created_at: Instant
    conf: bytes | None
    first_task_no: TaskNo
    cause: str = "manual"


class Start(_Wire, frozen=True):
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
        widths: Of all sources of the expansion, literals too, in order.
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


class Recall(_Wire, frozen=True):
    """Give back these claimed tries, if they have not begun. Answered by ``Recalled``."""

    tries: tuple[tuple[TaskNo, StartNo], ...]


class Stop(_Wire, frozen=True):
    """Cancel one hosted coroutine. It reports nothing that the engine would still heed."""

    task_no: TaskNo
    start_no: StartNo
    reason: str


class ForgetRun(_Wire, frozen=True):
    """This run has ended: drop its ``RunInfo``."""

    run_no: RunNo


class Host(_Wire, frozen=True):
    """Host a trigger.

    Attributes:
        version: Whose code to load it from.
        kwargs: msgpack of its fields.
    """

    trigger_no: TriggerNo
    hosting: int
    run_no: RunNo
    task_no: TaskNo
    version: str
    class_path: str
    kwargs: bytes
    since: Instant
    logical_date: Instant | None


class End(_Wire, frozen=True):
    """Stop hosting a trigger and confirm with ``TriggerEnded``.

    Attributes:
        reason: ``finished``, ``cancelled``, ``timeout``, ``reassigned`` or ``shutdown``.
    """

    trigger_no: TriggerNo
    hosting: int
    reason: str


class Answer(_Wire, frozen=True):
    """The daemon's answer to an ``Ask``. ``error`` tells why there is none."""

    question: int
    body: bytes
    error: str = ""


class Ping(_Wire, frozen=True):
    """Say ``Pong`` as soon as the loop comes round. Shared hosts only."""


Order: TypeAlias = (
    Welcome | Parse | RunInfo | Start | Recall | Stop | ForgetRun | Host | End | Answer | Ping
)
