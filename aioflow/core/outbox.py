"""What a turn begins to owe, hands out and writes off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from aioflow.core.state.memory import Memory
from aioflow.core.state.outbox_quota import EMPTY, OutboxQuota
from aioflow.model.rows import OutboxRow, RunRow
from aioflow.protocol.effects import DeliverOutbox, Effect
from aioflow.protocol.inputs import OutboxLoaded
from aioflow.protocol.outbox import ALERT, KEPT, Alert, Callback, callback_kind

__all__ = ("Owing", "begin")


class Owing:
    """What one turn does to what is owed.

    Args:
        take_number: Returns the number of a new row.
        effects: Of the turn; what is handed out is added to them.
    """

    def __init__(
        self, memory: Memory, take_number: Callable[[], int], effects: list[Effect]
    ) -> None:
        self._memory = memory
        self._take_number = take_number
        self._effects = effects
        self._new: dict[int, OutboxRow] = {}
        self._handed: list[int] = []
        self._done: dict[int, tuple[str, bytes]] = {}
        self._before: dict[str, OutboxQuota] = {}

    @property
    def new(self) -> Iterable[OutboxRow]:
        """What began to be owed, and still is."""
        return self._new.values()

    @property
    def done(self) -> Iterable[int]:
        """What no longer is."""
        return self._done

    def alert(
        self, reason: str, message: str, *, run_id: str, dag_id: str = "", task_id: str = ""
    ) -> None:
        """Owe the people on call a word."""
        alert = Alert(reason=reason, dag_id=dag_id, run_id=run_id, task_id=task_id, message=message)
        self.owe(ALERT, msgspec.msgpack.encode(alert))

    def alert_of(self, run: RunRow, reason: str, message: str, task_id: str = "") -> None:
        """Owe the people on call a word about a run, or a task of it."""
        self.alert(reason, message, run_id=run.run_id, dag_id=run.dag_id, task_id=task_id)

    def call_back(self, dag_id: str, owed: Callback | None) -> None:
        """Owe the author of a DAG a call; nothing, if there is none to make."""
        if owed is not None:
            self.owe(callback_kind(dag_id), msgspec.msgpack.encode(owed))

    def owe(self, kind: str, body: bytes) -> int:
        """Owe an effect from this batch on; return its number.

        It is handed out with it, unless enough of its kind is.
        """
        number = self._take_number()
        self._new[number] = OutboxRow(outbox_no=number, kind=kind, body=body)
        if kind in KEPT:
            self._memory.outbox[number] = (kind, body)
            return number
        lane = self._memory.outbox_quotas.get(kind, EMPTY)
        if lane.has_room:
            self._hand_out(number, kind, body)
        else:
            self._set(kind, replace(lane, waiting=lane.waiting + 1))
        return number

    def write_off(self, number: int) -> None:
        """An owed effect was done. A second word of it changes nothing."""
        owed = self._memory.outbox.pop(number, None)
        if owed is None:
            return
        if self._new.pop(number, None) is None:
            self._done[number] = owed
        kind = owed[0]
        if kind not in KEPT:
            lane = self._memory.outbox_quotas[kind]
            self._set(kind, replace(lane, handed=lane.handed - 1))
            self.read_on(kind)

    def read_on(self, kind: str) -> None:
        """Have more of a kind be read, if there is more and room for it."""
        lane = self._memory.outbox_quotas.get(kind, EMPTY)
        if lane.wants_more:
            self._set(kind, replace(lane, is_reading=True))
            self._effects.append(OutboxLoaded(kind))

    def take_read(self, entry: OutboxLoaded) -> None:
        """Hand out the rows that were read for this turn."""
        kind = entry.kind
        rows, lane = (
            self._memory.loaded_outbox.pop(kind, None),
            self._memory.outbox_quotas.get(kind),
        )
        if rows is None or lane is None:
            return  # it is a repetition
        waiting = lane.waiting - len(rows)
        if not rows:  # all there are were written by this turn, which is not stored yet
            waiting = sum(row.kind == kind for row in self._new.values())
        self._set(kind, replace(lane, waiting=waiting, is_reading=False))
        for row in rows:
            self._hand_out(row.outbox_no, kind, row.body)
        self.read_on(kind)

    def put_back(self) -> None:
        """The turn never was: what is owed is what was before."""
        memory = self._memory
        for number in (*self._new, *self._handed):
            memory.outbox.pop(number, None)
        memory.outbox.update(self._done)
        for kind, lane in self._before.items():
            self._keep(kind, lane)

    def _hand_out(self, number: int, kind: str, body: bytes) -> None:
        lane = self._memory.outbox_quotas.get(kind, EMPTY)
        self._set(kind, replace(lane, handed=lane.handed + 1, after=number))
        self._handed.append(number)
        self._memory.outbox[number] = (kind, body)
        self._effects.append(DeliverOutbox(number, kind, body))

    def _set(self, kind: str, lane: OutboxQuota) -> None:
        self._before.setdefault(kind, self._memory.outbox_quotas.get(kind, EMPTY))
        self._keep(kind, lane)

    def _keep(self, kind: str, lane: OutboxQuota) -> None:
        if lane.is_over:
            self._memory.outbox_quotas.pop(kind, None)
        else:
            self._memory.outbox_quotas[kind] = lane


def begin(memory: Memory, rows: Iterable[OutboxRow], others: Mapping[str, tuple[int, int]]) -> None:
    """After a restart: know what is owed.

    Args:
        rows: Those that the engine works off itself.
        others: How many there are of each other kind, and the lowest number of these. They are
            read when the turn of the restart is over, see ``Owing.read_on``.
    """
    memory.outbox = {row.outbox_no: (row.kind, row.body) for row in rows}
    memory.index_outbox()
    memory.outbox_quotas = {
        kind: OutboxQuota(waiting=count, after=first - 1) for kind, (count, first) in others.items()
    }
