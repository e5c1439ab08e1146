"""Where the effects of a turn go once it is durable, and which of them goes where."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from aioflow.core.transaction import Transaction
from aioflow.model.batch import Batch
from aioflow.model.ids import RunNo
from aioflow.protocol.commands import ForgetRun
from aioflow.protocol.effects import (
    AssignTrigger,
    ConfirmCall,
    ConfirmEvents,
    DeliverOutbox,
    RecallTries,
    ReleaseTrigger,
    RestoreCode,
    StartHost,
    StartTry,
    StopTry,
)

__all__ = ("Outlets", "send")


class Outlets(Protocol):
    """Where effects go. Each call returns at once; what comes of it comes back as an input."""

    def start_try(self, effect: StartTry) -> None:
        """Hand a try to the executor of its body."""

    def stop_try(self, effect: StopTry) -> None:
        """End a try."""

    def recall(self, effect: RecallTries) -> None:
        """Ask for claimed tries back."""

    def confirm(self, effect: ConfirmCall) -> None:
        """Tell a coroutine that its durable call is recorded."""

    def forget(self, run_no: RunNo) -> None:
        """A run has ended."""

    def start_host(self, effect: StartHost) -> None:
        """Start the own host of a DAG."""

    def host(self, effect: AssignTrigger) -> None:
        """Hand a trigger to the triggerer."""

    def end_hosting(self, effect: ReleaseTrigger) -> None:
        """Let go of a trigger."""

    def take_events(self, effect: ConfirmEvents) -> None:
        """Let a trigger go on: its events are stored."""

    def restore_code(self, effect: RestoreCode) -> None:
        """Have code on the disk again; then report ``CodeRestored`` where that is asked for."""

    def deliver(self, effect: DeliverOutbox) -> None:
        """Do an owed effect, then report ``OutboxDelivered``."""

    def committed(self, batch: Batch, tx: Transaction) -> None:
        """A batch is durable: tell those who follow."""


Sent: TypeAlias = (
    AssignTrigger
    | ReleaseTrigger
    | ConfirmEvents
    | DeliverOutbox
    | StartTry
    | StopTry
    | RecallTries
    | ConfirmCall
    | ForgetRun
    | RestoreCode
    | StartHost
)


def send(effect: Sent, outlets: Outlets) -> None:
    """Hand an effect to the outlet it is for."""
    match effect:
        case AssignTrigger():  # there may be most of these
            outlets.host(effect)
        case StartTry():
            outlets.start_try(effect)
        case StopTry():
            outlets.stop_try(effect)
        case RecallTries():
            outlets.recall(effect)
        case ConfirmCall():
            outlets.confirm(effect)
        case ForgetRun():
            outlets.forget(effect.run_no)
        case StartHost():
            outlets.start_host(effect)
        case ReleaseTrigger():
            outlets.end_hosting(effect)
        case ConfirmEvents():
            outlets.take_events(effect)
        case RestoreCode():
            outlets.restore_code(effect)
        case DeliverOutbox():
            outlets.deliver(effect)
