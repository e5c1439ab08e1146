"""Ownership and schema of a PostgreSQL database, and translation of its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import sqlalchemy
import sqlalchemy.exc
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from aioflow.errors import (
    BatchRefused,
    ForeignDatabase,
    SchemaMismatch,
    StoreUnavailable,
    StrangeDatabase,
)
from aioflow.store.tables import REVISION_TABLE, check_revision, upgrade_schema

__all__ = (
    "CONNECT_SECONDS",
    "check_schema",
    "prepare_database",
    "translated_errors",
)

CONNECT_SECONDS = 10

# If two nodes find an empty database, one creates the tables and the other waits for it.
_MIGRATION_LOCK = int.from_bytes(b"aiof", "big")


async def prepare_database(url: URL, *, migrate: bool) -> None:
    """Check that aioflow created the database and its schema is current. Fill an empty database.

    Args:
        url: The database.
        migrate: Allow the migration of an older schema.

    Raises:
        ForeignDatabase: If there are tables that aioflow did not create.
        SchemaMismatch: If the schema is newer, or if it is older and must not be migrated.
    """
    where = url.render_as_string(hide_password=True)
    engine = _engine(url)
    try:
        async with engine.begin() as connection:
            if await connection.run_sync(_state, where) == "current":
                return
        async with engine.begin() as connection:
            await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            state = await connection.run_sync(_state, where)
            if state == "older" and not migrate:
                raise SchemaMismatch(
                    f"{where} has an older schema; stop all daemons that use it, then run "
                    "`aioflow db migrate`"
                )
            if state != "current":
                await connection.run_sync(upgrade_schema)
    finally:
        await engine.dispose()


async def check_schema(url: URL) -> None:
    """Check that aioflow created the database and its schema is current. Write nothing.

    Raises:
        ForeignDatabase: If aioflow did not create the database.
        SchemaMismatch: If the schema is not the one that this version of aioflow needs.
    """
    where = url.render_as_string(hide_password=True)
    engine = _engine(url)
    try:
        async with engine.begin() as connection:
            state = await connection.run_sync(_state, where)
    finally:
        await engine.dispose()
    if state == "empty":
        raise ForeignDatabase(f"{where} holds no tables of aioflow")
    if state == "older":
        raise SchemaMismatch(f"{where} has an older schema; run `aioflow db migrate`")


def _engine(url: URL) -> AsyncEngine:
    return create_async_engine(
        url.set(drivername="postgresql+asyncpg"),
        poolclass=NullPool,
        connect_args={"timeout": CONNECT_SECONDS},
    )


def _state(connection: sqlalchemy.Connection, where: str) -> str:
    """Return the state of the schema: ``empty``, ``older`` or ``current``."""
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        raise StrangeDatabase(f"{where} is encoded as {encoding}; create it with UTF8")
    names = set(sqlalchemy.inspect(connection).get_table_names())
    if not names:
        return "empty"
    product = revision = None
    if {"meta", REVISION_TABLE} <= names:
        product = connection.exec_driver_sql(
            "SELECT value FROM meta WHERE name = 'product'"
        ).scalar()
        revision = connection.exec_driver_sql(f"SELECT version_num FROM {REVISION_TABLE}").scalar()
    return "current" if check_revision(where, product, revision) else "older"


# ── errors ──────────────────────────────────────────────────────────────────────────────

# SQLSTATE classes of values that cannot be stored.
_REFUSED = ("22", "23", "54")
# SQLSTATE classes of missing tables, columns or privileges.
_STRANGE = ("42", "0A", "XX")
# SQLSTATE classes of a wrong password or a missing database.
_NOT_OURS = ("28", "3D")


# The driver also raises its internal error if the server has closed an idle connection.
_DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)


@contextmanager
def translated_errors(where: str) -> Iterator[None]:
    """Translate errors of PostgreSQL to errors of the store."""
    try:
        yield
    except sqlalchemy.exc.DBAPIError as exc:
        raise _meaning(where, _original(exc)) from exc
    except _DRIVER_ERRORS as exc:
        raise _meaning(where, exc) from exc
    except UnicodeDecodeError as exc:
        raise StrangeDatabase(f"{where} is damaged: one of its texts is not UTF-8: {exc}") from exc


def _original(exc: sqlalchemy.exc.DBAPIError) -> BaseException:
    # SQLAlchemy wraps an error that its own adapter has already wrapped.
    return (exc.orig and exc.orig.__cause__) or exc


def _meaning(where: str, exc: BaseException) -> Exception:
    if isinstance(exc, asyncpg.PostgresError):
        state = exc.sqlstate or ""
        if state.startswith(_REFUSED):
            return BatchRefused(f"the database refused the batch: {exc}")
        if state.startswith(_STRANGE):
            return StrangeDatabase(f"{where} is a different database: {exc}")
    # The driver raises this error for a value that it cannot encode.
    if isinstance(exc, asyncpg.InterfaceError) and isinstance(exc, ValueError):
        return BatchRefused(f"the database refused the batch: {exc}")
    detail = str(exc) or type(exc).__name__
    away = StoreUnavailable(f"the database {where} cannot be used: {detail}")
    away.may_pass = not (getattr(exc, "sqlstate", None) or "").startswith(_NOT_OURS)
    return away
