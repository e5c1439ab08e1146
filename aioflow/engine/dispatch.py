"""Dispatch of the effects of a turn, once it is durable, to their receivers."""

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

__all__ = ("Dispatcher", "send")


class Dispatcher(Protocol):
    """The receivers of effects. Each call returns at once; its outcome arrives as an input."""

    def start_try(self, effect: StartTry) -> None:
        """Pass a try to the executor of its body."""

    def stop_try(self, effect: StopTry) -> None:
        """Stop a try."""

    def recall(self, effect: RecallTries) -> None:
        """Recall claimed tries."""

    def confirm(self, effect: ConfirmCall) -> None:
        """Confirm to a coroutine that its durable call is recorded."""

    def forget(self, run_no: RunNo) -> None:
        """Drop the data of a run that has ended."""

    def start_host(self, effect: StartHost) -> None:
        """Start the own host of a DAG."""

    def host(self, effect: AssignTrigger) -> None:
        """Assign a trigger to the triggerer."""

    def end_hosting(self, effect: ReleaseTrigger) -> None:
        """Release a trigger."""

    def take_events(self, effect: ConfirmEvents) -> None:
        """Confirm the events of a trigger, so that it continues."""

    def restore_code(self, effect: RestoreCode) -> None:
        """Restore code on disk, then report ``CodeRestored`` if requested."""

    def deliver(self, effect: DeliverOutbox) -> None:
        """Deliver an outbox row, then report ``OutboxDelivered``."""

    def committed(self, batch: Batch, tx: Transaction) -> None:
        """Notify the subscribers of a batch that is durable."""


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


def send(effect: Sent, outlets: Dispatcher) -> None:
    """Dispatch an effect to its receiver."""
    match effect:
        case AssignTrigger():  # usually the most frequent effects
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
