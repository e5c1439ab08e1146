"""Rows and queries of DAG triggers and their events."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Select, Text, and_, column, literal_column, select
from sqlalchemy import values as listed

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.dag_triggers import DagEventRow, DagTriggerRow, EventOutcome, Held
from aioflow.model.ids import TriggerNo
from aioflow.store import tables
from aioflow.store.packing import encode, last_of_each
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.rows import Values
from aioflow.store.selects import number, text, whole

__all__ = (
    "ALL_DAG_TRIGGERS",
    "HELD_EVENTS",
    "DagTriggerReader",
    "dag_event_row",
    "dag_trigger_row",
    "dag_triggers",
    "moved_dag_triggers",
    "new_dag_events",
    "outcomes",
)

_TABLE = "dag_trigger"
"""Context of encrypted fields, together with the number of their row."""

_event = tables.dag_event

ALL_DAG_TRIGGERS = whole(tables.dag_trigger)
_TRIGGERS_BETWEEN = (
    select(tables.dag_trigger)
    .where(
        tables.dag_trigger.c.trigger_no > number("after"),
        tables.dag_trigger.c.trigger_no <= number("upto"),
    )
    .order_by(tables.dag_trigger.c.trigger_no)
    .limit(number("limit"))
)
HELD_EVENTS = (
    select(_event).where(_event.c.outcome == literal_column("1")).order_by(_event.c.event_no)
)

_held = msgspec.msgpack.Decoder(Held)


@cache
def _triggers_of(width: int) -> Select[Any]:
    """Return the statement for the triggers of that many DAGs.

    Its parameters are ``dag_0``, ``dag_1`` and so on.
    """
    dags = [text(f"dag_{n}") for n in range(width)]
    return select(tables.dag_trigger).where(tables.dag_trigger.c.dag_id.in_(dags))


@cache
def _keys(width: int) -> Select[Any]:
    """Return the statement that finds which of that many event keys their triggers have used.

    Its parameters are ``trigger_0``, ``key_0`` and so on. A key that is given twice may be returned
    twice: a piece may repeat its last key.
    """
    pairs = [(number(f"trigger_{n}"), text(f"key_{n}")) for n in range(width)]
    columns = (column("trigger_no", BigInteger), column("key", Text))
    asked = listed(*columns, name="asked").data(pairs).cte("asked")
    is_asked = and_(_event.c.trigger_no == asked.c.trigger_no, _event.c.key == asked.c.key)
    return select(_event.c.trigger_no, _event.c.key).join(asked, is_asked)


def dag_triggers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the triggers that are new or have other fields, encrypted."""

    def values(row: DagTriggerRow) -> tuple[Any, ...]:
        if row.kwargs is None:
            raise ValueError(f"the trigger of {row.dag_id!r} has no fields")
        encrypted = vault.encrypt(_TABLE, row.trigger_no, row.kwargs)
        return (
            row.trigger_no,
            row.dag_id,
            row.class_path,
            encrypted,
            row.since,
            *_cursor_columns(row),
        )

    return [values(row) for row in last_of_each(batch.of_dags.triggers, lambda row: row.trigger_no)]


def moved_dag_triggers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the triggers whose position has advanced."""
    return [(*_cursor_columns(row), row.trigger_no) for row in batch.of_dags.moved]


def _cursor_columns(row: DagTriggerRow) -> tuple[Any, ...]:
    held = None if row.held is None else encode(row.held)
    return (row.sequence, row.event, row.event_key, held, row.run_no)


def new_dag_events(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new events."""

    def values(row: DagEventRow) -> tuple[Any, ...]:
        place = (row.event_no, row.trigger_no, row.sequence)
        outcome = (int(row.outcome), row.run_no, row.reason)
        return (*place, row.key, row.at, *outcome, row.asset, row.data)

    return [values(row) for row in batch.of_dags.events]


def outcomes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the outcomes of events that were held back."""
    return [
        (int(change.outcome), change.run_no, change.reason, change.event_no, int(EventOutcome.HELD))
        for change in batch.of_dags.outcomes
    ]


def dag_trigger_row(values: Sequence[Any], vault: Vault) -> DagTriggerRow:
    """Return a row of ``dag_trigger``, without its fields if no available key decrypts them."""
    return DagTriggerRow(
        trigger_no=values[0],
        dag_id=values[1],
        class_path=values[2],
        kwargs=vault.decrypt(_TABLE, values[0], values[3]),
        since=values[4],
        sequence=values[5],
        event=values[6],
        event_key=values[7],
        held=None if values[8] is None else _held.decode(values[8]),
        run_no=values[9],
    )


def dag_event_row(values: Sequence[Any]) -> DagEventRow:
    """Return a row of ``dag_event``."""
    event_no, trigger_no, sequence, key, at, outcome, run_no, reason, asset, data = values
    return DagEventRow(
        event_no=event_no,
        trigger_no=trigger_no,
        sequence=sequence,
        key=key,
        at=at,
        outcome=EventOutcome(outcome),
        run_no=run_no,
        reason=reason,
        asset=asset,
        data=data,
    )


def _numbered_key(values: Values) -> tuple[TriggerNo, str]:
    return int(values[0]), str(values[1])


class DagTriggerReader(QueryInterface):
    """The part of a store that reads DAG triggers."""

    _vault: Vault

    async def list_dag_triggers(
        self, *, after: int = -1, upto: int = sys.maxsize, limit: int = 1000
    ) -> list[DagTriggerRow]:
        """See ``Store``."""
        return await self._all(
            self._decrypted, _TRIGGERS_BETWEEN, after=after, upto=upto, limit=limit
        )

    async def find_dag_triggers(self, dag_ids: Collection[str]) -> dict[str, DagTriggerRow]:
        """See ``Store``."""
        found = await self._each(self._decrypted, _triggers_of, "dag", dag_ids)
        return {row.dag_id: row for row in found}

    def _decrypted(self, values: Values) -> DagTriggerRow:
        return dag_trigger_row(values, self._vault)

    async def find_event_keys(
        self, wanted: Mapping[TriggerNo, Collection[str]]
    ) -> set[tuple[TriggerNo, str]]:
        """See ``Store``."""
        asked = ((number, key) for number, keys in wanted.items() for key in keys)
        found = await self._each_of(_numbered_key, _keys, ("trigger", "key"), asked)
        return set(found)
