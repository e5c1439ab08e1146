"""What a turn orders: done once its batch is durable, or given back to the engine."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from aioflow.model.dag import Body
from aioflow.model.ids import StartNo, TaskNo, TriggerNo
from aioflow.model.timestamps import Timestamp
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
    "StartHost",
    "StartTry",
    "StopTry",
    "WakeAt",
    "Warn",
)


class StartTry(msgspec.Struct, frozen=True):
    """Hand a try to an executor.

    Attributes:
        worker: Slot number for a ``def`` body, -1 for a coroutine.
        claimed: Behind another try in the same worker; it begins when that has ended.
        timeout_us: After this the executor ends the try with reason ``timeout``.
        limit_us: What its author allows it, of which that is what is left.
        expected_us: How long it is expected to take; 0 if unknown.
        resume: How a coroutine goes on that is parked in its host; ``start`` says what to do if
            it no longer is.
        role: Of the host that a coroutine runs in.
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


class StopTry(msgspec.Struct, frozen=True):
    """End a try that runs, or is claimed, in an executor. Nothing it reports will count.

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
    """Ask a worker for claimed tries back."""

    worker: int
    tries: tuple[tuple[TaskNo, StartNo], ...]


class AssignTrigger(msgspec.Struct, frozen=True):
    """Hand a trigger to the triggerer.

    Attributes:
        info: Of its run, where the trigger is made of what the run knows.
        role: Of the host that is meant.
    """

    host: StartTrigger
    info: RunInfo | None = None
    role: str = "triggers"


class ReleaseTrigger(msgspec.Struct, frozen=True):
    """Tell the triggerer of a role to let go of a trigger."""

    end: StopTrigger
    role: str = "triggers"


class ConfirmCall(msgspec.Struct, frozen=True):
    """Tell a coroutine that the answer of its durable call is stored, or what it yielded.

    Attributes:
        role: As in ``StartTry``.
    """

    recorded: CallRecorded | ItemsStored
    role: str = "async"


class ConfirmEvents(msgspec.Struct, frozen=True):
    """Tell a trigger that its events are stored, so that it may go on."""

    taken: EventsStored


class StartHost(msgspec.Struct, frozen=True):
    """Start the host of this role, a DAG's own, unless it is there already."""

    role: str


class WakeAt(msgspec.Struct, frozen=True):
    """Put this input into the inbox at its instant, or at once if that has passed.

    Attributes:
        at: Instead of the instant it names.
    """

    due: TimerFired
    at: Timestamp | None = None


class Acknowledge(msgspec.Struct, frozen=True):
    """Answer a request. Exactly one of ``answer`` and ``error`` counts."""

    ticket: int
    answer: object = None
    error: Exception | None = None


class Warn(msgspec.Struct, frozen=True):
    """Tell whoever reads the log."""

    message: str
    facts: dict[str, str | int]


class RestoreCode(msgspec.Struct, frozen=True):
    """Have the code of versions on the disk again, whose folders a child has not found.

    Attributes:
        trigger_no: Which trigger is to be hosted again after that, said by ``CodeRestored``; -1
            for none.
    """

    versions: tuple[str, ...]
    trigger_no: TriggerNo = -1


class DeliverOutbox(msgspec.Struct, frozen=True):
    """Do an owed effect, then say ``OutboxDelivered``."""

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
"""What the engine takes again, as an input of a later turn."""

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
    | Warn
)
