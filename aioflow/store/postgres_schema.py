"""The PostgreSQL database: whose it is, how it gets its tables, and what its errors mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import sqlalchemy
import sqlalchemy.exc
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from aioflow.crypto import Vault
from aioflow.errors import (
    BatchRefused,
    ForeignDatabase,
    SchemaMismatch,
    StoreUnavailable,
    StrangeDatabase,
)
from aioflow.store.schema import REVISION_TABLE, check_revision, upgrade

__all__ = ("CONNECT_SECONDS", "check_schema", "prepare", "translated")

CONNECT_SECONDS = 10

# Two nodes that meet an empty database: one makes the tables, the other waits for it.
_MIGRATION_LOCK = int.from_bytes(b"aiof", "big")


async def prepare(url: URL, *, migrate: bool, vault: Vault | None = None) -> None:
    """Make sure that the database is ours and current; an empty one gets its tables.

    Args:
        url: The database.
        migrate: Bring an older schema up to date.
        vault: See ``upgrade``.

    Raises:
        ForeignDatabase: If there are tables that aioflow did not make.
        SchemaMismatch: If the schema is newer, or older and may not be migrated.
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
                await connection.run_sync(upgrade, vault)
    finally:
        await engine.dispose()


async def check_schema(url: URL) -> None:
    """Make sure that the database is ours and current; nothing is written.

    Raises:
        ForeignDatabase: If aioflow did not make it.
        SchemaMismatch: If the schema is another one than this program knows.
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
    """Return ``empty``, ``older`` or ``current``."""
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

# By SQLSTATE class: what a batch holds cannot be stored.
_REFUSED = ("22", "23", "54")
# Tables, columns or rights are not there any more.
_STRANGE = ("42", "0A", "XX")
# A wrong password, or no such database.
_NOT_OURS = ("28", "3D")


# The driver's internal error comes, too, where the server hung up on an idle connection.
_DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise what the errors of PostgreSQL mean for the caller of the store."""
    try:
        yield
    except sqlalchemy.exc.DBAPIError as exc:
        raise _meaning(where, _original(exc)) from exc
    except _DRIVER_ERRORS as exc:
        raise _meaning(where, exc) from exc
    except UnicodeDecodeError as exc:
        raise StrangeDatabase(f"{where} is damaged: one of its texts is not UTF-8: {exc}") from exc


def _original(exc: sqlalchemy.exc.DBAPIError) -> BaseException:
    # SQLAlchemy wraps what its own adapter had wrapped.
    return (exc.orig and exc.orig.__cause__) or exc


def _meaning(where: str, exc: BaseException) -> Exception:
    if isinstance(exc, asyncpg.PostgresError):
        state = exc.sqlstate or ""
        if state.startswith(_REFUSED):
            return BatchRefused(f"the database refused the batch: {exc}")
        if state.startswith(_STRANGE):
            return StrangeDatabase(f"{where} is not the database it was: {exc}")
    # The driver's own word for a value it cannot encode.
    if isinstance(exc, asyncpg.InterfaceError) and isinstance(exc, ValueError):
        return BatchRefused(f"the database refused the batch: {exc}")
    detail = str(exc) or type(exc).__name__
    away = StoreUnavailable(f"the database {where} cannot be used: {detail}")
    away.may_pass = not (getattr(exc, "sqlstate", None) or "").startswith(_NOT_OURS)
    return away
