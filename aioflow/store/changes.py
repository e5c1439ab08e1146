"""What a batch changes, as plain values: one kind of change after another.

``KINDS`` stands in an order that respects the foreign keys. Both databases, the journal and
the replay walk over the same list, so none of them can know a change the others do not.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import BigInteger, LargeBinary, SmallInteger, Table, Text

from aioflow.errors import BatchRefused
from aioflow.model import Failure, RecordState
from aioflow.rows import (
    Batch,
    DagFileRow,
    DagRow,
    NamedEventRow,
    OutboxRow,
    PoolRow,
    RecordChange,
    RecordRow,
    ResultRow,
    RunChange,
    TriggerChange,
    TriggerRow,
    TryRow,
    VersionRow,
)
from aioflow.secrets import Vault
from aioflow.store import growth, tables
from aioflow.store.rows import TRIGGER_TABLE
from aioflow.store.values import gone_values, new_values

__all__ = ("KINDS", "Action", "Changes", "Kind", "Parameters", "bind")

Parameters: TypeAlias = tuple[Any, ...]
"""New values first, then what the guards expect: the order of the SQL."""

Changes: TypeAlias = list[tuple["Kind", list[Parameters]]]

_encode = msgspec.msgpack.Encoder().encode


class Action(Enum):
    """What a change does to its rows."""

    INSERT = "insert"
    KEEP = "keep"
    """Insert, unless the row is there; then it says the same."""
    REPLACE = "replace"
    UPDATE = "update"
    DELETE = "delete"
    DISCARD = "discard"
    """Delete what may be gone already."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of change.

    Attributes:
        name: In the journal and in refusals.
        columns: That get new values.
        guards: Columns whose values the change expects; the row's key comes first.
        bind: What a batch holds of it.
    """

    name: str
    table: Table
    action: Action
    columns: tuple[str, ...]
    guards: tuple[str, ...]
    bind: Callable[[Batch, Vault], list[Parameters]]

    @property
    def is_counted(self) -> bool:
        """Whether it must find, or make, exactly as many rows as it names."""
        return self.action not in {Action.KEEP, Action.DISCARD}

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell its rows apart."""
        return tuple(column.name for column in self.table.primary_key)


def bind(batch: Batch, vault: Vault) -> Changes:
    """Return the changes of a batch, those that are not empty, in the order to apply them.

    Raises:
        BatchRefused: If a value has a type its column does not take, or a row is changed
            twice: the databases would disagree about both.
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
        # SQLite would keep it and cut it off in some functions; PostgreSQL cannot.
        if allowed == {str} and any("\0" in text for text in column if text):
            raise BatchRefused(f"{kind.name}: {name} holds a NUL character")
    if kind.guards:
        first = len(kind.columns)
        end = first + min(len(kind.key), len(kind.guards))
        if len({row[first:end] for row in rows}) != len(rows):
            raise BatchRefused(f"{kind.name}: one {' '.join(kind.key)} is changed twice")


# ── binding, kind by kind ───────────────────────────────────────────────────────────────


def _versions(batch: Batch, vault: Vault) -> list[Parameters]:
    return [_version(row) for row in _last(batch.new_versions, lambda row: row.version)]


def _version(row: VersionRow) -> Parameters:
    sources = zlib.compress(_encode(row.sources))
    return (row.version, row.file, _encode(row.dags), sources, row.created_at)


def _dag_files(batch: Batch, vault: Vault) -> list[Parameters]:
    def values(row: DagFileRow) -> Parameters:
        return (row.file, row.version, row.reason, row.message, row.parsed_at)

    return [values(row) for row in _last(batch.dag_files, lambda row: row.file)]


def _gone_files(batch: Batch, vault: Vault) -> list[Parameters]:
    return [(file,) for file in dict.fromkeys(batch.gone_files)]


def _dags(batch: Batch, vault: Vault) -> list[Parameters]:
    def values(row: DagRow) -> Parameters:
        paused, gone = int(row.paused), int(row.gone)
        return (row.dag_id, row.file, row.version, paused, row.next_run_at, gone)

    return [values(row) for row in _last(batch.dags, lambda row: row.dag_id)]


def _pools(batch: Batch, vault: Vault) -> list[Parameters]:
    def values(row: PoolRow) -> Parameters:
        return (row.name, row.slots, int(row.include_deferred))

    return [values(row) for row in _last(batch.pools, lambda row: row.name)]


def _gone_pools(batch: Batch, vault: Vault) -> list[Parameters]:
    return [(name,) for name in dict.fromkeys(batch.gone_pools)]


def _new_runs(batch: Batch, vault: Vault) -> list[Parameters]:
    return [
        (
            row.run_no,
            row.run_id,
            row.dag_id,
            row.version,
            int(row.state),
            row.cause,
            row.first_task_no,
            row.logical_date,
            row.conf,
            row.key,
            row.created_at,
            row.started_at,
            row.ended_at,
            row.quarantine,
            row.caller,
        )
        for row in batch.new_runs
    ]


def _run_changes(batch: Batch, vault: Vault) -> list[Parameters]:
    def values(change: RunChange) -> Parameters:
        new = (int(change.state), change.started_at, change.ended_at, change.quarantine)
        return (*new, change.run_no, int(change.was))

    return [values(change) for change in batch.run_changes]


def _new_tasks(batch: Batch, vault: Vault) -> list[Parameters]:
    return [
        (
            row.task_no,
            row.run_no,
            row.position,
            row.map_index,
            int(row.state),
            row.try_number,
            row.start_no,
            row.interruptions,
            row.due_at,
            row.deadline_at,
            row.queued_at,
            row.started_at,
            row.ended_at,
            _failure(row.failure),
        )
        for row in batch.new_tasks
    ]


def _task_changes(batch: Batch, vault: Vault) -> list[Parameters]:
    return [
        (
            int(change.state),
            change.try_number,
            change.start_no,
            change.interruptions,
            change.due_at,
            change.deadline_at,
            change.queued_at,
            change.started_at,
            change.ended_at,
            _failure(change.failure),
            change.task_no,
            int(change.was),
            change.was_start_no,
        )
        for change in batch.task_changes
    ]


def _new_tries(batch: Batch, vault: Vault) -> list[Parameters]:
    def values(row: TryRow) -> Parameters:
        key = (row.task_no, row.start_no, row.run_no, row.try_number)
        return (*key, int(row.state), row.started_at, row.ended_at, _failure(row.failure))

    return [values(row) for row in batch.new_tries]


def _results(batch: Batch, vault: Vault) -> list[Parameters]:
    def values(row: ResultRow) -> Parameters:
        return (row.task_no, row.run_no, row.start_no, row.body, row.size, row.width)

    return [values(row) for row in _last(batch.results, lambda row: row.task_no)]


def _new_triggers(batch: Batch, vault: Vault) -> list[Parameters]:
    def values(row: TriggerRow) -> Parameters:
        kwargs = row.kwargs
        sealed = None if kwargs is None else vault.seal(TRIGGER_TABLE, row.trigger_no, kwargs)
        return (
            row.trigger_no,
            row.task_no,
            row.run_no,
            int(row.state),
            row.class_path,
            sealed,
            row.since,
            row.deadline_at,
            row.next_method,
            row.next_kwargs,
            row.event,
            row.event_key,
            row.ordinal,
            row.branch,
            row.window,
            _failure(row.failure),
            row.timeout_method,
        )

    return [values(row) for row in batch.new_triggers]


def _moved_triggers(batch: Batch, vault: Vault) -> list[Parameters]:
    return [
        (
            int(change.state),
            change.event,
            change.event_key,
            _failure(change.failure),
            change.trigger_no,
            int(change.was),
        )
        for change in batch.trigger_changes
        if change.state is not None
    ]


def _gone_triggers(batch: Batch, vault: Vault) -> list[Parameters]:
    def values(change: TriggerChange) -> Parameters:
        return (change.trigger_no, int(change.was))

    return [values(change) for change in batch.trigger_changes if change.state is None]


def _named_events(batch: Batch, vault: Vault) -> list[Parameters]:
    def values(row: NamedEventRow) -> Parameters:
        called = (row.event_no, row.name, row.key)
        return (*called, row.data, row.at, row.run_no, row.request)

    return [values(row) for row in batch.named_events]


def _dropped_records(batch: Batch, vault: Vault) -> list[Parameters]:
    return list(batch.dropped_records)


def _new_records(batch: Batch, vault: Vault) -> list[Parameters]:
    def values(row: RecordRow) -> Parameters:
        key = (row.task_no, row.ordinal, row.run_no)
        called = (row.kind, row.name, row.place)
        return (*key, int(row.state), *called, row.answer, _failure(row.failure))

    return [values(row) for row in batch.new_records]


def _record_changes(batch: Batch, vault: Vault) -> list[Parameters]:
    def values(change: RecordChange) -> Parameters:
        new = (int(change.state), change.answer, _failure(change.failure))
        return (*new, change.task_no, change.ordinal, int(RecordState.OPEN))

    return [values(change) for change in batch.record_changes]


def _new_outbox(batch: Batch, vault: Vault) -> list[Parameters]:
    def values(row: OutboxRow) -> Parameters:
        return (row.outbox_no, row.kind, row.body)

    return [values(row) for row in batch.new_outbox]


def _done_outbox(batch: Batch, vault: Vault) -> list[Parameters]:
    return [(number,) for number in batch.done_outbox]


def _failure(failure: Failure | None) -> bytes | None:
    return None if failure is None else _encode(failure)


def _last(rows: Iterable[Any], key: Callable[[Any], object]) -> Sequence[Any]:
    """Return the rows, of several with one key the last alone."""
    return list({key(row): row for row in rows}.values())


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
    _kind("new version", tables.version, Action.KEEP, _versions),
    _kind("dag file", tables.dag_file, Action.REPLACE, _dag_files),
    _kind("gone file", tables.dag_file, Action.DISCARD, _gone_files, guards=("file",)),
    _kind("dag", tables.dag, Action.REPLACE, _dags),
    _kind("pool", tables.pool, Action.REPLACE, _pools),
    _kind("gone pool", tables.pool, Action.DISCARD, _gone_pools, guards=("name",)),
    _kind("value", tables.named_value, Action.REPLACE, new_values),
    _kind(
        "gone value",
        tables.named_value,
        Action.DISCARD,
        gone_values,
        guards=("kind", "name"),
    ),
    _kind("new run", tables.run, Action.INSERT, _new_runs),
    _kind(
        "run change",
        tables.run,
        Action.UPDATE,
        _run_changes,
        columns=("state", "started_at", "ended_at", "quarantine"),
        guards=("run_no", "state"),
    ),
    _kind(
        "gone expansion",
        tables.expansion,
        Action.DELETE,
        growth.gone_expansions,
        guards=("run_no", "position"),
    ),
    _kind("new expansion", tables.expansion, Action.INSERT, growth.new_expansions),
    _kind(
        "expansion change",
        tables.expansion,
        Action.UPDATE,
        growth.expansion_changes,
        columns=("width", "is_open"),
        guards=("run_no", "position", "width", "is_open"),
    ),
    _kind("new item", tables.stream_item, Action.INSERT, growth.new_items),
    _kind("gone items", tables.stream_item, Action.DISCARD, growth.gone_items, guards=("task_no",)),
    _kind("new task", tables.task, Action.INSERT, _new_tasks),
    _kind(
        "task change",
        tables.task,
        Action.UPDATE,
        _task_changes,
        columns=_TASK_CHANGED,
        guards=("task_no", "state", "start_no"),
    ),
    _kind("new try", tables.try_, Action.INSERT, _new_tries),
    _kind("gone result", tables.result, Action.DISCARD, growth.gone_results, guards=("task_no",)),
    _kind("result", tables.result, Action.REPLACE, _results),
    _kind("new trigger", tables.trigger_wait, Action.INSERT, _new_triggers),
    _kind(
        "moved trigger",
        tables.trigger_wait,
        Action.UPDATE,
        _moved_triggers,
        columns=("state", "event", "event_key", "failure"),
        guards=("trigger_no", "state"),
    ),
    _kind(
        "gone trigger",
        tables.trigger_wait,
        Action.DELETE,
        _gone_triggers,
        guards=("trigger_no", "state"),
    ),
    _kind("named event", tables.named_event, Action.INSERT, _named_events),
    _kind("new event", tables.event, Action.INSERT, growth.new_events),
    _kind(
        "consumed event",
        tables.event,
        Action.UPDATE,
        growth.consumed_events,
        columns=("payload",),
        guards=("trigger_no", "sequence"),
    ),
    _kind("gone events", tables.event, Action.DISCARD, growth.gone_events, guards=("trigger_no",)),
    _kind(
        "dropped record",
        tables.record,
        Action.DELETE,
        _dropped_records,
        guards=("task_no", "ordinal"),
    ),
    _kind("new record", tables.record, Action.INSERT, _new_records),
    _kind(
        "record change",
        tables.record,
        Action.UPDATE,
        _record_changes,
        columns=("state", "answer", "failure"),
        guards=("task_no", "ordinal", "state"),
    ),
    _kind("new outbox", tables.outbox, Action.INSERT, _new_outbox),
    _kind("done outbox", tables.outbox, Action.DELETE, _done_outbox, guards=("outbox_no",)),
)
