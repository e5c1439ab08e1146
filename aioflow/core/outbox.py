"""Outbox changes of a turn: rows that it adds, hands out for delivery, and deletes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from aioflow.core.state.memory import Memory
from aioflow.core.state.outbox_quota import EMPTY, OutboxQuota
from aioflow.model.rows import OutboxRow, RunRow
from aioflow.protocol.effects import DeliverOutbox, Effect
from aioflow.protocol.inputs import OutboxLoaded
from aioflow.protocol.outbox import ALERT, ENGINE_KINDS, Alert, Callback, callback_kind

__all__ = (
    "OutboxUpdates",
    "begin",
)


class OutboxUpdates:
    """The outbox changes of one turn.

    Args:
        take_number: Returns the number of a new row.
        effects: The effects of the turn. Deliveries are added to them.
    """

    def __init__(
        self, memory: Memory, take_number: Callable[[], int], effects: list[Effect]
    ) -> None:
        self._memory = memory
        self._take_number = take_number
        self._effects = effects
        self._new: dict[int, OutboxRow] = {}
        self._delivered: list[int] = []
        self._done: dict[int, tuple[str, bytes]] = {}
        self._before: dict[str, OutboxQuota] = {}

    @property
    def new(self) -> Iterable[OutboxRow]:
        """Rows that the turn adds, except rows that it has deleted again."""
        return self._new.values()

    @property
    def done(self) -> Iterable[int]:
        """Numbers of stored rows that the turn deletes."""
        return self._done

    def alert(
        self, reason: str, message: str, *, run_id: str, dag_id: str = "", task_id: str = ""
    ) -> None:
        """Queue an alert for the operators."""
        alert = Alert(reason=reason, dag_id=dag_id, run_id=run_id, task_id=task_id, message=message)
        self.add(ALERT, msgspec.msgpack.encode(alert))

    def alert_of(self, run: RunRow, reason: str, message: str, task_id: str = "") -> None:
        """Queue an alert about a run, or about one of its tasks."""
        self.alert(reason, message, run_id=run.run_id, dag_id=run.dag_id, task_id=task_id)

    def call_back(self, dag_id: str, entry: Callback | None) -> None:
        """Queue a callback of a DAG. Do nothing if there is no callback."""
        if entry is not None:
            self.add(callback_kind(dag_id), msgspec.msgpack.encode(entry))

    def add(self, kind: str, body: bytes) -> int:
        """Add a row to the outbox in this turn's batch. Return its number.

        The row is handed out for delivery right after the commit, unless the quota of its kind is
        exhausted.
        """
        number = self._take_number()
        self._new[number] = OutboxRow(outbox_no=number, kind=kind, body=body)
        if kind in ENGINE_KINDS:
            self._memory.outbox[number] = (kind, body)
            return number
        quota = self._memory.outbox_quotas.get(kind, EMPTY)
        if quota.has_capacity:
            self._deliver(number, kind, body)
        else:
            self._set(kind, replace(quota, waiting=quota.waiting + 1))
        return number

    def delete(self, number: int) -> None:
        """Delete the row of a delivered effect. A repeated report changes nothing."""
        entry = self._memory.outbox.pop(number, None)
        if entry is None:
            return
        if self._new.pop(number, None) is None:
            self._done[number] = entry
        kind = entry[0]
        if kind not in ENGINE_KINDS:
            quota = self._memory.outbox_quotas[kind]
            self._set(kind, replace(quota, in_flight=quota.in_flight - 1))
            self.read_more(kind)

    def read_more(self, kind: str) -> None:
        """Request more rows of a kind, if more are stored and its quota has capacity."""
        quota = self._memory.outbox_quotas.get(kind, EMPTY)
        if quota.wants_more:
            self._set(kind, replace(quota, is_reading=True))
            self._effects.append(OutboxLoaded(kind))

    def add_loaded(self, entry: OutboxLoaded) -> None:
        """Hand out for delivery the rows that were loaded for this turn."""
        kind = entry.kind
        rows, quota = (
            self._memory.loaded_outbox.pop(kind, None),
            self._memory.outbox_quotas.get(kind),
        )
        if rows is None or quota is None:
            return  # a repeated input
        waiting = quota.waiting - len(rows)
        if not rows:  # all of them were added in this turn and are not stored yet
            waiting = sum(row.kind == kind for row in self._new.values())
        self._set(kind, replace(quota, waiting=waiting, is_reading=False))
        for row in rows:
            self._deliver(row.outbox_no, kind, row.body)
        self.read_more(kind)

    def roll_back(self) -> None:
        """Restore the outbox in memory as it was before the turn."""
        memory = self._memory
        for number in (*self._new, *self._delivered):
            memory.outbox.pop(number, None)
        memory.outbox.update(self._done)
        for kind, quota in self._before.items():
            self._put_quota(kind, quota)

    def _deliver(self, number: int, kind: str, body: bytes) -> None:
        quota = self._memory.outbox_quotas.get(kind, EMPTY)
        self._set(kind, replace(quota, in_flight=quota.in_flight + 1, after=number))
        self._delivered.append(number)
        self._memory.outbox[number] = (kind, body)
        self._effects.append(DeliverOutbox(number, kind, body))

    def _set(self, kind: str, quota: OutboxQuota) -> None:
        self._before.setdefault(kind, self._memory.outbox_quotas.get(kind, EMPTY))
        self._put_quota(kind, quota)

    def _put_quota(self, kind: str, quota: OutboxQuota) -> None:
        if quota.is_over:
            self._memory.outbox_quotas.pop(kind, None)
        else:
            self._memory.outbox_quotas[kind] = quota


def begin(memory: Memory, rows: Iterable[OutboxRow], others: Mapping[str, tuple[int, int]]) -> None:
    """Load the outbox into memory after a restart.

    Args:
        rows: Rows that the engine processes itself.
        others: The row count and the lowest row number of each other kind. Their rows are read
            after the turn of the restart.
    """
    memory.outbox = {row.outbox_no: (row.kind, row.body) for row in rows}
    memory.index_outbox()
    memory.outbox_quotas = {
        kind: OutboxQuota(waiting=count, after=first - 1) for kind, (count, first) in others.items()
    }
