"""What reaches the engine besides reports, and what a turn asks to be done.

* **Requests** come from people, through the API; each is answered.
* **Inputs** are everything the inbox takes: requests, reports of children, parsed files,
  instants that have come, processes that came and went.
* **Effects** are what the engine does after a commit, in order.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from aioflow.messages import (
    Began,
    DagFailure,
    Deferred,
    End,
    Failed,
    Fired,
    ForgetRun,
    Host,
    NotReadyYet,
    Recalled,
    RunInfo,
    Skipped,
    Start,
    Succeeded,
    TriggerEnded,
)
from aioflow.model import Body, DagSpec, Failure, Instant, RunNo, StartNo, TaskNo

__all__ = (
    "Acknowledge",
    "Asked",
    "CancelRun",
    "Continue",
    "CreateRun",
    "Deliver",
    "Delivered",
    "Drain",
    "Due",
    "Effect",
    "EndHosting",
    "Explain",
    "FileBroken",
    "FileGone",
    "FileParsed",
    "HostLost",
    "HostTrigger",
    "HostUp",
    "Input",
    "RecallTries",
    "Request",
    "Restarted",
    "SetPaused",
    "SetPool",
    "ShowPools",
    "StartTry",
    "StopTry",
    "WakeAt",
)


# ── requests ────────────────────────────────────────────────────────────────────────────


class CreateRun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start a run. Answered with ``(run_id, created)``.

    Asking again with the same ``key`` (or ``run_id`` and conf) answers with the same run.
    """

    dag_id: str
    run_id: str | None = None
    conf: bytes | None = None
    logical_date: Instant | None = None
    key: str | None = None


class CancelRun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a run now. Answered with its state; cancelling an ended run changes nothing."""

    run_id: str


class SetPaused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Pause or resume a DAG: a paused one starts no scheduled run. Answered with the flag."""

    dag_id: str
    paused: bool


class Explain(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask what tasks of a live run wait for. Answered with ``{(position, index): Wait}``.

    Attributes:
        task_nos: Which ones; empty for the run itself, answered under ``(-1, -1)``.
    """

    run_id: str
    tasks: tuple[tuple[int, int], ...] = ()


class SetPool(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Limit a pool, or lift its limit. Answered with whether that changed anything.

    Attributes:
        slots: Weights that may run at once; ``None`` for no limit.
    """

    name: str
    slots: int | None


class ShowPools(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask for the limited pools. Answered with ``[(PoolRow, slots in use)]`` by name."""


Request: TypeAlias = CreateRun | CancelRun | SetPaused | SetPool | ShowPools | Explain


class Asked(msgspec.Struct, frozen=True):
    """A request in the inbox. ``ticket`` finds the one who waits for the answer."""

    ticket: int
    request: Request


# ── inputs ──────────────────────────────────────────────────────────────────────────────


class FileParsed(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG file has a good version (perhaps beside failures of single DAGs)."""

    file: str
    version: str
    dags: tuple[DagSpec, ...]
    sources: dict[str, bytes]
    failures: tuple[DagFailure, ...] = ()


class FileBroken(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG file gives nothing. Its last good version stays active."""

    file: str
    reason: str
    message: str


class FileGone(msgspec.Struct, frozen=True):
    """A DAG file was deleted. Its DAGs start no run any more; live runs go on."""

    file: str


class Due(msgspec.Struct, frozen=True):
    """An instant someone armed has come.

    Attributes:
        at: The instant as it was armed. Which of a task's instants it is - a retry, a
            sensor's next look or deadline, the deadline of a wait - it is by being equal
            to that one now; an instant that is none of them any more changes nothing.
        task_no: Whose; -1 for a DAG.
        dag_id: Whose next slot of the schedule.
    """

    at: Instant
    task_no: TaskNo = -1
    dag_id: str = ""


class Continue(msgspec.Struct, frozen=True):
    """Go on with what did not fit into the last batch of this run."""

    run_no: RunNo


class Restarted(msgspec.Struct, frozen=True):
    """Memory has just been restored: no process knows anything of it.

    Attributes:
        runs: Go on with these alone; with none, with what belongs to no run; ``None`` for all.
    """

    runs: tuple[RunNo, ...] | None = None


class Drain(msgspec.Struct, frozen=True):
    """Start nothing more.

    Attributes:
        is_over: The time of grace is over: cut short what still runs.
    """

    is_over: bool = False


class HostUp(msgspec.Struct, frozen=True):
    """A process of a role is ready for orders. ``role`` as in ``HostLost``."""

    role: str


class HostLost(msgspec.Struct, frozen=True, kw_only=True):
    """A shared host died; all it hosted is gone.

    Attributes:
        role: ``async`` or ``triggers``.
        culprit: The ``task_no`` or ``trigger_no`` whose code was running at that moment, as
            the host's black box says; -1 if none was.
        failure: What became of the process.
    """

    role: str
    culprit: int
    failure: Failure
    at: Instant


class Delivered(msgspec.Struct, frozen=True):
    """An owed effect was done."""

    outbox_no: int


Input: TypeAlias = (
    Asked
    | Began
    | Succeeded
    | Failed
    | Skipped
    | NotReadyYet
    | Deferred
    | Recalled
    | Fired
    | TriggerEnded
    | FileParsed
    | FileBroken
    | FileGone
    | Due
    | Continue
    | Restarted
    | Drain
    | HostUp
    | HostLost
    | Delivered
)


# ── effects ─────────────────────────────────────────────────────────────────────────────


class StartTry(msgspec.Struct, frozen=True):
    """Hand a try to an executor.

    Attributes:
        worker: Slot number for a ``def`` body, -1 for a coroutine.
        claimed: Behind another try in the same worker; it begins when that has ended.
        timeout_us: After this the executor ends the try with reason ``timeout``.
        expected_us: How long it is expected to take; 0 if unknown.
    """

    body: Body
    worker: int
    info: RunInfo
    start: Start
    claimed: bool = False
    timeout_us: int | None = None
    expected_us: int = 0


class StopTry(msgspec.Struct, frozen=True):
    """End a try that runs, or is claimed, in an executor. Nothing it reports will count."""

    body: Body
    worker: int
    task_no: TaskNo
    start_no: StartNo
    reason: str


class RecallTries(msgspec.Struct, frozen=True):
    """Ask a worker for claimed tries back."""

    worker: int
    tries: tuple[tuple[TaskNo, StartNo], ...]


class HostTrigger(msgspec.Struct, frozen=True):
    """Hand a trigger to the triggerer."""

    host: Host


class EndHosting(msgspec.Struct, frozen=True):
    """Tell the triggerer to let go of a trigger."""

    end: End


class WakeAt(msgspec.Struct, frozen=True):
    """Put this input into the inbox at its instant, or at once if that has passed."""

    due: Due


class Acknowledge(msgspec.Struct, frozen=True):
    """Answer a request. Exactly one of ``answer`` and ``error`` counts."""

    ticket: int
    answer: object = None
    error: Exception | None = None


class Deliver(msgspec.Struct, frozen=True):
    """Do an owed effect, then say ``Delivered``."""

    outbox_no: int
    kind: str
    body: bytes


Effect: TypeAlias = (
    StartTry
    | StopTry
    | RecallTries
    | HostTrigger
    | EndHosting
    | WakeAt
    | Acknowledge
    | Deliver
    | ForgetRun
    | Continue
)
