"""Rows and queries of DAG triggers, their events, and backfills: the causes of runs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    BindParameter,
    Select,
    Text,
    and_,
    column,
    func,
    literal_column,
    select,
)
from sqlalchemy import values as listed

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.dag import BackfillRow
from aioflow.model.ids import TriggerNo
from aioflow.model.states import RunState
from aioflow.model.triggers import DagEventRow, DagTriggerRow, EventOutcome, HeldEvent
from aioflow.store import rows, tables
from aioflow.store.query_protocol import QueryInterface, pieces
from aioflow.store.rows import Values, last_of_each, pack
from aioflow.store.selects import number, text, whole

__all__ = (
    "ALL_DAG_TRIGGERS",
    "HELD_EVENTS",
    "RUNNING_BACKFILLS",
    "BackfillReader",
    "DagTriggerReader",
    "backfills",
    "dag_event_outcomes",
    "dag_event_row",
    "dag_trigger_row",
    "dag_triggers",
    "moved_dag_triggers",
    "new_dag_events",
)

_DAG_TRIGGER_TABLE = "dag_trigger"
"""Context to which encrypted fields are bound, together with the number of their row."""

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

_held_decoder = msgspec.msgpack.Decoder(HeldEvent)


@cache
def _triggers_of(width: int) -> Select[Any]:
    """Return the statement for the triggers of ``width`` DAGs.

    Its parameters are ``dag_0``, ``dag_1`` and so on.
    """
    dags = [text(f"dag_{n}") for n in range(width)]
    return select(tables.dag_trigger).where(tables.dag_trigger.c.dag_id.in_(dags))


@cache
def _used_keys(width: int) -> Select[Any]:
    """Return the statement that finds which of ``width`` event keys their DAG triggers have used.

    Its parameters are ``trigger_0``, ``key_0`` and so on. If a key is passed twice, it may be
    returned twice, see ``query_protocol.pieces``.
    """
    pairs = [(number(f"trigger_{n}"), text(f"key_{n}")) for n in range(width)]
    columns = (column("trigger_no", BigInteger), column("key", Text))
    asked = listed(*columns, name="asked").data(pairs).cte("asked")
    is_asked = and_(_event.c.trigger_no == asked.c.trigger_no, _event.c.key == asked.c.key)
    return select(_event.c.trigger_no, _event.c.key).join(asked, is_asked)


def dag_triggers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the triggers that are new or have changed fields, with the fields encrypted."""

    def values(row: DagTriggerRow) -> tuple[Any, ...]:
        if row.kwargs is None:
            raise ValueError(f"the trigger of {row.dag_id!r} has no fields")
        encrypted = vault.encrypt(_DAG_TRIGGER_TABLE, row.trigger_no, row.kwargs)
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
    """Return the triggers with a new position: last event, held event or last run."""
    return [(*_cursor_columns(row), row.trigger_no) for row in batch.of_dags.moved]


def _cursor_columns(row: DagTriggerRow) -> tuple[Any, ...]:
    held = None if row.held is None else pack(row.held)
    return (row.sequence, row.event, row.event_key, held, row.run_no)


def new_dag_events(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new events."""

    def values(row: DagEventRow) -> tuple[Any, ...]:
        place = (row.event_no, row.trigger_no, row.sequence)
        outcome = (int(row.outcome), row.run_no, row.reason)
        return (*place, row.key, row.at, *outcome, row.asset, row.data)

    return [values(row) for row in batch.of_dags.events]


def dag_event_outcomes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the outcomes of events that had been held back."""
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
        kwargs=vault.decrypt(_DAG_TRIGGER_TABLE, values[0], values[3]),
        since=values[4],
        sequence=values[5],
        event=values[6],
        event_key=values[7],
        held=None if values[8] is None else _held_decoder.decode(values[8]),
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
        found = await self._each_of(_numbered_key, _used_keys, ("trigger", "key"), asked)
        return set(found)


_backfill, _run = tables.backfill, tables.run


RUNNING_BACKFILLS = (
    select(_backfill).where(_backfill.c.state == "running").order_by(_backfill.c.backfill_no)
)
_BACKFILL_BY_KEY = select(_backfill).where(
    _backfill.c.dag_id == text("dag_id"), _backfill.c.key == text("key")
)


@cache
def _backfills_by_no(width: int) -> Select[Any]:
    """Return the statement for ``width`` backfills, with parameters ``no_0`` and so on."""
    return select(_backfill).where(_backfill.c.backfill_no.in_(_backfill_numbers(width)))


@cache
def _run_counts(width: int) -> Select[Any]:
    """Return the statement that counts the runs of ``width`` backfills by state.

    Its parameters are ``no_0`` and so on.
    """
    counted = (_run.c.backfill, _run.c.state)
    return (
        select(*counted, func.count())
        .where(_run.c.backfill.in_(_backfill_numbers(width)), tables.not_deleted)
        .group_by(*counted)
        .order_by(*counted)
    )


def _backfill_numbers(width: int) -> list[BindParameter[int]]:
    return [number(f"no_{n}") for n in range(width)]


@cache
def _backfills_page(*, of_dag: bool, before: bool) -> Select[Any]:
    page = (
        select(_backfill.c.backfill_no)
        .order_by(_backfill.c.backfill_no.desc())
        .limit(number("limit"))
    )
    if of_dag:
        page = page.where(_backfill.c.dag_id == text("dag_id"))
    if before:
        page = page.where(_backfill.c.backfill_no < number("before"))
    return page


def backfills(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the last row of each backfill that starts, continues or ends."""

    def values(row: BackfillRow) -> tuple[Any, ...]:
        is_reverse = int(row.is_reverse)
        return msgspec.structs.astuple(msgspec.structs.replace(row, is_reverse=is_reverse))

    return [values(row) for row in last_of_each(batch.backfills, lambda row: row.backfill_no)]


class BackfillReader(QueryInterface):
    """The part of a store that reads backfills."""

    async def find_keyed_backfill(self, dag_id: str, key: str) -> BackfillRow | None:
        """See ``Store``."""
        return await self._one(rows.backfill_row, _BACKFILL_BY_KEY, dag_id=dag_id, key=key)

    async def list_backfills(
        self, *, dag_id: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[tuple[BackfillRow, dict[RunState, int]]]:
        """See ``Store``."""
        given = {"dag_id": dag_id, "before": before}
        cursor = {name: value for name, value in given.items() if value is not None}
        statement = _backfills_page(of_dag=dag_id is not None, before=before is not None)
        found = await self._all(tuple, statement, limit=limit, **cursor)
        return await self.find_backfills([backfill_no for (backfill_no,) in found])

    async def find_backfills(
        self, backfill_nos: Collection[int]
    ) -> list[tuple[BackfillRow, dict[RunState, int]]]:
        """See ``Store``."""
        found: list[BackfillRow] = []
        counts: dict[int, dict[RunState, int]] = {no: {} for no in backfill_nos}
        for width, named in pieces(("no",), [(no,) for no in backfill_nos]):
            statements = (_backfills_by_no(width), _run_counts(width))
            questions = [self._question(statement, **named) for statement in statements]
            of_piece, counted = await self._fetch(questions)
            found += self._read(statements[0], rows.backfill_row, of_piece)
            for no, state, count in self._read(statements[1], tuple, counted):
                counts[no][rows.RUN_STATES[state]] = count
        places = {no: place for place, no in enumerate(backfill_nos)}
        found.sort(key=lambda row: places[row.backfill_no])
        return [(row, counts[row.backfill_no]) for row in found]
