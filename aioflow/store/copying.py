"""Copies a database to another one, and exports a database, row by row as stored.

Encrypted values stay encrypted: a copy needs the key of the home that it came from.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import Table
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from aioflow.crypto import Vault
from aioflow.errors import SettingsError, StoreUnavailable
from aioflow.store import open_store
from aioflow.store.tables import LAST_SEQ, account, meta, result_chunk

__all__ = ("copy", "export")

_ROWS_AT_ONCE = 500
_CHUNKS_AT_ONCE = 8

_CONTINUE_JOURNAL = sqlalchemy.text(
    "SELECT setval('journal_seq', (SELECT coalesce(max(seq), 0) + 1 FROM journal"
    f" WHERE seq <= {LAST_SEQ}), false)"
)

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


async def copy(source: str, target: str, vault: Vault, home: Path | None = None) -> dict[str, int]:
    """Copy a database into an empty one. Return the number of rows by table.

    Either all rows are copied or none. No daemon may use either database during the copy.

    Args:
        home: The home of both databases.

    Raises:
        SettingsError: If the target is not a URL, is the source, or has rows.
        HomeBusy: If a daemon serves one of the databases.
        StoreError: If one of the databases cannot be read or written.
    """
    try:
        is_same = make_url(source) == make_url(target)
    except (ArgumentError, ValueError) as exc:
        raise SettingsError("the database URL cannot be understood") from exc
    if is_same:
        raise SettingsError("a database cannot be copied to itself")
    counts: dict[str, int] = {}
    async with (
        open_store(source, vault, home=home),
        open_store(target, vault, migrate=True, home=home),
        _opened(source) as source_connection,
        _opened(target) as target_connection,
    ):
        for table in _tables():
            if await _has_rows(target_connection, table):
                raise SettingsError(
                    f"the database to copy to has rows ({table.name}); name an empty one"
                )
        for table in _tables():
            counts[table.name] = await _copy_table(table, source_connection, target_connection)
        await _copy_mark(source_connection, target_connection)
        if make_url(target).get_backend_name() == "postgresql":
            await target_connection.execute(_CONTINUE_JOURNAL)
        await target_connection.commit()
    return counts


def _tables() -> list[Table]:
    """Return the tables in an order that respects the foreign keys, without ``meta``.

    Each database has its own ``meta``.
    """
    return [table for table in account.metadata.sorted_tables if table is not meta]


async def _has_rows(connection: AsyncConnection, table: Table) -> bool:
    found = await connection.execute(sqlalchemy.select(sqlalchemy.literal(1)).select_from(table))
    return found.first() is not None


async def _copy_mark(
    source_connection: AsyncConnection, target_connection: AsyncConnection
) -> None:
    """Copy the mark of the database in external storage, so that the copy finds its results."""
    is_mark = meta.c.name == "storage"
    found = await source_connection.execute(sqlalchemy.select(meta).where(is_mark))
    for row in found.mappings():
        await target_connection.execute(sqlalchemy.delete(meta).where(is_mark))
        await target_connection.execute(sqlalchemy.insert(meta), [dict(row)])


async def _copy_table(
    table: Table, source_connection: AsyncConnection, target_connection: AsyncConnection
) -> int:
    count = 0
    async for rows in _pages(table, source_connection):
        await target_connection.execute(sqlalchemy.insert(table), rows)
        count += len(rows)
    return count


async def _pages(table: Table, connection: AsyncConnection) -> AsyncIterator[list[dict[str, Any]]]:
    result = await connection.stream(sqlalchemy.select(*table.columns))
    try:
        async for page in result.mappings().partitions(
            _CHUNKS_AT_ONCE if table is result_chunk else _ROWS_AT_ONCE
        ):
            yield [dict(row) for row in page]
    finally:
        await result.close()


async def export(source: str, put: Callable[[dict[str, Any]], None]) -> None:
    """Export every row in one committed state, as JSON values. A daemon may be running.

    Bytes become ``{"base64": ...}``. The order of the tables respects the foreign keys.

    Raises:
        StoreError: If the database cannot be read.
    """
    async with _opened(source, is_reading=True) as connection:
        for table in _tables():
            async for rows in _pages(table, connection):
                for row in rows:
                    values = {name: _in_json(value) for name, value in row.items()}
                    put({"table": table.name, **values})


def _in_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    return value


@asynccontextmanager
async def _opened(url: str, *, is_reading: bool = False) -> AsyncIterator[AsyncConnection]:
    """Open a connection in a transaction. It is rolled back unless the caller commits it."""
    parsed = make_url(url)
    where = parsed.render_as_string(hide_password=True)
    engine = create_async_engine(_with_driver(parsed), poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            if parsed.get_backend_name() == "sqlite":
                # The driver itself would begin a transaction only at the first write.
                await connection.exec_driver_sql("BEGIN" if is_reading else "BEGIN IMMEDIATE")
            elif is_reading:
                await connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection
    except (OSError, DBAPIError) as exc:
        raise StoreUnavailable(f"{where}: {exc}") from exc
    finally:
        await engine.dispose()


def _with_driver(url: URL) -> URL:
    return url.set(drivername=_DRIVERS[url.get_backend_name()])
