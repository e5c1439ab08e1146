"""Hostile values in single columns of a PostgreSQL database, as far as the column types allow."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy import Column, Integer, SmallInteger, Table, Text
from sqlalchemy.engine import URL

from aioflow.store import tables
from aioflow.store.columns import RANGE
from tests.databases import in_thread, temporary_database
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

__all__ = ("PostgresHome", "WholePostgres")

_CHECKS = """
SELECT conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE conrelid = $1::text::regclass AND contype = 'c'
"""
_IS_NEEDED = (
    "UPDATE pg_attribute SET attnotnull = $1 WHERE attrelid = $2::text::regclass AND attname = $3"
)
_ANY_BYTES = "CREATE CAST (bytea AS text) WITHOUT FUNCTION"
_NO_BYTES = "DROP CAST (bytea AS text)"
_LEAST, _LARGEST = -(2**15), 2**15 - 1  # of a smallint
_NOTHING = object()


class WholePostgres:
    """A home with a row in every table of its database. Both are copied for each case."""

    def __init__(self, home: Path, server: str, migrated: URL) -> None:
        self._home = home
        self._server = server
        self._databases = ExitStack()
        self._url = self._databases.enter_context(temporary_database(server, migrated))
        in_thread(self._fill())

    async def _fill(self) -> None:
        await make_home(self._home, _dsn(self._url))
        connection = await asyncpg.connect(_dsn(self._url))
        await connection.execute(DRAINED)
        await connection.close()

    def close(self) -> None:
        """Drop the database."""
        self._databases.close()

    @contextmanager
    def copied(self, home: Path) -> Iterator[PostgresHome]:
        """Provide a copy of the home and the database within the block."""
        shutil.copytree(self._home, home)
        with temporary_database(self._server, self._url) as url:
            yield PostgresHome(home, _dsn(url))


class PostgresHome:
    """A home whose database can be damaged while no node uses it."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        self.url = url

    async def write(self, case: Case, where: str | None = None) -> Written | None:
        """Write a value into one row.

        Args:
            where: The condition of the row; by default a row that the healthy runs do not need.

        Returns:
            The written value; ``None`` if PostgreSQL cannot store it there, or if nothing has
            changed.
        """
        table = tables.metadata.tables[case.table]
        column = table.columns[case.column]
        value = _fitting(column, HOSTILE[case.value])
        if value is _NOTHING:
            return None
        async with self._loosened(
            case.table, None if column.nullable or column.primary_key else column.name
        ) as raw:
            row = await _victim(raw, table, case, where)
            if not await _write(raw, table, column, value, row):
                return None
            return Written(key_of(table, row), _complaint(table, column, value))

    async def set_state(self, table: str, state: int, where: str) -> None:
        """Set the state of rows, possibly to a state that does not exist."""
        async with self._loosened(table) as raw:
            await raw.execute(f"UPDATE {table} SET state = {state} WHERE {where}")

    @asynccontextmanager
    async def _loosened(
        self, table: str, needed: str | None = None
    ) -> AsyncIterator[asyncpg.Connection]:
        """Let a table accept any value of its column types within the block.

        Args:
            needed: The column that may be ``NULL`` within the block.
        """
        raw = await asyncpg.connect(self.url)
        try:
            await raw.execute("SET session_replication_role = replica")  # no foreign keys
            await raw.execute("SET allow_system_table_mods = on")
            checks = await raw.fetch(_CHECKS, table)
            for name, _ in checks:
                await raw.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
            if needed is not None:
                await raw.execute(_IS_NEEDED, False, table, needed)
            await raw.execute(_ANY_BYTES)
            yield raw
            await raw.execute(_NO_BYTES)
            if needed is not None:
                await raw.execute(_IS_NEEDED, True, table, needed)
            for name, definition in checks:
                await raw.execute(
                    f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition} NOT VALID"
                )
        finally:
            await raw.close()


def _dsn(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def _fitting(column: Column[Any], value: object) -> object:
    """Return a value in the form that the driver accepts for a column, if the type can hold it."""
    match column.type, value:
        case _, None:
            return None
        case SmallInteger(), int():
            return min(max(value, _LEAST), _LARGEST)
        case Integer(), int():
            return value
        case Text(), _ if value is NO_TEXT:
            return b"\xff\x41"
        case Text(), str():
            return value.encode()
        case (Integer() | Text(), _) | (_, int() | float()):
            return _NOTHING
        case _, str():
            return value.encode()
        case _, bytes():
            return value
        case _:
            return _NOTHING


async def _victim(
    raw: asyncpg.Connection, table: Table, case: Case, where: str | None
) -> Sequence[Any]:
    named = ", ".join(f'"{key.name}"' for key in table.primary_key)
    condition = where or spared(table)
    found = await raw.fetchval(f'SELECT count(*) FROM "{table.name}" WHERE {condition}')
    behind = f"WHERE {condition} {ordered(table, case, found)}" if found else "LIMIT 1"
    row = await raw.fetchrow(f'SELECT {named} FROM "{table.name}" {behind}')
    assert row is not None, f"the home has no row in {table.name}"
    return tuple(row)


async def _write(
    raw: asyncpg.Connection, table: Table, column: Column[Any], value: object, row: Sequence[Any]
) -> bool:
    """Write a value. Return ``False`` if the column cannot hold it, or already had it."""
    wanted = "$1::bytea::text" if isinstance(column.type, Text) else "$1"
    keys = [f'"{key.name}" = ${at}' for at, key in enumerate(table.primary_key, 2)]
    sql = (
        f'UPDATE "{table.name}" SET "{column.name}" = {wanted} '
        f'WHERE {" AND ".join(keys)} AND "{column.name}" IS DISTINCT FROM {wanted}'
    )
    try:
        done: str = await raw.execute(sql, value, *row)
    except (asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError):
        return False
    return done == "UPDATE 1"


def _complaint(table: Table, column: Column[Any], value: object) -> str | None:
    """Return why the schema rejects a value, according to types and bounds."""
    if value is None:
        return None if column.nullable else f"NULL value in {table.name}.{column.name}"
    if isinstance(column.type, Text) and isinstance(value, bytes):
        try:
            value.decode()
        except UnicodeDecodeError:
            return f"no text in {table.name}.{column.name}"
    least, largest = column.info.get(RANGE, (None, None))
    if least is not None and isinstance(value, int) and not least <= value <= largest:
        return f"{value} in {table.name}.{column.name}"
    return None
