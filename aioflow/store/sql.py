"""The statements of the writer, and the cached compilation of all statements for each database.

SQLAlchemy declares and compiles; it does not execute. A writing statement takes its parameters in
the order of ``changes.Parameters``, a reading one by name through ``Statement.placed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Insert,
    Table,
    Update,
    bindparam,
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

from aioflow.store import tables
from aioflow.store.changes import Action, Kind

__all__ = (
    "CLAIM_NODE",
    "FENCE",
    "INSERT_JOURNAL",
    "LEASE_NUMBERS",
    "POSTGRES",
    "READ_NODE",
    "SQLITE",
    "Statement",
    "compiled",
    "written",
)

SQLITE: Dialect = SQLiteDialect_pysqlite(paramstyle="qmark")
POSTGRES: Dialect = PGDialect_asyncpg()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL for the driver.

    Attributes:
        names: Names of the parameters, in order. SQLite repeats one that is used twice.
        constants: Values of parameters that SQLAlchemy added, such as an offset of 0.
    """

    sql: str
    names: tuple[str, ...]
    constants: Mapping[str, Any]

    def placed(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return named values in the order of the SQL."""
        known = {**self.constants, **values}
        return tuple(known[name] for name in self.names)


@cache
def compiled(statement: Executable, dialect: Dialect) -> Statement:
    """Return a statement compiled for a database. Compiled once, at its first use."""
    made = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
    assert isinstance(made, SQLCompiler)  # noqa: S101 - for the type checker
    constants = {name: value for name, value in made.params.items() if value is not None}
    return Statement(str(made), tuple(made.positiontup or ()), constants)


@cache
def written(kind: Kind, dialect: Dialect) -> Statement:
    """Return the statement for one kind of change.

    On SQLite it takes one row and is executed for each. On PostgreSQL it takes one array for each
    column and is executed once.
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
        case Action.UPDATE:
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
        case Action.UPDATE:
            values = {name: given.c[f"new_{name}"] for name in kind.columns}
            return update(table).where(*guards).values(values)
        case Action.DELETE | Action.DISCARD:
            return delete(table).where(*guards)


def _replaced(kind: Kind, excluded: Any) -> dict[str, Any]:
    return {name: excluded[name] for name in kind.columns if name not in kind.key}


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
    )
    .values(
        commit_no=_bound(_node, "commit_no", "number"),
        seen_at=_bound(_node, "seen_at", "at"),
        steady_at=_bound(_node, "steady_at", "steady"),
    )
)
"""Advances the commit number of this node under its epoch. Must match one row."""

READ_NODE = select(_node.c.epoch, _node.c.commit_no).where(
    _node.c.node_no == _bound(_node, "node_no", "node_no")
)

INSERT_JOURNAL = insert(tables.journal).values(
    {
        name: bindparam(name, type_=tables.journal.c[name].type)
        for name in ("commit_no", "at", "body")
    }
)

# Both dialects have the same upsert, but SQLite's construct compiles only for SQLite.


def _claim(dialect: Any) -> Insert:
    node_no = _bound(_node, "node_no", "node_no")
    facts = ("started_at", "seen_at", "version", "pid", "host")
    about = {name: _bound(_node, name, name) for name in facts}
    first = dialect.insert(_node).values(
        node_no=node_no, epoch=literal_column("1"), commit_no=literal_column("0"), **about
    )
    claimed: Insert = first.on_conflict_do_update(
        index_elements=["node_no"],
        set_={
            "epoch": _node.c.epoch + literal_column("1"),
            **{name: first.excluded[name] for name in facts if name != "seen_at"},
        },
    ).returning(_node.c.epoch, _node.c.commit_no, _node.c.seen_at, _node.c.steady_at)
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


CLAIM_NODE = {SQLITE: _claim(sqlite), POSTGRES: _claim(postgresql)}
"""Creates the row of a node or increments its epoch. Returns the epoch and the last commit."""

LEASE_NUMBERS = {SQLITE: _lease(sqlite), POSTGRES: _lease(postgresql)}
"""Reserves a block of numbers and returns the first number after it.

The first block starts at 1.
"""
