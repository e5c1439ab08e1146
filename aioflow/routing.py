"""Dispatch of the engine's effects to executors, hosts and followers of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aioflow.core.transaction import Transaction
from aioflow.executors.host_pool import HostPool
from aioflow.executors.slot import SlotExecutor
from aioflow.model.batch import Batch
from aioflow.model.dag import Body
from aioflow.model.ids import RunNo
from aioflow.model.rows import RunRow
from aioflow.notifications import OutboxWorker
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
from aioflow.queries import QueryHandler

__all__ = ("Follower", "Routes")


class Follower(Protocol):
    """Follows the committed state without reading the database, as ``api.Api`` does."""

    def committed(self, batch: Batch, tx: Transaction) -> None:
        """Process a durable batch."""


class Routes:
    """The receiver of one node's effects; see ``engine.dispatch.Dispatcher``.

    Args:
        hosts: Hosts of coroutines and triggers.
        on_commit: Called with each durable batch, after the followers inside the node.
        on_code_missing: Called when code must be restored to the disk.
        trace: Creates spans for each durable batch, if tracing is enabled.
    """

    def __init__(
        self,
        slot: SlotExecutor,
        hosts: HostPool,
        deliveries: OutboxWorker,
        answers: QueryHandler,
        api: Follower,
        *,
        on_commit: Callable[[Batch], None] = lambda _: None,
        on_code_missing: Callable[[RestoreCode], None] = lambda _: None,
        trace: Callable[[Batch, Transaction], None] | None = None,
    ) -> None:
        self._slot = slot
        self._hosts = hosts
        self._deliveries = deliveries
        self._answers = answers
        self._api = api
        self._on_commit = on_commit
        self._on_code_missing = on_code_missing
        self._trace = trace

    def start_try(self, effect: StartTry) -> None:
        """See ``Dispatcher``."""
        if effect.body is Body.FUNCTION:
            self._slot.start(effect)
        elif (executor := self._hosts.coroutines_of(effect.role)) is not None:
            executor.start(effect)

    def stop_try(self, effect: StopTry) -> None:
        """See ``Dispatcher``."""
        if effect.body is Body.FUNCTION:
            self._slot.stop(effect)
        elif (executor := self._hosts.coroutines_of(effect.role)) is not None:
            executor.stop(effect)

    def recall(self, effect: RecallTries) -> None:
        """See ``Dispatcher``."""
        self._slot.recall(effect)

    def confirm(self, effect: ConfirmCall) -> None:
        """See ``Dispatcher``."""
        executor = self._hosts.coroutines_of(effect.role)
        if executor is not None:
            executor.confirm(effect)

    def forget(self, run_no: RunNo) -> None:
        """See ``Dispatcher``."""
        self._slot.forget(run_no)
        self._hosts.forget(run_no)

    def start_host(self, effect: StartHost) -> None:
        """See ``Dispatcher``."""
        self._hosts.start(effect.role)

    def host(self, effect: AssignTrigger) -> None:
        """See ``Dispatcher``."""
        triggerer = self._hosts.triggerer_of(effect.role)
        if triggerer is not None:
            triggerer.host(effect)

    def end_hosting(self, effect: ReleaseTrigger) -> None:
        """See ``Dispatcher``."""
        triggerer = self._hosts.triggerer_of(effect.role)
        if triggerer is not None:
            triggerer.end(effect)

    def take_events(self, effect: ConfirmEvents) -> None:
        """See ``Dispatcher``."""
        for triggerer in self._hosts.triggerers.values():
            if triggerer.take_events(effect):
                return

    def restore_code(self, effect: RestoreCode) -> None:
        """See ``Dispatcher``."""
        self._on_code_missing(effect)

    def deliver(self, effect: DeliverOutbox) -> None:
        """See ``Dispatcher``."""
        self._deliveries.put(effect)

    def committed(self, batch: Batch, tx: Transaction) -> None:
        """See ``Dispatcher``."""

        def row(run_no: RunNo) -> RunRow | None:
            run = tx.runs.get(run_no)
            return None if run is None else run.row

        self._api.committed(batch, tx)
        self._answers.on_commit(batch, row)
        self._on_commit(batch)
        if self._trace is not None:
            self._trace(batch, tx)
