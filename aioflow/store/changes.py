"""The changes of a batch as rows of plain values, and the statements that write them.

The order of ``KINDS`` respects the foreign keys. Both databases, the journal and the replay use
this list, so all of them support the same changes.

SQLAlchemy declares and compiles the statements, but does not execute them. Each statement is
compiled once for each database. A writing statement takes its parameters in the order of
``Parameters``. A reading statement takes them by name, through ``Statement.placed``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from typing import Any, TypeAlias, cast

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Delete,
    Insert,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Update,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.compiler import SQLCompiler

from aioflow.crypto import Vault
from aioflow.errors import BatchRefused
from aioflow.model.batch import Batch
from aioflow.model.rows import OutboxRow
from aioflow.store import (
    accounts,
    batch_rows,
    decisions,
    notes,
    pool_usage,
    retention,
    run_causes,
    tables,
)
from aioflow.store.rows import deleted_values, new_values
from aioflow.store.run_causes import backfills

__all__ = (
    "CLAIM_NODE",
    "DELETE_CHUNKS",
    "FENCE",
    "INSERT_JOURNAL",
    "KINDS",
    "LEASE_NUMBERS",
    "MARK_STORAGE",
    "POSTGRES",
    "PUT_CHUNK",
    "READ_NODE",
    "SQLITE",
    "Action",
    "Changes",
    "Kind",
    "Parameters",
    "Statement",
    "bind_batch",
    "compiled",
    "named_by",
    "written",
)

_COMPILED = 2_048
"""Maximum number of compiled statements. The program has a few hundred; client requests add more.
"""

Parameters: TypeAlias = tuple[Any, ...]
"""The new values, then the values that the guards expect, in the order of the SQL."""

Changes: TypeAlias = list[tuple["Kind", list[Parameters]]]


class Action(Enum):
    """The effect of a change on its rows."""

    INSERT = "insert"
    KEEP = "keep"
    """Insert the row unless it exists. An existing row always has the same content."""
    REPLACE = "replace"
    ADD = "add"
    """Insert the row, or add its values to those of the existing row."""
    UPDATE = "update"
    AMEND = "amend"
    """Update the row, which may be missing."""
    DELETE = "delete"
    DISCARD = "discard"
    """Delete the row, which may have been deleted already."""


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One kind of change. Each exists once, in ``KINDS``.

    Attributes:
        name: Name in the journal and in error messages.
        columns: Columns that get new values.
        guards: Columns whose current values the change expects; the row's key comes first.
        bind: Returns the rows that a batch changes in this way.
        empty: Columns that the change expects to be NULL.
    """

    name: str
    table: Table
    action: Action
    columns: tuple[str, ...]
    guards: tuple[str, ...]
    bind: Callable[[Batch, Vault], list[Parameters]]
    empty: tuple[str, ...] = ()

    @property
    def is_journaled(self) -> bool:
        """Whether the journal contains the change. It omits additions: others imply them."""
        return self.action is not Action.ADD

    @property
    def is_counted(self) -> bool:
        """Whether the statement must affect exactly as many rows as the change has."""
        action = self.action  # compared, because the hash of a member costs more
        return not (action is Action.KEEP or action is Action.AMEND or action is Action.DISCARD)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the table's primary key."""
        return tuple(column.name for column in self.table.primary_key)


def bind_batch(batch: Batch, vault: Vault) -> Changes:
    """Return the non-empty changes of a batch, in the order to apply them.

    Raises:
        BatchRefused: If a value has a type that its column does not accept, or a row is changed
            twice. SQLite and PostgreSQL would handle such batches differently.
    """
    changes = []
    for kind in _kinds_in(batch):
        try:
            rows = kind.bind(batch, vault)
        except (TypeError, ValueError, OverflowError) as exc:
            raise BatchRefused(f"{kind.name}: a value cannot be stored: {exc}") from exc
        if rows:
            _check_rows(kind, rows)
            changes.append((kind, rows))
    return changes


def named_by(kind: Kind, row: Parameters) -> dict[str, int]:
    """Return the numbers of the run, task and trigger that a change concerns."""
    values = dict(zip((*kind.columns, *kind.guards), row, strict=True))
    numbers = {name: values.get(name) for name in ("run_no", "task_no", "trigger_no")}
    return {name: number for name, number in numbers.items() if isinstance(number, int)}


def _kinds_in(batch: Batch) -> Sequence[Kind]:
    """Return the kinds that a batch may contain, in order.

    Most batches are small and set only a few attributes. Only the kinds that read one of these
    attributes are bound.
    """
    by_attribute = _kinds_by_attribute()
    filled = zip(batch.__struct_fields__, msgspec.structs.astuple(batch), strict=True)
    places = {place for name, value in filled if value for place in by_attribute.get(name, ())}
    return [KINDS[place] for place in sorted(places)]


@cache
def _kinds_by_attribute() -> Mapping[str, Sequence[int]]:
    """Return, for each attribute of a batch, the indices in ``KINDS`` of the kinds that read it."""
    found: dict[str, list[int]] = {}
    for place, kind in enumerate(KINDS):
        read = _ReadBatch(set())
        kind.bind(cast("Batch", read), cast("Vault", None))
        for name in read.names:
            found.setdefault(name, []).append(place)
    return found


class _ReadBatch:
    """An empty batch that records which of its attributes are read."""

    _empty = Batch(number=0, at=0)

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self._empty, name)


_TYPES: dict[type, frozenset[type]] = {
    BigInteger: frozenset({int, type(None)}),
    SmallInteger: frozenset({int, type(None)}),
    Text: frozenset({str, type(None)}),
    LargeBinary: frozenset({bytes, type(None)}),
}


@cache
def _types_of(kind: Kind) -> Sequence[tuple[str, frozenset[type]]]:
    """Return the columns of the rows of a kind, with the types that each accepts."""
    names = (*kind.columns, *kind.guards)
    return [(name, _TYPES[type(kind.table.c[name].type)]) for name in names]


def _check_rows(kind: Kind, rows: list[Parameters]) -> None:
    for (name, allowed), column in zip(_types_of(kind), zip(*rows, strict=True), strict=True):
        # SQLite would store 1.0 as 1 and NaN as NULL; PostgreSQL accepts neither.
        if not allowed.issuperset(map(type, column)):
            odd = next(type(value) for value in column if type(value) not in allowed)
            raise BatchRefused(f"{kind.name}: {name} cannot hold a {odd.__name__}")
        # SQLite would store a NUL and truncate the text in some functions; PostgreSQL rejects it.
        if allowed is _TYPES[Text] and "\0" in "".join(filter(None, column)):
            raise BatchRefused(f"{kind.name}: {name} holds a NUL character")
    if kind.guards and len(rows) > 1:
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
    empty: tuple[str, ...] = (),
) -> Kind:
    if not columns and not guards:
        columns = tuple(table.c.keys())
    return Kind(name, table, action, columns, guards, bind, empty)


def _deletion(kind: str, table: Table) -> Kind:
    """Return the kind of change that deletes accounts, tokens or sessions."""
    (key,) = table.primary_key
    bind = accounts.deleted_numbers(kind)
    return _kind(f"gone {table.name}", table, Action.DISCARD, bind, guards=(key.name,))


def _erased(table: Table) -> Kind:
    """Return the kind of change that deletes rows of a table by their run or age.

    Rows that have been deleted already are ignored.
    """
    key = tuple(column.name for column in table.primary_key)
    bind = retention.erased(table)
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
    _kind("new version", tables.version, Action.KEEP, batch_rows.versions),
    _kind("dag file", tables.dag_file, Action.REPLACE, batch_rows.dag_files),
    _kind(
        "gone file", tables.dag_file, Action.DISCARD, batch_rows.deleted_dag_files, guards=("file",)
    ),
    _kind("dag", tables.dag, Action.REPLACE, batch_rows.dags),
    _kind("gone dag", tables.dag, Action.DISCARD, batch_rows.deleted_dags, guards=("dag_id",)),
    _kind("pool", tables.pool, Action.REPLACE, batch_rows.pools),
    _kind("gone pool", tables.pool, Action.DISCARD, batch_rows.deleted_pools, guards=("name",)),
    _kind("drained", tables.drained, Action.REPLACE, batch_rows.drained_nodes),
    _kind(
        "undrained", tables.drained, Action.DISCARD, batch_rows.undrained_nodes, guards=("node_no",)
    ),
    _kind("backfill", tables.backfill, Action.REPLACE, backfills),
    _kind("value", tables.named_value, Action.REPLACE, new_values),
    _kind(
        "gone value",
        tables.named_value,
        Action.DISCARD,
        deleted_values,
        guards=("kind", "name"),
    ),
    _kind("new run", tables.run, Action.INSERT, batch_rows.new_runs),
    _kind(
        "run change",
        tables.run,
        Action.UPDATE,
        batch_rows.run_changes,
        columns=("state", "started_at", "ended_at", "quarantine"),
        guards=("run_no", "state"),
    ),
    _kind(
        "run version",
        tables.run,
        Action.UPDATE,
        batch_rows.run_versions,
        columns=("version",),
        guards=("run_no", "version"),
    ),
    _kind(
        "gone expansion",
        tables.expansion,
        Action.DELETE,
        batch_rows.deleted_expansions,
        guards=("run_no", "task_index"),
    ),
    _kind("new expansion", tables.expansion, Action.INSERT, batch_rows.new_expansions),
    _kind(
        "expansion change",
        tables.expansion,
        Action.UPDATE,
        batch_rows.expansion_changes,
        columns=("width", "is_open"),
        guards=("run_no", "task_index", "width", "is_open"),
    ),
    _kind("new item", tables.stream_item, Action.INSERT, batch_rows.new_items),
    _kind(
        "gone items",
        tables.stream_item,
        Action.DISCARD,
        batch_rows.deleted_items,
        guards=("task_no",),
    ),
    _kind("new task", tables.task, Action.INSERT, batch_rows.new_tasks),
    _kind(
        "task change",
        tables.task,
        Action.UPDATE,
        batch_rows.task_changes,
        columns=_TASK_CHANGED,
        guards=("task_no", "state", "start_no"),
    ),
    _kind("new try", tables.try_, Action.INSERT, batch_rows.new_tries),
    _kind("try worker", tables.try_worker, Action.INSERT, batch_rows.try_workers),
    _kind(
        "gone result",
        tables.result,
        Action.DISCARD,
        batch_rows.deleted_results,
        guards=("task_no",),
    ),
    _kind("result", tables.result, Action.REPLACE, batch_rows.results),
    _kind("map label", tables.map_label, Action.REPLACE, batch_rows.map_labels),
    _kind(
        "reencrypted trigger",
        tables.task_trigger,
        Action.UPDATE,
        batch_rows.reencrypted_triggers,
        columns=("kwargs", "next_kwargs"),
        guards=("trigger_no",),
    ),
    _kind("new trigger", tables.task_trigger, Action.INSERT, batch_rows.new_triggers),
    _kind(
        "moved trigger",
        tables.task_trigger,
        Action.UPDATE,
        batch_rows.moved_triggers,
        columns=("state", "event", "event_key", "failure"),
        guards=("trigger_no", "state"),
    ),
    _kind(
        "gone trigger",
        tables.task_trigger,
        Action.DELETE,
        batch_rows.deleted_triggers,
        guards=("trigger_no", "state"),
    ),
    _kind("named event", tables.named_event, Action.INSERT, batch_rows.new_named_events),
    _kind("new event", tables.event, Action.INSERT, batch_rows.new_stream_events),
    _kind(
        "consumed event",
        tables.event,
        Action.UPDATE,
        batch_rows.consumed_stream_events,
        columns=("payload",),
        guards=("trigger_no", "sequence"),
    ),
    _kind(
        "gone events",
        tables.event,
        Action.DISCARD,
        batch_rows.deleted_stream_events,
        guards=("trigger_no",),
    ),
    _kind(
        "dropped record",
        tables.record,
        Action.DELETE,
        batch_rows.deleted_records,
        guards=("task_no", "ordinal"),
    ),
    _kind("new record", tables.record, Action.INSERT, batch_rows.new_records),
    _kind(
        "record change",
        tables.record,
        Action.UPDATE,
        batch_rows.record_changes,
        columns=("state", "answer", "failure"),
        guards=("task_no", "ordinal", "state"),
    ),
    _kind(
        "reencrypted decision",
        tables.decision,
        Action.UPDATE,
        decisions.reencrypted_decisions,
        columns=("question", "answer"),
        guards=("decision_no",),
    ),
    _kind("new decision", tables.decision, Action.INSERT, decisions.new_decisions),
    _kind(
        "decision votes",
        tables.decision,
        Action.UPDATE,
        decisions.decision_votes,
        columns=("vote_count", "votes"),
        guards=("decision_no", "vote_count"),
    ),
    _kind(
        "decision answer",
        tables.decision,
        Action.UPDATE,
        decisions.decision_answers,
        columns=("outcome", "answer", "ended_at"),
        guards=("decision_no",),
        empty=("outcome",),
    ),
    _kind(
        "decision end",
        tables.decision,
        Action.AMEND,
        decisions.decision_ends,
        columns=("outcome", "answer", "ended_at"),
        guards=("decision_no",),
        empty=("outcome",),
    ),
    _kind("dag trigger", tables.dag_trigger, Action.REPLACE, run_causes.dag_triggers),
    _kind(
        "moved dag trigger",
        tables.dag_trigger,
        Action.UPDATE,
        run_causes.moved_dag_triggers,
        columns=("sequence", "event", "event_key", "held", "run_no"),
        guards=("trigger_no",),
    ),
    _kind("new dag event", tables.dag_event, Action.INSERT, run_causes.new_dag_events),
    _kind(
        "outcome",
        tables.dag_event,
        Action.UPDATE,
        run_causes.dag_event_outcomes,
        columns=("outcome", "run_no", "reason"),
        guards=("event_no", "outcome"),
    ),
    _kind("history", tables.history, Action.ADD, batch_rows.history),
    _kind(
        "gone history",
        tables.history,
        Action.DISCARD,
        batch_rows.deleted_dags,
        guards=("dag_id",),
    ),
    _kind("pool usage", tables.pool_usage, Action.REPLACE, pool_usage.pool_usage),
    _kind("new clear", tables.clear_request, Action.INSERT, batch_rows.new_clears),
    _kind("note", tables.note, Action.REPLACE, notes.written_notes),
    _kind(
        "gone note",
        tables.note,
        Action.DISCARD,
        notes.removed_notes,
        guards=("run_no", "task_index", "map_index"),
    ),
    _kind("new outbox", tables.outbox, Action.INSERT, _new_outbox),
    _kind("done outbox", tables.outbox, Action.DELETE, _done_outbox, guards=("outbox_no",)),
    _kind("new deletion", tables.deletion, Action.INSERT, retention.deletions),
    _deletion("accounts", tables.account),
    _deletion("tokens", tables.api_token),
    _deletion("sessions", tables.session),
    _kind("account", tables.account, Action.REPLACE, accounts.accounts),
    _kind("api token", tables.api_token, Action.REPLACE, accounts.tokens),
    _kind("session", tables.session, Action.REPLACE, accounts.sessions),
    _kind("audit", tables.audit, Action.INSERT, accounts.audit_entries),
    _kind("audit head", tables.audit_head, Action.REPLACE, accounts.audit_head),
    *map(_erased, (*retention.ERASED, *retention.AGED, tables.version)),
)


SQLITE: Dialect = SQLiteDialect_pysqlite(paramstyle="qmark")
POSTGRES: Dialect = PGDialect_asyncpg()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL for the driver.

    Attributes:
        names: Names of the parameters, in order. For SQLite, a parameter that is used twice is
            listed twice.
        constants: Values of parameters that SQLAlchemy added, such as an offset of 0.
    """

    sql: str
    names: tuple[str, ...]
    constants: Mapping[str, Any]

    def placed(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return named values in the order in which the SQL uses them."""
        known = {**self.constants, **values}
        return tuple([known[name] for name in self.names])


@lru_cache(_COMPILED)
def compiled(statement: Executable, dialect: Dialect) -> Statement:
    """Return a statement compiled for a database. The first use compiles it."""
    made = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
    assert isinstance(made, SQLCompiler)  # noqa: S101 - for the type checker
    constants = {name: value for name, value in made.params.items() if value is not None}
    return Statement(str(made), tuple(made.positiontup or ()), constants)


@cache
def written(kind: Kind, dialect: Dialect) -> Statement:
    """Return the statement for one kind of change.

    On SQLite it takes one row, and is executed once for each row. On PostgreSQL it takes one array
    for each column, and is executed once.
    """
    if dialect is SQLITE:
        statement = compiled(_row_by_row(kind), dialect)
    else:
        statement = compiled(_all_at_once(kind), dialect)
    expected = _parameter_names(kind)
    if statement.names != expected:
        raise AssertionError(f"{kind.name}: {statement.names} instead of {expected}")
    return statement


def _parameter_names(kind: Kind) -> tuple[str, ...]:
    new = (f"new_{name}" for name in kind.columns)
    return (*new, *(f"was_{name}" for name in kind.guards))


# ── SQLite: one row at a time ───────────────────────────────────────────────────────────


def _row_by_row(kind: Kind) -> Insert | Update | Delete:
    table = kind.table
    new = {name: bindparam(f"new_{name}", type_=table.c[name].type) for name in kind.columns}
    guards = [
        table.c[name] == bindparam(f"was_{name}", type_=table.c[name].type) for name in kind.guards
    ]
    guards += [table.c[name].is_(None) for name in kind.empty]
    match kind.action:
        case Action.INSERT:
            return insert(table).values(new)
        case Action.KEEP:
            return sqlite.insert(table).values(new).on_conflict_do_nothing()
        case Action.REPLACE:
            upsert = sqlite.insert(table).values(new)
            return upsert.on_conflict_do_update(
                index_elements=list(kind.key), set_=_replaced(kind, upsert.excluded)
            )
        case Action.ADD:
            upsert = sqlite.insert(table).values(new)
            return upsert.on_conflict_do_update(
                index_elements=list(kind.key), set_=_added(kind, upsert.excluded)
            )
        case Action.UPDATE | Action.AMEND:
            return update(table).where(*guards).ordered_values(*new.items())
        case Action.DELETE | Action.DISCARD:
            return delete(table).where(*guards)


# ── PostgreSQL: all rows at once ────────────────────────────────────────────────────────


def _all_at_once(kind: Kind) -> Insert | Update | Delete:
    table = kind.table
    names = _parameter_names(kind)
    types = [table.c[name].type for name in (*kind.columns, *kind.guards)]
    arrays = [
        bindparam(name, type_=postgresql.ARRAY(kind_type))
        for name, kind_type in zip(names, types, strict=True)
    ]
    given = func.unnest(*arrays).table_valued(*names).render_derived(name="given")
    guards = [table.c[name] == given.c[f"was_{name}"] for name in kind.guards]
    guards += [table.c[name].is_(None) for name in kind.empty]
    source = select(*(given.c[f"new_{name}"] for name in kind.columns))
    match kind.action:
        case Action.INSERT:
            return insert(table).from_select(kind.columns, source)
        case Action.KEEP:
            insertion = postgresql.insert(table).from_select(kind.columns, source)
            return insertion.on_conflict_do_nothing()
        case Action.REPLACE:
            upsert = postgresql.insert(table).from_select(kind.columns, source)
            return upsert.on_conflict_do_update(
                index_elements=list(kind.key), set_=_replaced(kind, upsert.excluded)
            )
        case Action.ADD:
            upsert = postgresql.insert(table).from_select(kind.columns, source)
            return upsert.on_conflict_do_update(
                index_elements=list(kind.key), set_=_added(kind, upsert.excluded)
            )
        case Action.UPDATE | Action.AMEND:
            values = {name: given.c[f"new_{name}"] for name in kind.columns}
            return update(table).where(*guards).values(values)
        case Action.DELETE | Action.DISCARD:
            return delete(table).where(*guards)


def _replaced(kind: Kind, excluded: Any) -> dict[str, Any]:
    return {name: excluded[name] for name in kind.columns if name not in kind.key}


_MOST: ColumnElement[int] = literal_column(str(2**62))


def _added(kind: Kind, excluded: Any) -> dict[str, Any]:
    """Return the sums of the stored and the new values.

    A damaged stored number counts as 0, because adding to it could make every commit fail.
    """
    zero: ColumnElement[int] = literal_column("0")

    def total(name: str) -> Any:
        stored = kind.table.c[name]
        return case((stored.between(zero, _MOST), stored), else_=zero) + excluded[name]

    return {name: total(name) for name in kind.columns if name not in kind.key}


# ── the fence, and the rows around a batch ──────────────────────────────────────────────

_node = tables.node


def _bound(table: Table, column: str, name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=table.c[column].type)


FENCE = (
    update(_node)
    .where(
        _node.c.node_no == _bound(_node, "node_no", "node_no"),
        _node.c.epoch == _bound(_node, "epoch", "epoch"),
        _node.c.commit_no == _bound(_node, "commit_no", "before"),
        tables.is_active,
    )
    .values(
        commit_no=_bound(_node, "commit_no", "number"),
        seen_at=_bound(_node, "seen_at", "at"),
        steady_at=_bound(_node, "steady_at", "steady"),
    )
)
"""Advances the commit number of this node.

Affects one row if the node is active under its epoch, and none otherwise.
"""

READ_NODE = select(_node.c.epoch, _node.c.commit_no, _node.c.state).where(
    _node.c.node_no == _bound(_node, "node_no", "node_no")
)


def _insert_journal(seq: ColumnElement[Any]) -> Insert:
    journal = tables.journal
    bound = {name: _bound(journal, name, name) for name in ("at", "body", "node_no", "commit_no")}
    return insert(journal).values({"seq": seq, **bound})


_seq = tables.journal.c.seq
_AFTER_LAST = select(
    func.coalesce(func.max(_seq), literal_column("0")) + literal_column("1")
).where(tables.has_place)

INSERT_JOURNAL = {
    SQLITE: _insert_journal(
        func.max(_AFTER_LAST.scalar_subquery(), _bound(tables.journal, "commit_no", "commit_no"))
    ),
    POSTGRES: _insert_journal(func.nextval(literal_column("'journal_seq'"))),
}
"""Adds the row of a batch.

In a SQLite file ``seq`` is the commit number, unless the file is a copy of a database with several
nodes. PostgreSQL takes the next number of a sequence. The fence has been passed by then, so the
batches of all nodes get their numbers in the order in which they are committed.
"""

# Both databases have the same upsert, but SQLAlchemy's construct for SQLite compiles only there.


def _claim(dialect: Any) -> Insert:
    facts = ("started_at", "version", "pid", "host", "home", "name", "heartbeat_ms", "state")
    about = {name: _bound(_node, name, name) for name in ("node_no", "epoch", "seen_at", *facts)}
    first = dialect.insert(_node).values(commit_no=literal_column("0"), **about)
    claimed: Insert = first.on_conflict_do_update(
        index_elements=["node_no"],
        set_={name: first.excluded[name] for name in ("epoch", *facts)},
    ).returning(_node.c.epoch, _node.c.commit_no)
    return claimed


def _lease(dialect: Any) -> Insert:
    lease = tables.number_lease
    count = _bound(lease, "next_no", "count")
    first = dialect.insert(lease).values(
        name=_bound(lease, "name", "name"), next_no=count + literal_column("1")
    )
    leased: Insert = first.on_conflict_do_update(
        index_elements=["name"], set_={"next_no": lease.c.next_no + count}
    ).returning(lease.c.next_no)
    return leased


def _mark(dialect: Any) -> Insert:
    meta = tables.meta
    first = dialect.insert(meta).values(
        name=literal_column("'storage'"), value=_bound(meta, "value", "value")
    )
    marked: Insert = first.on_conflict_do_update(
        index_elements=["name"], set_={"value": meta.c.value}
    ).returning(meta.c.value)
    return marked


def _put_chunk(dialect: Any) -> Insert:
    chunk = tables.result_chunk
    first = dialect.insert(chunk).values(
        {column: _bound(chunk, column.name, column.name) for column in chunk.columns}
    )
    put: Insert = first.on_conflict_do_update(
        index_elements=list(chunk.primary_key),
        set_={name: first.excluded[name] for name in ("stored_at", "body")},
    ).returning(chunk.c.chunk_no)
    return put


CLAIM_NODE = {SQLITE: _claim(sqlite), POSTGRES: _claim(postgresql)}
"""Creates or updates the row of a node. Returns the node's epoch and last commit number."""

LEASE_NUMBERS = {SQLITE: _lease(sqlite), POSTGRES: _lease(postgresql)}
"""Reserves a block of numbers and returns the first number after it.

The first block starts at 1.
"""

MARK_STORAGE = {SQLITE: _mark(sqlite), POSTGRES: _mark(postgresql)}
"""Stores the mark of the database, unless it has one, and returns the mark."""

PUT_CHUNK = {SQLITE: _put_chunk(sqlite), POSTGRES: _put_chunk(postgresql)}
"""Stores a chunk of a result, or replaces it."""

DELETE_CHUNKS = delete(tables.result_chunk).where(
    tables.result_chunk.c.task_no == _bound(tables.result_chunk, "task_no", "task_no"),
    tables.result_chunk.c.start_no == _bound(tables.result_chunk, "start_no", "start_no"),
)
"""Deletes all chunks of a result."""
