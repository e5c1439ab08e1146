"""The triggers that start runs of DAGs, in memory: what is stored of them, and where they live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import NamedTuple

import msgspec

from aioflow.model.dag_triggers import (
    ASSETS,
    AssetCondition,
    DagEventRow,
    DagTriggerChanges,
    DagTriggerRow,
)
from aioflow.model.ids import TriggerNo
from aioflow.model.states import Failure
from aioflow.model.timestamps import Timestamp

__all__ = ("DagTrigger", "DagTriggerUpdates", "DagTriggers", "PendingAssetEvent")

_decode = msgspec.msgpack.Decoder(AssetCondition).decode


class PendingAssetEvent(NamedTuple):
    """An event of an asset that waits for others."""

    event_no: int
    sequence: int
    data: bytes


class DagTrigger:
    """The trigger of one DAG.

    Attributes:
        row: What is stored.
        hosting: The present one; 0 for none.
        role: Of its host.
        version: Whose code it is hosted as.
        made_of: Class and fields it is hosted with.
        leaving: Why it was told to end; empty if it was not.
        has_room: Its host has taken it.
        index: The event of this hosting that comes next.
        taken: Up to which the host was told that its events are stored.
        is_refusing: No run could be made of its last event, and people were told.
        failures: Hostings that ended by themselves since there was an event.
        failure: Why the last of them did; ``None`` where it had come to its end.
        retry_at: When it is hosted again; ``None`` if nothing has to pass before.
        looks_at: The instant that is armed to look after the event it holds, if it holds one.
        pending: Of one that is a condition over assets: what it holds, by asset.
    """

    __slots__ = (
        "failure",
        "failures",
        "has_room",
        "hosting",
        "index",
        "is_refusing",
        "leaving",
        "looks_at",
        "made_of",
        "pending",
        "retry_at",
        "role",
        "row",
        "taken",
        "version",
    )

    def __init__(self, row: DagTriggerRow) -> None:
        self.row = row
        self.hosting = 0
        self.role = ""
        self.version = ""
        self.made_of: tuple[str, bytes | None] = ("", None)
        self.leaving = ""
        self.has_room = True
        self.index = 0
        self.taken = 0
        self.failures = 0
        self.is_refusing = False
        self.failure: Failure | None = None
        self.retry_at: Timestamp | None = None
        self.looks_at: Timestamp | None = None
        self.pending: dict[str, tuple[PendingAssetEvent, ...]] = {}

    @property
    def condition(self) -> AssetCondition | None:
        """The condition over assets that it is, if it is one."""
        row = self.row
        return _decode(row.kwargs) if row.class_path == ASSETS and row.kwargs is not None else None

    def unhost(self) -> None:
        """No host has it."""
        self.hosting = 0
        self.leaving = ""
        self.has_room = True


class DagTriggers:
    """All of them, by number and by DAG."""

    def __init__(self) -> None:
        self._by_number: dict[TriggerNo, DagTrigger] = {}
        self._by_dag: dict[str, DagTrigger] = {}
        self._indexed: dict[TriggerNo, list[str]] = {}
        self._takers: dict[str, dict[TriggerNo, DagTrigger]] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[DagTrigger]:
        return iter(self._by_number.values())

    def __contains__(self, number: object) -> bool:
        return number in self._by_number

    def get(self, number: TriggerNo) -> DagTrigger | None:
        """Return the one of that number."""
        return self._by_number.get(number)

    def of(self, dag_id: str) -> DagTrigger | None:
        """Return that of a DAG."""
        return self._by_dag.get(dag_id)

    def takers(self, asset: str) -> list[DagTrigger]:
        """Return those that go by an asset."""
        return list(self._takers.get(asset, {}).values())

    def add(self, one: DagTrigger) -> None:
        """Know another one."""
        self._by_number[one.row.trigger_no] = self._by_dag[one.row.dag_id] = one
        self.index(one)

    def index(self, one: DagTrigger) -> None:
        """It goes by other assets than before, or by none."""
        number, condition = one.row.trigger_no, one.condition
        for known in self._indexed.pop(number, ()):
            del self._takers[known][number]
            if not self._takers[known]:
                del self._takers[known]
        if condition is not None:
            self._indexed[number] = condition.names()
            for asset in self._indexed[number]:
                self._takers.setdefault(asset, {})[number] = one

    def remove(self, one: DagTrigger) -> None:
        """Forget one."""
        one.row = msgspec.structs.replace(one.row, class_path="")
        self.index(one)
        del self._by_number[one.row.trigger_no]
        del self._by_dag[one.row.dag_id]

    def restore(self, rows: Iterable[DagTriggerRow], held: Iterable[DagEventRow] = ()) -> None:
        """Know those of these rows, and what they hold; no host has them."""
        for row in rows:
            self.add(DagTrigger(row))
        for event in held:
            one = self.get(event.trigger_no)
            if one is not None and event.asset is not None:
                pending = PendingAssetEvent(event.event_no, event.sequence, event.data or b"")
                before = one.pending.get(event.asset, ())
                one.pending[event.asset] = (*before, pending)


class DagTriggerUpdates:
    """What a turn changes of them."""

    def __init__(self, standing: DagTriggers) -> None:
        self._standing = standing
        self._before: dict[TriggerNo, DagTrigger | None] = {}
        self._whole: set[TriggerNo] = set()

    def add(self, one: DagTrigger) -> None:
        """One begins to exist."""
        self._standing.add(one)
        self._before[one.row.trigger_no] = None

    def note(self, one: DagTrigger) -> None:
        """It is about to change."""
        if one.row.trigger_no not in self._before:
            self._before[one.row.trigger_no] = copy(one)

    def write_anew(self, one: DagTrigger) -> None:
        """All of its row is to be written, whether it changes or not."""
        self.note(one)
        self._whole.add(one.row.trigger_no)

    def close(self, changes: DagTriggerChanges) -> None:
        """Say what of it is to be stored."""
        for number, before in self._before.items():
            one = self._standing.get(number)
            if one is None:
                continue
            is_other = before is None or _made_of(before.row) != _made_of(one.row)
            if is_other or number in self._whole:
                changes.triggers.append(one.row)
            elif before is not None and before.row != one.row:
                changes.moved.append(one.row)

    def put_back(self) -> None:
        """None of it ever was."""
        for number, before in self._before.items():
            one = self._standing.get(number)
            if one is not None and before is None:
                self._standing.remove(one)
            elif one is not None:
                for name in DagTrigger.__slots__:
                    setattr(one, name, getattr(before, name))
                self._standing.index(one)


def _made_of(row: DagTriggerRow) -> tuple[str, bytes | None, Timestamp]:
    return row.class_path, row.kwargs, row.since
