"""Effects of a turn, executed once its batch is durable, or returned to the engine as inputs."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from aioflow.model.dag import Body
from aioflow.model.ids import StartNo, TaskNo, TriggerNo
from aioflow.model.timestamps import Timestamp
from aioflow.model.workers import WorkerDemand, WorkerNo
from aioflow.protocol.commands import (
    CallRecorded,
    EventsStored,
    ForgetRun,
    ItemsStored,
    ResumeCoroutine,
    RunInfo,
    StartTask,
    StartTrigger,
    StopTrigger,
)
from aioflow.protocol.inputs import (
    AssignTriggers,
    ContinueBackfill,
    ContinueRun,
    CreateMissingRuns,
    IsolateTriggerClass,
    MigrateTriggers,
    OutboxLoaded,
    PauseTriggers,
    PreviousRunLoaded,
    RequestReceived,
    TimerFired,
)

__all__ = (
    "Acknowledge",
    "Again",
    "AssignTrigger",
    "ConfirmCall",
    "ConfirmEvents",
    "DeliverOutbox",
    "Effect",
    "RecallTries",
    "ReleaseTrigger",
    "RestoreCode",
    "RetireWorker",
    "SetWorkerDemand",
    "StartHost",
    "StartTry",
    "StopTry",
    "WakeAt",
    "Warn",
)


class StartTry(msgspec.Struct, frozen=True):
    """Start a try in an executor.

    Attributes:
        worker: Number of the worker for a ``def`` body; -1 for a coroutine.
        claimed: Whether the try is prefetched: it starts when the other try in the same worker has
            ended.
        timeout_us: Time after which the executor stops the try with the reason ``timeout``.
        limit_us: The timeout that the author set. ``timeout_us`` is what remains of it.
        expected_us: How long it is expected to take; 0 if unknown.
        resume: The command to resume a coroutine that is suspended in its host. If the host no
            longer has the coroutine, ``start`` is used instead.
        role: For a coroutine: the role of its host.
        process_no: For a coroutine: number of the process for which the start was decided. Another
            process of the role does not start it.
    """

    body: Body
    worker: int
    info: RunInfo
    start: StartTask
    claimed: bool = False
    timeout_us: int | None = None
    expected_us: int = 0
    resume: ResumeCoroutine | None = None
    role: str = "async"
    limit_us: int | None = None
    process_no: int = 0


class StopTry(msgspec.Struct, frozen=True):
    """Stop a try that is running or claimed in an executor. Its later reports are ignored.

    Attributes:
        role: As in ``StartTry``.
    """

    body: Body
    worker: int
    task_no: TaskNo
    start_no: StartNo
    reason: str
    role: str = "async"


class RecallTries(msgspec.Struct, frozen=True):
    """Recall claimed tries from a worker."""

    worker: int
    tries: tuple[tuple[TaskNo, StartNo], ...]


class AssignTrigger(msgspec.Struct, frozen=True):
    """Assign a trigger to the triggerer.

    Attributes:
        info: The data of its run, if the trigger is created from it.
        role: The role of the host.
        process_no: Number of the process for which the assignment was decided; 0 if none was known.
            Another process of the role does not start it.
    """

    host: StartTrigger
    info: RunInfo | None = None
    role: str = "triggers"
    process_no: int = 0


class ReleaseTrigger(msgspec.Struct, frozen=True):
    """Command the host of a role to release a trigger."""

    end: StopTrigger
    role: str = "triggers"


class ConfirmCall(msgspec.Struct, frozen=True):
    """Confirm to a coroutine that the answer of a durable call, or an item it yielded, is stored.

    Attributes:
        role: As in ``StartTry``.
    """

    recorded: CallRecorded | ItemsStored
    role: str = "async"


class ConfirmEvents(msgspec.Struct, frozen=True):
    """Confirm to a trigger that its events are stored, so that it continues."""

    confirmed: EventsStored


class StartHost(msgspec.Struct, frozen=True):
    """Start the on-demand host with this role, unless it is already running."""

    role: str


class SetWorkerDemand(msgspec.Struct, frozen=True):
    """Report to each executor how many workers of each spec have work. Replaces the last demand."""

    demands: tuple[WorkerDemand, ...]


class RetireWorker(msgspec.Struct, frozen=True):
    """End a remote worker that has no tries and will get none."""

    worker: WorkerNo


class WakeAt(msgspec.Struct, frozen=True):
    """Put ``due`` into the inbox at its due time, or immediately if that has passed.

    Attributes:
        at: The due time, if it differs from the timestamp in ``due``.
    """

    due: TimerFired
    at: Timestamp | None = None


class Acknowledge(msgspec.Struct, frozen=True):
    """Respond to a request. If ``error`` is set, ``answer`` is ignored."""

    ticket: int
    answer: object = None
    error: Exception | None = None


class Warn(msgspec.Struct, frozen=True):
    """Log a warning."""

    message: str
    facts: dict[str, str | int]


class RestoreCode(msgspec.Struct, frozen=True):
    """Restore on disk the code of versions whose folders a child process did not find.

    Attributes:
        trigger_no: The trigger to assign again afterwards, reported by ``CodeRestored``; -1 for
            none.
    """

    versions: tuple[str, ...]
    trigger_no: TriggerNo = -1


class DeliverOutbox(msgspec.Struct, frozen=True):
    """Deliver an outbox row, then report ``OutboxDelivered``."""

    outbox_no: int
    kind: str
    body: bytes


Again: TypeAlias = (
    RequestReceived
    | ContinueRun
    | ContinueBackfill
    | AssignTriggers
    | PreviousRunLoaded
    | CreateMissingRuns
    | IsolateTriggerClass
    | OutboxLoaded
    | MigrateTriggers
    | PauseTriggers
)
"""Effects that the engine processes as inputs of a later turn."""

Effect: TypeAlias = (
    Again
    | StartTry
    | StopTry
    | RecallTries
    | AssignTrigger
    | ReleaseTrigger
    | ConfirmCall
    | ConfirmEvents
    | WakeAt
    | Acknowledge
    | DeliverOutbox
    | ForgetRun
    | RestoreCode
    | StartHost
    | SetWorkerDemand
    | RetireWorker
    | Warn
)
