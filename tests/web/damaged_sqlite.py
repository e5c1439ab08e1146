"""Hostile values in single columns of a SQLite file, whatever its schema allows."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import Column

from aioflow.store import tables
from tests.web.damaging import (
    DRAINED,
    HOSTILE,
    NO_TEXT,
    Case,
    Written,
    key_of,
    make_home,
    ordered,
    spared,
)

__all__ = ("SqliteHome", "WholeSqlite")

_NO_TEXT = "CAST(x'ff41' AS TEXT)"


class WholeSqlite:
    """A home with a row in every table of its database file. It is copied for each case."""

    def __init__(self, home: Path) -> None:
        self._home = home
        anyio.run(make_home, home)
        with closing(sqlite3.connect(home / "aioflow.db")) as raw, raw:
            raw.execute(DRAINED)

    @contextmanager
    def copied(self, home: Path) -> Iterator[SqliteHome]:
        """Provide a copy of the home within the block."""
        shutil.copytree(self._home, home)
        yield SqliteHome(home)


class SqliteHome:
    """A home whose database can be damaged while no node uses it."""

    url = None

    def __init__(self, path: Path) -> None:
        self.path = path

    async def write(self, case: Case, where: str | None = None) -> Written | None:
        """Write a value into one row.

        Args:
            where: The condition of the row; by default a row that the healthy runs do not need.

        Returns:
            The written value; ``None`` if SQLite cannot store it there, or if nothing has changed.
        """
        with closing(sqlite3.connect(self.path / "aioflow.db", isolation_level=None)) as raw:
            raw.execute("PRAGMA foreign_keys = OFF")
            with _Loosened(raw, case.table):
                key = _write(raw, case, where)
        return None if key is None else Written(key, self._complaint(case))

    async def set_state(self, table: str, state: int, where: str) -> None:
        """Set the state of rows, possibly to a state that does not exist."""
        with closing(sqlite3.connect(self.path / "aioflow.db")) as raw, raw:
            raw.execute("PRAGMA ignore_check_constraints = ON")
            raw.execute(f"UPDATE {table} SET state = {state} WHERE {where}")

    def _complaint(self, case: Case) -> str | None:
        """Return the finding of SQLite's own check about a column, if any."""
        with closing(sqlite3.connect(self.path / "aioflow.db")) as raw:
            found = [str(line) for (line,) in raw.execute("PRAGMA integrity_check")]
        of_value = re.compile(rf"(non-\w+|NULL|TEXT|NUMERIC) value in {case.table}.{case.column}$")
        column = tables.metadata.tables[case.table].columns[case.column]
        is_bounded = "range" in column.info and f"CHECK constraint failed in {case.table}" in found
        told = [line for line in found if of_value.search(line)]
        return told[0] if told else (found[0] if is_bounded else None)


def _write(raw: sqlite3.Connection, case: Case, where: str | None) -> str | None:
    table = tables.metadata.tables[case.table]
    column: Column[Any] = table.columns[case.column]
    value = HOSTILE[case.value]
    named = ", ".join(f'"{key.name}"' for key in table.primary_key)
    victim = f"WHERE {where}" if where else _victim(raw, case)
    row = raw.execute(f'SELECT {named} FROM "{table.name}" {victim}').fetchone()
    assert row is not None, f"the home has no row in {table.name}"
    of_it = " AND ".join(f'"{key.name}" = ?' for key in table.primary_key)
    shown = f'typeof("{column.name}") || quote(CAST("{column.name}" AS BLOB))'
    (was,) = raw.execute(f'SELECT {shown} FROM "{table.name}" WHERE {of_it}', row).fetchone()
    wanted, given = ("?", (value,)) if value is not NO_TEXT else (_NO_TEXT, ())
    try:
        raw.execute(
            f'UPDATE "{table.name}" SET "{column.name}" = {wanted} WHERE {of_it}', (*given, *row)
        )
    except (sqlite3.IntegrityError, sqlite3.OperationalError):
        return None
    changed = f'SELECT {shown} FROM "{table.name}" WHERE {of_it}'
    (now,) = raw.execute(changed, row).fetchone() or ("its key",)
    return None if was == now else key_of(table, row)


def _victim(raw: sqlite3.Connection, case: Case) -> str:
    table = tables.metadata.tables[case.table]
    where = spared(table)
    count = f'SELECT count(*) FROM "{table.name}" WHERE {where}'
    (found,) = raw.execute(count).fetchone()
    if not found:
        return "LIMIT 1"
    return f"WHERE {where} {ordered(table, case, found)}"


class _Loosened:
    """A context manager within which a table accepts any value."""

    def __init__(self, raw: sqlite3.Connection, table: str) -> None:
        self._raw = raw
        self._table = table

    def __enter__(self) -> None:
        ask = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?"
        (self._strict,) = self._raw.execute(ask, (self._table,)).fetchone()
        self._raw.execute("PRAGMA ignore_check_constraints = ON")
        loose = re.sub(r",?\s*STRICT\s*$", "", self._strict)
        loose = re.sub(r"\bNOT NULL\b", "", loose)
        self._declare(loose)

    def __exit__(self, *_: object) -> None:
        self._declare(self._strict)

    def _declare(self, sql: str) -> None:
        (version,) = self._raw.execute("PRAGMA schema_version").fetchone()
        self._raw.execute("PRAGMA writable_schema = ON")
        self._raw.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, self._table))
        self._raw.execute(f"PRAGMA schema_version = {version + 1}")
        self._raw.execute("PRAGMA writable_schema = RESET")
