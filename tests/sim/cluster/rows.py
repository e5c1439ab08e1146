"""The rows by which daemons agree on the writer, with the locks and isolation of PostgreSQL.

The statements are those that the program sends to PostgreSQL. They run on SQLite, over the rows
that a transaction sees under READ COMMITTED: committed rows and its own changes. A statement that
changes a row already changed by an open transaction waits for that transaction, and is then
evaluated again.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

__all__ = ("TABLES", "Changed", "Key", "ProtocolRows", "Result", "Row")

TABLES = ("node", "number_lease", "drained")
"""The modelled tables. The key of each is its first column."""

Key = tuple[str, Any]
Row = tuple[Any, ...]
Changed = dict[Key, Row | None]
"""The new values of rows; ``None`` for a deleted one."""


class Result(NamedTuple):
    """What a statement has returned, and the rows that it would change."""

    rows: list[Row]
    affected: int
    changed: Changed


class _Any:
    """The aggregate ``bool_or``."""

    def __init__(self) -> None:
        self._found: bool | None = None

    def step(self, value: Any) -> None:
        """Take a value into account."""
        if value is not None:
            self._found = bool(value) or bool(self._found)

    def finalize(self) -> bool | None:
        """Return the result; ``None`` without a value."""
        return self._found


class ProtocolRows:
    """The committed rows.

    Args:
        schema: The statements that create the tables.
        terminate: Ends the session with a process id.
    """

    def __init__(self, schema: Sequence[str], terminate: Callable[[int], bool]) -> None:
        self._raw = raw = sqlite3.connect(":memory:", isolation_level=None)
        for statement in schema:
            raw.execute(statement)
        raw.execute("CREATE TABLE pg_stat_activity (pid, datname, application_name, state)")
        raw.create_function("current_database", 0, lambda: "db")
        raw.create_function("pg_terminate_backend", 1, terminate)
        raw.create_function("set_config", 3, lambda name, value, is_local: value)
        raw.create_aggregate("bool_or", 1, _Any)  # type: ignore[arg-type]
        self._places = {
            table: ", ".join("?" * len(raw.execute(f"PRAGMA table_info({table})").fetchall()))
            for table in TABLES
        }

    def close(self) -> None:
        """Free the memory."""
        self._raw.close()

    def all(self) -> dict[Key, Row]:
        """Return every row by its table and key."""
        return {
            (table, row[0]): row
            for table in TABLES
            for row in self._raw.execute(f"SELECT * FROM {table}")
        }

    def evaluate(
        self, sql: str, values: Sequence[Any], own: Changed, sessions: Sequence[Row]
    ) -> Result:
        """Return what a statement would do, given the earlier changes of its own transaction.

        Args:
            own: The changes of the transaction so far.
            sessions: The rows of ``pg_stat_activity``.
        """
        raw, ready = self._raw, _as_sqlite(sql)
        is_reading = ready.lstrip().upper().startswith("SELECT")
        raw.execute("SAVEPOINT statement")
        try:
            self._put(raw, own)
            if "pg_stat_activity" in ready:
                raw.executemany("INSERT INTO pg_stat_activity VALUES (?, ?, ?, ?)", sessions)
            before = {} if is_reading else self.all()
            cursor = raw.execute(ready, values)
            rows = cursor.fetchall()
            count = cursor.rowcount
            if count < 0 and not is_reading:  # the driver does not count after WITH
                ((count,),) = raw.execute("SELECT changes()")
            after = {} if is_reading else self.all()
        finally:
            raw.execute("ROLLBACK TO statement")
            raw.execute("RELEASE statement")
        keys = sorted(before.keys() | after.keys(), key=repr)
        changed = {key: after.get(key) for key in keys if before.get(key) != after.get(key)}
        return Result(rows, len(rows) if count < 0 else count, changed)

    def commit(self, changed: Changed) -> None:
        """Apply the changes of a transaction."""
        self._put(self._raw, changed)

    def mirror(self, raw: sqlite3.Connection, changed: Changed) -> None:
        """Apply the changes to another database, within a transaction of that database."""
        self._put(raw, changed)

    def _put(self, raw: sqlite3.Connection, changed: Changed) -> None:
        for table, key in changed:
            column = "name" if table == "number_lease" else "node_no"
            raw.execute(f"DELETE FROM {table} WHERE {column} = ?", (key,))
        for (table, _), row in changed.items():
            if row is not None:
                raw.execute(f"INSERT INTO {table} VALUES ({self._places[table]})", row)


@cache
def _as_sqlite(sql: str) -> str:
    """Return a PostgreSQL statement in SQLite syntax: without casts, with SQLite's parameters."""
    return re.sub(r"\$(\d+)", r"?\1", re.sub(r"::[A-Z]+", "", sql))
