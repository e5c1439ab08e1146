"""The changes of a batch as rows of plain values, one kind of change after another.

The order of ``KINDS`` respects the foreign keys. Both databases, the journal and the replay use
this list, so none of them can know a change that the others do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from sqlalchemy import BigInteger, LargeBinary, SmallInteger, Table, Text

from aioflow.crypto import Vault
from aioflow.errors import BatchRefused
from aioflow.model.batch import Batch
from aioflow.model.rows import OutboxRow
from aioflow.store import (
    access,
    access_tables,
    catalog_rows,
    dag_rows,
    deletion,
    run_rows,
    stream_rows,
    tables,
    wait_rows,
)
from aioflow.store.backfills import backfills
from aioflow.store.values import deleted_values, new_values

__all__ = ("KINDS", "Action", "Changes", "Kind", "Parameters", "bind", "named_by")

Parameters: TypeAlias = tuple[Any, ...]
"""New values first, then the values that the guards expect, as in the SQL."""

Changes: TypeAlias = list[tuple["Kind", list[Parameters]]]


class Action(Enum):
    """The effect of a change on its rows."""

    INSERT = "insert"
    KEEP = "keep"
    """Insert, unless the row exists. An existing row has the same content."""
    REPLACE = "replace"
    UPDATE = "update"
    DELETE = "delete"
    DISCARD = "discard"
    """Delete a row that may be deleted already."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of change.

    Attributes:
        name: Name in the journal and in error messages.
        columns: Columns that get new values.
        guards: Columns whose values the change expects; the row's key comes first.
        bind: Returns the rows that a batch changes in this way.
    """

    name: str
    table: Table
    action: Action
    columns: tuple[str, ...]
    guards: tuple[str, ...]
    bind: Callable[[Batch, Vault], list[Parameters]]

    @property
    def is_counted(self) -> bool:
        """Whether the number of affected rows must equal the number of given rows."""
        return self.action not in {Action.KEEP, Action.DISCARD}

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the table's primary key."""
        return tuple(column.name for column in self.table.primary_key)


def bind(batch: Batch, vault: Vault) -> Changes:
    """Return the non-empty changes of a batch, in the order to apply them.

    Raises:
        BatchRefused: If a value has a type that its column does not take, or a row is changed
            twice. The databases would handle both differently.
    """
    changes = []
    for kind in KINDS:
        try:
            rows = kind.bind(batch, vault)
        except (TypeError, ValueError, OverflowError) as exc:
            raise BatchRefused(f"{kind.name}: a value cannot be stored: {exc}") from exc
        if rows:
            _check(kind, rows)
            changes.append((kind, rows))
    return changes


def named_by(kind: Kind, row: Parameters) -> dict[str, int]:
    """Return the numbers of the run, task and trigger that a change concerns."""
    values = dict(zip((*kind.columns, *kind.guards), row, strict=True))
    numbers = {name: values.get(name) for name in ("run_no", "task_no", "trigger_no")}
    return {name: number for name, number in numbers.items() if isinstance(number, int)}


_TYPES: dict[type, set[type]] = {
    BigInteger: {int},
    SmallInteger: {int},
    Text: {str},
    LargeBinary: {bytes},
}


def _check(kind: Kind, rows: list[Parameters]) -> None:
    names = (*kind.columns, *kind.guards)
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        allowed = _TYPES[type(kind.table.c[name].type)]
        # SQLite would take 1.0 for 1 and NaN for NULL; PostgreSQL takes neither.
        odd: set[type] = set(map(type, column)) - allowed - {type(None)}
        if odd:
            raise BatchRefused(f"{kind.name}: {name} cannot hold a {odd.pop().__name__}")
        # SQLite would store it and truncate it in some functions; PostgreSQL cannot store it.
        if allowed == {str} and any("\0" in text for text in column if text):
            raise BatchRefused(f"{kind.name}: {name} holds a NUL character")
    if kind.guards:
        first = len(kind.columns)
        end = first + min(len(kind.key), len(kind.guards))
        if len({row[first:end] for row in rows}) != len(rows):
            raise BatchRefused(f"{kind.name}: one {' '.join(kind.key)} is changed twice")


def _new_outbox(batch: Batch, vault: Vault) -> list[Parameters]:
    def values(row: OutboxRow) -> Parameters:
        return (row.outbox_no, row.kind, row.body)

    return [values(row) for row in batch.new_outbox]


def _done_outbox(batch: Batch, vault: Vault) -> list[Parameters]:
    return [(number,) for number in batch.done_outbox]


def _kind(
    name: str,
    table: Table,
    action: Action,
    bind: Callable[[Batch, Vault], list[Parameters]],
    *,
    columns: tuple[str, ...] = (),
    guards: tuple[str, ...] = (),
) -> Kind:
    if not columns and not guards:
        columns = tuple(table.c.keys())
    return Kind(name, table, action, columns, guards, bind)


def _deletion(kind: str, table: Table) -> Kind:
    """Return the kind of change that deletes accounts, tokens or sessions."""
    (key,) = table.primary_key
    bind = access.deleted_numbers(kind)
    return _kind(f"gone {table.name}", table, Action.DISCARD, bind, guards=(key.name,))


def _erased(table: Table) -> Kind:
    """Return the kind of change that deletes rows with their run or by age.

    Rows that are deleted already are ignored.
    """
    key = tuple(column.name for column in table.primary_key)
    bind = deletion.erased(table)
    return _kind(f"erased {table.name}", table, Action.DISCARD, bind, guards=key)


_TASK_CHANGED = (
    "state",
    "try_number",
    "start_no",
    "interruptions",
    "due_at",
    "deadline_at",
    "queued_at",
    "started_at",
    "ended_at",
    "failure",
)

KINDS: tuple[Kind, ...] = (
    _kind("new version", tables.version, Action.KEEP, catalog_rows.versions),
    _kind("dag file", tables.dag_file, Action.REPLACE, catalog_rows.dag_files),
    _kind(
        "gone file", tables.dag_file, Action.DISCARD, catalog_rows.deleted_files, guards=("file",)
    ),
    _kind("dag", tables.dag, Action.REPLACE, catalog_rows.dags),
    _kind("gone dag", tables.dag, Action.DISCARD, catalog_rows.deleted_dags, guards=("dag_id",)),
    _kind("pool", tables.pool, Action.REPLACE, catalog_rows.pools),
    _kind("gone pool", tables.pool, Action.DISCARD, catalog_rows.deleted_pools, guards=("name",)),
    _kind("drained", tables.drained, Action.REPLACE, catalog_rows.drained),
    _kind("undrained", tables.drained, Action.DISCARD, catalog_rows.undrained, guards=("node_no",)),
    _kind("backfill", tables.backfill, Action.REPLACE, backfills),
    _kind("value", tables.named_value, Action.REPLACE, new_values),
    _kind(
        "gone value",
        tables.named_value,
        Action.DISCARD,
        deleted_values,
        guards=("kind", "name"),
    ),
    _kind("new run", tables.run, Action.INSERT, run_rows.new_runs),
    _kind(
        "run change",
        tables.run,
        Action.UPDATE,
        run_rows.run_changes,
        columns=("state", "started_at", "ended_at", "quarantine"),
        guards=("run_no", "state"),
    ),
    _kind(
        "run version",
        tables.run,
        Action.UPDATE,
        run_rows.run_versions,
        columns=("version",),
        guards=("run_no", "version"),
    ),
    _kind(
        "gone expansion",
        tables.expansion,
        Action.DELETE,
        stream_rows.deleted_expansions,
        guards=("run_no", "position"),
    ),
    _kind("new expansion", tables.expansion, Action.INSERT, stream_rows.new_expansions),
    _kind(
        "expansion change",
        tables.expansion,
        Action.UPDATE,
        stream_rows.expansion_changes,
        columns=("width", "is_open"),
        guards=("run_no", "position", "width", "is_open"),
    ),
    _kind("new item", tables.stream_item, Action.INSERT, stream_rows.new_items),
    _kind(
        "gone items",
        tables.stream_item,
        Action.DISCARD,
        stream_rows.deleted_items,
        guards=("task_no",),
    ),
    _kind("new task", tables.task, Action.INSERT, run_rows.new_tasks),
    _kind(
        "task change",
        tables.task,
        Action.UPDATE,
        run_rows.task_changes,
        columns=_TASK_CHANGED,
        guards=("task_no", "state", "start_no"),
    ),
    _kind("new try", tables.try_, Action.INSERT, run_rows.new_tries),
    _kind(
        "gone result",
        tables.result,
        Action.DISCARD,
        stream_rows.deleted_results,
        guards=("task_no",),
    ),
    _kind("result", tables.result, Action.REPLACE, run_rows.results),
    _kind("map label", tables.map_label, Action.REPLACE, run_rows.labels),
    _kind(
        "reencrypted trigger",
        tables.task_trigger,
        Action.UPDATE,
        wait_rows.reencrypted_triggers,
        columns=("kwargs", "next_kwargs"),
        guards=("trigger_no",),
    ),
    _kind("new trigger", tables.task_trigger, Action.INSERT, wait_rows.new_triggers),
    _kind(
        "moved trigger",
        tables.task_trigger,
        Action.UPDATE,
        wait_rows.moved_triggers,
        columns=("state", "event", "event_key", "failure"),
        guards=("trigger_no", "state"),
    ),
    _kind(
        "gone trigger",
        tables.task_trigger,
        Action.DELETE,
        wait_rows.deleted_triggers,
        guards=("trigger_no", "state"),
    ),
    _kind("named event", tables.named_event, Action.INSERT, wait_rows.named_events),
    _kind("new event", tables.event, Action.INSERT, stream_rows.new_events),
    _kind(
        "consumed event",
        tables.event,
        Action.UPDATE,
        stream_rows.consumed_events,
        columns=("payload",),
        guards=("trigger_no", "sequence"),
    ),
    _kind(
        "gone events",
        tables.event,
        Action.DISCARD,
        stream_rows.deleted_events,
        guards=("trigger_no",),
    ),
    _kind(
        "dropped record",
        tables.record,
        Action.DELETE,
        wait_rows.dropped_records,
        guards=("task_no", "ordinal"),
    ),
    _kind("new record", tables.record, Action.INSERT, wait_rows.new_records),
    _kind(
        "record change",
        tables.record,
        Action.UPDATE,
        wait_rows.record_changes,
        columns=("state", "answer", "failure"),
        guards=("task_no", "ordinal", "state"),
    ),
    _kind("dag trigger", tables.dag_trigger, Action.REPLACE, dag_rows.dag_triggers),
    _kind(
        "moved dag trigger",
        tables.dag_trigger,
        Action.UPDATE,
        dag_rows.moved_dag_triggers,
        columns=("sequence", "event", "event_key", "held", "run_no"),
        guards=("trigger_no",),
    ),
    _kind("new dag event", tables.dag_event, Action.INSERT, dag_rows.new_dag_events),
    _kind(
        "outcome",
        tables.dag_event,
        Action.UPDATE,
        dag_rows.outcomes,
        columns=("outcome", "run_no", "reason"),
        guards=("event_no", "outcome"),
    ),
    _kind("new clear", tables.clear_request, Action.INSERT, run_rows.new_clears),
    _kind("new outbox", tables.outbox, Action.INSERT, _new_outbox),
    _kind("done outbox", tables.outbox, Action.DELETE, _done_outbox, guards=("outbox_no",)),
    _kind("new deletion", tables.deletion, Action.INSERT, deletion.deletions),
    _deletion("accounts", access_tables.account),
    _deletion("tokens", access_tables.api_token),
    _deletion("logins", access_tables.login),
    _kind("account", access_tables.account, Action.REPLACE, access.accounts),
    _kind("api token", access_tables.api_token, Action.REPLACE, access.tokens),
    _kind("login", access_tables.login, Action.REPLACE, access.logins),
    _kind("audit", access_tables.audit, Action.INSERT, access.audit_entries),
    _kind("audit head", access_tables.audit_head, Action.REPLACE, access.audit_head),
    *map(_erased, (*deletion.ERASED, *deletion.AGED, tables.version)),
)
