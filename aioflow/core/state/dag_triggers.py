"""Triggers that start runs of DAGs: their rows and the state of their hosts, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import NamedTuple

import msgspec

from aioflow.model.ids import TriggerNo
from aioflow.model.states import Failure
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import (
    ASSETS,
    AssetCondition,
    DagEventRow,
    DagTriggerChanges,
    DagTriggerRow,
)

__all__ = ("DagTrigger", "DagTriggerUpdates", "DagTriggers", "PendingAssetEvent")

_decode = msgspec.msgpack.Decoder(AssetCondition).decode


class PendingAssetEvent(NamedTuple):
    """An asset event that waits until the trigger's condition on all its assets is met."""

    event_no: int
    sequence: int
    data: bytes


class DagTrigger:
    """The trigger of one DAG.

    Attributes:
        row: Stored row.
        assignment_id: Number of the current assignment to a host; 0 for none.
        role: Role of its host.
        version: DAG version whose code its host runs.
        made_of: Class and fields that were sent to its host.
        leaving: Reason given to its host with the request to stop it; empty without a request.
        has_capacity: Whether its host has capacity for it, as last reported.
        index: Index of the next event of this assignment.
        confirmed: Events below this index were confirmed to the host as stored.
        is_refusing: Whether no run could be created for its last event and this was reported.
        failures: How many assignments have ended without a request to stop since the last event.
        failure: Failure of the latest of these assignments; ``None`` if the trigger returned.
        retry_at: When it is assigned again; ``None`` if no delay is needed.
        check_at: Time of the timer that re-checks the event that this trigger holds, if any.
        pending: Events that wait for the condition on assets, by asset.
    """

    __slots__ = (
        "assignment_id",
        "check_at",
        "confirmed",
        "failure",
        "failures",
        "has_capacity",
        "index",
        "is_refusing",
        "leaving",
        "made_of",
        "pending",
        "retry_at",
        "role",
        "row",
        "version",
    )

    def __init__(self, row: DagTriggerRow) -> None:
        self.row = row
        self.assignment_id = 0
        self.role = ""
        self.version = ""
        self.made_of: tuple[str, bytes | None] = ("", None)
        self.leaving = ""
        self.has_capacity = True
        self.index = 0
        self.confirmed = 0
        self.failures = 0
        self.is_refusing = False
        self.failure: Failure | None = None
        self.retry_at: Timestamp | None = None
        self.check_at: Timestamp | None = None
        self.pending: dict[str, tuple[PendingAssetEvent, ...]] = {}

    @property
    def condition(self) -> AssetCondition | None:
        """The condition on assets; ``None`` if this is another kind of trigger."""
        row = self.row
        return _decode(row.kwargs) if row.class_path == ASSETS and row.kwargs is not None else None

    def unhost(self) -> None:
        """Record that no host runs this trigger."""
        self.assignment_id = 0
        self.leaving = ""
        self.has_capacity = True


class DagTriggers:
    """The triggers of all DAGs, by number, by DAG and by asset."""

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
        """Return the trigger with this number; ``None`` if there is none."""
        return self._by_number.get(number)

    def of(self, dag_id: str) -> DagTrigger | None:
        """Return the trigger of a DAG; ``None`` if it has none."""
        return self._by_dag.get(dag_id)

    def assets(self) -> list[str]:
        """Return the assets that conditions name, in arbitrary order."""
        return list(self._takers)

    def consumers(self, asset: str) -> list[DagTrigger]:
        """Return the triggers whose condition names the asset."""
        return list(self._takers.get(asset, {}).values())

    def add(self, one: DagTrigger) -> None:
        """Add a trigger."""
        self._by_number[one.row.trigger_no] = self._by_dag[one.row.dag_id] = one
        self.index(one)

    def index(self, one: DagTrigger) -> None:
        """Update the asset index after the condition of a trigger may have changed."""
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
        """Remove a trigger."""
        one.row = msgspec.structs.replace(one.row, class_path="")
        self.index(one)
        del self._by_number[one.row.trigger_no]
        del self._by_dag[one.row.dag_id]

    def restore(self, rows: Iterable[DagTriggerRow], held: Iterable[DagEventRow] = ()) -> None:
        """Load triggers and their pending asset events from rows. None of them has a host."""
        for row in rows:
            self.add(DagTrigger(row))
        for event in held:
            one = self.get(event.trigger_no)
            if one is not None and event.asset is not None:
                pending = PendingAssetEvent(event.event_no, event.sequence, event.data or b"")
                before = one.pending.get(event.asset, ())
                one.pending[event.asset] = (*before, pending)


class DagTriggerUpdates:
    """Changes that one transaction makes to the triggers of DAGs."""

    def __init__(self, dag_triggers: DagTriggers) -> None:
        self._dag_triggers = dag_triggers
        self._before: dict[TriggerNo, DagTrigger | None] = {}
        self._whole: set[TriggerNo] = set()

    def add(self, one: DagTrigger) -> None:
        """Add a trigger."""
        self._dag_triggers.add(one)
        self._before[one.row.trigger_no] = None

    def note(self, one: DagTrigger) -> None:
        """Save a copy of a trigger before its first change, for the batch and for a rollback."""
        if one.row.trigger_no not in self._before:
            self._before[one.row.trigger_no] = copy(one)

    def rewrite(self, one: DagTrigger) -> None:
        """Request that the whole row be written, even if it is unchanged."""
        self.note(one)
        self._whole.add(one.row.trigger_no)

    def close(self, changes: DagTriggerChanges) -> None:
        """Add the changed rows to the batch."""
        for number, before in self._before.items():
            one = self._dag_triggers.get(number)
            if one is None:
                continue
            is_other = before is None or _made_of(before.row) != _made_of(one.row)
            if is_other or number in self._whole:
                changes.triggers.append(one.row)
            elif before is not None and before.row != one.row:
                changes.moved.append(one.row)

    def roll_back(self) -> None:
        """Roll back all changes in memory."""
        for number, before in self._before.items():
            one = self._dag_triggers.get(number)
            if one is not None and before is None:
                self._dag_triggers.remove(one)
            elif one is not None:
                for name in DagTrigger.__slots__:
                    setattr(one, name, getattr(before, name))
                self._dag_triggers.index(one)


def _made_of(row: DagTriggerRow) -> tuple[str, bytes | None, Timestamp]:
    return row.class_path, row.kwargs, row.since
