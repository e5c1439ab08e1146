"""What reaches the engine besides reports: everything its inbox takes.

Requests of people, parsed files, instants that have come, processes that came and went; and what
it gives itself again, to go on in a later turn.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

import msgspec

from aioflow.model.access import Actor
from aioflow.model.dag import DagSpec
from aioflow.model.damage import Damage
from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.states import Failure
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.parse_results import DagFailure
from aioflow.protocol.reports import (
    Awaiting,
    CallAnswered,
    Deferred,
    EventEmitted,
    EventsHandled,
    Failed,
    ItemYielded,
    Labelled,
    NextEventRequested,
    NotSuspended,
    Recalled,
    RecordDropped,
    ResultWriteFailed,
    RunCalled,
    SensorNotReady,
    Skipped,
    StreamOpened,
    Succeeded,
    TaskStarted,
    TriggerEnded,
    TriggerFired,
)
from aioflow.protocol.requests import Request

__all__ = (
    "AlertRaised",
    "AssignTriggers",
    "ClockStepped",
    "CodeRestored",
    "ContinueBackfill",
    "ContinueRun",
    "CreateMissingRuns",
    "DamageFound",
    "Drain",
    "FileBroken",
    "FileDeleted",
    "FileParsed",
    "HostLost",
    "HostUp",
    "Input",
    "Internal",
    "IsolateTriggerClass",
    "LoopBlocked",
    "MigrateTriggers",
    "OutboxDelivered",
    "OutboxLoaded",
    "PauseTriggers",
    "PreviousRunLoaded",
    "RequestReceived",
    "Restarted",
    "TimerFired",
    "TriggerCapacityChanged",
    "WorkerUnresponsive",
)


class RequestReceived(msgspec.Struct, frozen=True):
    """A request in the inbox. ``ticket`` finds the one who waits for the answer.

    Attributes:
        by: Who asks, for the audit; ``None`` for the daemon itself.
    """

    ticket: int
    request: Request
    by: Actor | None = None


# ── inputs ──────────────────────────────────────────────────────────────────────────────


class FileParsed(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG file has a good version (perhaps beside failures of single DAGs).

    Attributes:
        triggers: See ``protocol.reports.Parsed``.
    """

    file: str
    version: str
    dags: tuple[DagSpec, ...]
    sources: dict[str, bytes]
    failures: tuple[DagFailure, ...] = ()
    triggers: dict[str, str] = {}


class FileBroken(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG file gives nothing. Its last good version stays active."""

    file: str
    reason: str
    message: str


class FileDeleted(msgspec.Struct, frozen=True):
    """A DAG file was deleted. Its DAGs start no run any more; live runs go on."""

    file: str


class TimerFired(msgspec.Struct, frozen=True):
    """An instant someone armed has come.

    Attributes:
        at: The instant as it was armed. Which of a task's instants it is - a retry, a
            sensor's next look or deadline, the deadline of a wait - it is by being equal
            to that one now; an instant that is none of them any more changes nothing.
        task_no: Whose; -1 for a DAG, a run, or the trigger of a DAG.
        dag_id: Whose next slot of the schedule.
        run_no: Which run's deadline, or the end of the time it may take.
        trigger_no: Which trigger of a DAG is hosted again, or has been quiet for long enough.
    """

    at: Timestamp
    task_no: TaskNo = -1
    dag_id: str = ""
    run_no: RunNo = -1
    trigger_no: TriggerNo = -1


class ContinueRun(msgspec.Struct, frozen=True):
    """Go on with what did not fit into the last batch of this run."""

    run_no: RunNo


class TriggerCapacityChanged(msgspec.Struct, frozen=True):
    """A trigger waits for room in a host, or has found it."""

    trigger_no: TriggerNo
    hosting: int
    has_room: bool


class MigrateTriggers(msgspec.Struct, frozen=True):
    """Go on moving the triggers of a file to its newest version.

    Attributes:
        version: The one they move to; superseded by a newer one it changes nothing.
        after: The last trigger that was looked at.
    """

    file: str
    version: str
    after: TriggerNo = -1


class AssignTriggers(msgspec.Struct, frozen=True):
    """Go on handing triggers to a host that came up.

    Attributes:
        hosting: The last hosting there was when it came up; what is in a later one is handed over.
        numbers: The triggers, in order.
        at: Where to go on among them.
    """

    role: str
    hosting: int
    numbers: array[int]
    at: int = 0


class IsolateTriggerClass(msgspec.Struct, frozen=True):
    """Have the triggers of a class live in quarantine, or with the others.

    Attributes:
        after: The last trigger that was looked at; -1 to begin. What was begun goes on unless
            the opposite has been begun since.
    """

    class_path: str
    is_quarantined: bool
    after: TriggerNo = -1


class PauseTriggers(msgspec.Struct, frozen=True):
    """Have the triggers of a DAG leave their hosts, since it is paused; or be hosted again.

    Attributes:
        after: As of ``IsolateTriggerClass``.
    """

    dag_id: str
    is_stopped: bool
    after: TriggerNo = -1


class Restarted(msgspec.Struct, frozen=True):
    """Memory has just been restored: no process knows anything of it.

    Attributes:
        runs: Go on with these alone; with none, with what belongs to no run; ``None`` for all.
        has_crashed: The last daemon did not end by itself.
    """

    runs: tuple[RunNo, ...] | None = None
    has_crashed: bool = False


class PreviousRunLoaded(msgspec.Struct, frozen=True):
    """A task waits for the run before its own, and nobody knows which that is: ask the database."""

    run_no: RunNo


class ContinueBackfill(msgspec.Struct, frozen=True):
    """Go on making the runs of a backfill."""

    backfill_no: int


class CreateMissingRuns(msgspec.Struct, frozen=True):
    """Make the runs of slots of a schedule that had none yet; it had run ahead of the clock.

    Attributes:
        cursor: Where the schedule stood when they were due.
        slots: Those that are due, oldest first.
        following: Where it stands after them.
    """

    dag_id: str
    cursor: Timestamp
    slots: tuple[Timestamp, ...]
    following: Timestamp | None


class ClockStepped(msgspec.Struct, frozen=True):
    """The wall clock has stepped: a turn is needed, which looks at it."""


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
        role: ``async``, ``triggers`` or ``quarantine``; with the id of a DAG behind a colon, of
            one that only this DAG has.
        culprit: The ``task_no`` or ``trigger_no`` whose code was running at that moment, as
            the host's black box says; -1 if none was.
        failure: What became of the process.
        class_path: Of that trigger, which may be letting go, and known to the host alone.
        was_dismissed: It was ended on purpose, while no task ran in it: because it had nothing to
            do, and then it is not replaced, or because installed packages changed.
    """

    role: str
    culprit: int
    failure: Failure
    at: Timestamp
    class_path: str = ""
    was_dismissed: bool = False


class LoopBlocked(msgspec.Struct, frozen=True, kw_only=True):
    """A step of user code holds up the loop of a host, or has done so.

    Attributes:
        role: As in ``HostLost``.
        culprit: As there.
        incident: Names one stall, of which there are several reports.
        milliseconds: How long it has lasted, or did in all.
        place: File, line and function.
        is_loading: It imports code.
        is_over: The loop turns again.
        class_path: As in ``HostLost``.
    """

    role: str
    culprit: int
    incident: str
    milliseconds: int
    place: str
    is_loading: bool = False
    is_over: bool = False
    class_path: str = ""


class WorkerUnresponsive(msgspec.Struct, frozen=True):
    """A slot worker neither answers nor computes, or does so again.

    Attributes:
        worker: Its slot.
        since: ``None`` once it does.
        until: When it will be killed.
    """

    worker: int
    since: Timestamp | None = None
    until: Timestamp | None = None


class OutboxDelivered(msgspec.Struct, frozen=True):
    """An owed effect was done, or nothing will come of it any more."""

    outbox_no: int
    is_failed: bool = False


class CodeRestored(msgspec.Struct, frozen=True):
    """The code of a trigger is back, as far as it can be: its host may look again."""

    trigger_no: TriggerNo


class AlertRaised(msgspec.Struct, frozen=True, kw_only=True):
    """The people on call must hear of something that concerns the whole node: an alert."""

    reason: str
    message: str


class OutboxLoaded(msgspec.Struct, frozen=True):
    """More of what is owed of a kind may be handed out: its rows have been read."""

    kind: str


class DamageFound(msgspec.Struct, frozen=True):
    """Reading has met a damaged row."""

    damage: Damage


Internal: TypeAlias = (
    RequestReceived
    | TimerFired
    | OutboxDelivered
    | OutboxLoaded
    | ContinueRun
    | PreviousRunLoaded
    | ContinueBackfill
    | CreateMissingRuns
    | ClockStepped
    | WorkerUnresponsive
    | DamageFound
)
"""Inputs that no child process reports: requests, timers, and what the daemon itself notes."""


Input: TypeAlias = (
    RequestReceived
    | TaskStarted
    | Succeeded
    | Failed
    | Skipped
    | SensorNotReady
    | Deferred
    | Awaiting
    | EventsHandled
    | ItemYielded
    | CallAnswered
    | NextEventRequested
    | EventEmitted
    | RunCalled
    | NotSuspended
    | RecordDropped
    | Labelled
    | ResultWriteFailed
    | StreamOpened
    | Recalled
    | TriggerFired
    | TriggerEnded
    | FileParsed
    | FileBroken
    | FileDeleted
    | TimerFired
    | ContinueRun
    | ContinueBackfill
    | PreviousRunLoaded
    | CreateMissingRuns
    | ClockStepped
    | MigrateTriggers
    | TriggerCapacityChanged
    | Restarted
    | Drain
    | HostUp
    | HostLost
    | AssignTriggers
    | IsolateTriggerClass
    | PauseTriggers
    | LoopBlocked
    | WorkerUnresponsive
    | OutboxDelivered
    | OutboxLoaded
    | CodeRestored
    | DamageFound
    | AlertRaised
)
