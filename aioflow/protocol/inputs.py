"""Inputs of the engine: the unfinished work that a restart reads, and all messages of its inbox.

The inbox receives reports, requests, parsed files, timers, started and ended processes, and
messages that the engine sends to itself to continue in a later turn. All unfinished work is read
from a single snapshot.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

import msgspec

from aioflow.model.access import AccountRow, Actor, AuditHead, SessionRow, TokenRow
from aioflow.model.dag import BackfillRow, DagSpec
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.rows import (
    DagFileRow,
    DagRow,
    Damage,
    EventRow,
    ExpansionRow,
    OutboxRow,
    PoolRow,
    RunRow,
    TaskRow,
    TriggerRow,
    VersionRow,
)
from aioflow.model.states import Failure
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import DagEventRow, DagTriggerRow
from aioflow.model.workers import WorkerLocation, WorkerNo, WorkerSpec
from aioflow.protocol.reports import (
    Awaiting,
    CallAnswered,
    DagFailure,
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
    "BodyReturned",
    "ClockStepped",
    "CodeRestored",
    "ContinueBackfill",
    "ContinueRun",
    "CoroutineProgress",
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
    "LiveRun",
    "LoopBlocked",
    "MigrateTriggers",
    "OutboxDelivered",
    "OutboxLoaded",
    "PauseTriggers",
    "PreviousRunLoaded",
    "RecoverySnapshot",
    "RequestReceived",
    "Restarted",
    "TimerFired",
    "TriggerCapacityChanged",
    "UnfinishedWork",
    "WorkerGone",
    "WorkerIdle",
    "WorkerUnresponsive",
    "WorkerUp",
)


class RequestReceived(msgspec.Struct, frozen=True):
    """A request in the inbox. ``ticket`` identifies the caller who waits for the response.

    Attributes:
        by: The author of the request, for the audit log; ``None`` for the daemon itself.
    """

    ticket: int
    request: Request
    by: Actor | None = None


# ── inputs ──────────────────────────────────────────────────────────────────────────────


class FileParsed(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG file was parsed and has a good version, although some of its DAGs may have failed.

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
    """A DAG file is broken. Its last good version stays active."""

    file: str
    reason: str
    message: str


class FileDeleted(msgspec.Struct, frozen=True):
    """A DAG file was deleted. Its DAGs start no more runs; live runs continue."""

    file: str


class TimerFired(msgspec.Struct, frozen=True):
    """A timer is due.

    Attributes:
        at: The due time for which the timer was set. It identifies what is due for the task: a
            retry, a sensor's next poke or deadline, or the deadline of a wait. If none of these
            has this due time any more, the timer changes nothing.
        task_no: The task; -1 for a DAG, a run, or the trigger of a DAG.
        dag_id: The DAG whose schedule has reached its next fire time.
        run_no: The run whose deadline or timeout is due.
        trigger_no: The trigger of a DAG that must be assigned again, or that has been quiet for
            long enough.
    """

    at: Timestamp
    task_no: TaskNo = -1
    dag_id: str = ""
    run_no: RunNo = -1
    trigger_no: TriggerNo = -1


class ContinueRun(msgspec.Struct, frozen=True):
    """Continue the work of this run that did not fit into the last batch.

    Also sent after a run was quarantined, because other runs may start instead.
    """

    run_no: RunNo


class TriggerCapacityChanged(msgspec.Struct, frozen=True):
    """A trigger waits for capacity in a host, or has been granted it."""

    trigger_no: TriggerNo
    assignment_id: int
    has_capacity: bool


class MigrateTriggers(msgspec.Struct, frozen=True):
    """Continue moving the triggers of a file to its newest version.

    Attributes:
        version: The version to which they move. If it is no longer the newest, nothing changes.
        after: The last trigger that was handled.
    """

    file: str
    version: str
    after: TriggerNo = -1


class AssignTriggers(msgspec.Struct, frozen=True):
    """Continue assigning triggers to a host that has started.

    Attributes:
        assignment_id: The last assignment number when the host started. Triggers with a higher
            number have been assigned since.
        numbers: The triggers, in order.
        at: The index at which to continue.
    """

    role: str
    assignment_id: int
    numbers: array[int]
    at: int = 0


class IsolateTriggerClass(msgspec.Struct, frozen=True):
    """Move the triggers of a class into quarantine, or back.

    Attributes:
        after: The last trigger that was handled; -1 at the start. If the opposite move has been
            started since, a continuation is ignored.
    """

    class_path: str
    is_quarantined: bool
    after: TriggerNo = -1


class PauseTriggers(msgspec.Struct, frozen=True):
    """Release the triggers of a paused DAG, or assign them again.

    Attributes:
        after: As in ``IsolateTriggerClass``.
    """

    dag_id: str
    is_stopped: bool
    after: TriggerNo = -1


class Restarted(msgspec.Struct, frozen=True):
    """The memory has just been restored, and no process has received any of the restored work yet.

    Attributes:
        runs: The runs to continue. If empty, only work that belongs to no run continues; ``None``
            for everything.
        has_crashed: Whether the previous daemon ended without a clean shutdown.
    """

    runs: tuple[RunNo, ...] | None = None
    has_crashed: bool = False


class PreviousRunLoaded(msgspec.Struct, frozen=True):
    """The previous run of a run is not in memory, but a task waits for it.

    The previous run is loaded before the turn that processes this input.
    """

    run_no: RunNo


class ContinueBackfill(msgspec.Struct, frozen=True):
    """Continue creating the runs of a backfill."""

    backfill_no: int


class CreateMissingRuns(msgspec.Struct, frozen=True):
    """Create the missing runs for due fire times of a schedule that had run ahead of the clock.

    Attributes:
        cursor: The cursor of the schedule when the fire times were due.
        fire_times: The due fire times, oldest first.
        following: The next cursor, after these fire times.
    """

    dag_id: str
    cursor: Timestamp
    fire_times: tuple[Timestamp, ...]
    following: Timestamp | None


class ClockStepped(msgspec.Struct, frozen=True):
    """The wall clock was stepped. This input only causes a turn, which checks the clock."""


class Drain(msgspec.Struct, frozen=True):
    """Start no more work.

    Attributes:
        is_over: Whether the grace period is over. Tasks that still run are then interrupted.
    """

    is_over: bool = False


class HostUp(msgspec.Struct, frozen=True):
    """The process of a role is ready for commands. For ``role``, see ``HostLost``.

    Attributes:
        process_no: Number of the process, unique in its daemon. It receives only commands that were
            decided for this process.
    """

    role: str
    process_no: int = 0


class HostLost(msgspec.Struct, frozen=True, kw_only=True):
    """A shared host died, together with everything it hosted.

    Attributes:
        role: ``async``, ``triggers`` or ``quarantine``. For a host that serves a single DAG, a
            colon and the DAG id follow.
        culprit: The ``task_no`` or ``trigger_no`` whose code was running at that moment, according
            to the host's crash recorder; -1 if none was.
        failure: How the process ended.
        class_path: The class of the trigger in ``culprit``. If the trigger was being stopped, only
            the host may still have known it.
        was_dismissed: Whether the daemon ended the host on purpose while no task ran in it: because
            installed packages changed, or because it was idle. An idle host is not replaced.
    """

    role: str
    culprit: int
    failure: Failure
    at: Timestamp
    class_path: str = ""
    was_dismissed: bool = False


class LoopBlocked(msgspec.Struct, frozen=True, kw_only=True):
    """A step of user code is blocking the event loop of a host, or has blocked it until now.

    Attributes:
        role: As in ``HostLost``.
        culprit: As in ``HostLost``.
        incident: Identifies the block. There are several reports about one block.
        milliseconds: How long the block has lasted so far, or in total if it is over.
        source_location: File, line and function.
        is_loading: Whether the step imports code.
        is_over: Whether the event loop runs again.
        class_path: As in ``HostLost``.
    """

    role: str
    culprit: int
    incident: str
    milliseconds: int
    source_location: str
    is_loading: bool = False
    is_over: bool = False
    class_path: str = ""


class WorkerUnresponsive(msgspec.Struct, frozen=True):
    """A worker neither responds nor uses CPU, or it responds again.

    Attributes:
        worker: The number of the worker.
        since: Since when it has not responded; ``None`` once it responds again.
        until: When it will be killed.
        why: The reason reported by the executor; empty for a local worker.
    """

    worker: WorkerNo
    since: Timestamp | None = None
    until: Timestamp | None = None
    why: str = ""


class WorkerUp(msgspec.Struct, frozen=True):
    """A worker of a remote executor is ready for tries. Its number is new."""

    worker: WorkerNo
    spec: WorkerSpec
    location: WorkerLocation = WorkerLocation()


class WorkerGone(msgspec.Struct, frozen=True):
    """The process of a remote worker has ended. The outcome of its tries is reported separately."""

    worker: WorkerNo


class WorkerIdle(msgspec.Struct, frozen=True):
    """A remote worker has been idle for as long as its executor retains idle workers."""

    worker: WorkerNo


class ExecutorUnavailable(msgspec.Struct, frozen=True):
    """An executor cannot provide workers of a spec now, or can do so again.

    Attributes:
        why: One sentence; empty if it can provide them again.
    """

    spec: WorkerSpec
    why: str


class BodyReturned(msgspec.Struct, frozen=True):
    """The body of a try has returned, and its result is being stored outside the home.

    The report of the try follows once the result has been stored or storing it has failed.

    Attributes:
        is_backlogged: Whether too many results wait to be stored. If so, no task starts until this
            result is stored.
    """

    task_no: TaskNo
    start_no: StartNo
    began_at: Timestamp
    is_backlogged: bool = False


class OutboxDelivered(msgspec.Struct, frozen=True):
    """An outbox row was delivered, or its delivery was given up."""

    outbox_no: int
    is_failed: bool = False


class CodeRestored(msgspec.Struct, frozen=True):
    """The code of a trigger was restored if possible, so its host may try again."""

    trigger_no: TriggerNo


class AlertRaised(msgspec.Struct, frozen=True, kw_only=True):
    """The operators must be alerted about a problem of the whole node."""

    reason: str
    message: str


class OutboxLoaded(msgspec.Struct, frozen=True):
    """More outbox rows of a kind were loaded for this turn, and may be handed out."""

    kind: str


class DamageFound(msgspec.Struct, frozen=True):
    """A read has found a damaged row."""

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
"""Inputs that are not reported by child processes: requests, timers, and the daemon's messages."""


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
    | BodyReturned
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
    | WorkerUp
    | WorkerGone
    | WorkerIdle
    | ExecutorUnavailable
    | OutboxDelivered
    | OutboxLoaded
    | CodeRestored
    | DamageFound
    | AlertRaised
)


class CoroutineProgress(msgspec.Struct, frozen=True, array_like=True):
    """The progress of one task's coroutine, according to its records.

    Attributes:
        count: The number of its records.
        first_failed: The ordinal of the first call that failed; -1 if none did.
        open_kind: The kind of the last record if that is still open, else empty.
        open_name: The name of that record.
    """

    task_no: TaskNo
    count: int
    first_failed: int = -1
    open_kind: str = ""
    open_name: str = ""


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """All data needed to continue one run.

    Attributes:
        tasks: All its task rows, including ended tasks, by ``task_no``.
        widths: ``(task_no, width)`` of the results that other tasks expand over.
        triggers: All its trigger rows.
        progress: The progress of tasks that have records.
        events: Events of the streams among its triggers, in order of trigger and sequence.
        items: ``(task_no, count)`` of the items that its tasks have yielded.
        is_whole: Whether this is the whole run or its last part. Otherwise more tasks and triggers
            follow, with all tasks before the first trigger.
        damage: The first damaged row among all of these, if any.
    """

    run: RunRow
    tasks: list[TaskRow]
    expansions: list[ExpansionRow]
    widths: list[tuple[TaskNo, int]]
    triggers: list[TriggerRow]
    progress: list[CoroutineProgress] = []
    events: list[EventRow] = []
    items: list[tuple[TaskNo, int]] = []
    is_whole: bool = True
    damage: Damage | None = None


class RecoverySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All unfinished work, read at the start.

    Attributes:
        versions: The newest version of each DAG and the versions of live runs, without sources.
        runs: Runs that have not ended, including cancelled runs with tasks that have not ended.
        outbox: Rows that the engine processes itself.
        outbox_totals: For each other kind of outbox rows: their count and their lowest number.
        stray_triggers: Trigger rows of runs that ended before the host had released the trigger.
        backfills: Running backfills.
        audit_head: The end of the audit log.
        drained: Drained nodes.
    """

    dags: list[DagRow]
    dag_files: list[DagFileRow]
    versions: list[VersionRow]
    runs: list[LiveRun]
    pools: list[PoolRow]
    outbox: list[OutboxRow]
    outbox_totals: dict[str, tuple[int, int]] = {}
    stray_triggers: list[TriggerRow] = []
    dag_triggers: list[DagTriggerRow] = []
    held_events: list[DagEventRow] = []
    backfills: list[BackfillRow] = []
    accounts: list[AccountRow] = []
    tokens: list[TokenRow] = []
    sessions: list[SessionRow] = []
    audit_head: AuditHead = AuditHead()
    drained: list[int] = []


UnfinishedWork: TypeAlias = RecoverySnapshot | LiveRun | TriggerRow
"""The parts that ``Store.unfinished`` yields."""
