"""Selection of the store for a database URL. Imported late, because it imports SQLAlchemy."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from aioflow.crypto import Vault
from aioflow.errors import SettingsError
from aioflow.store import Durability, Store

__all__ = ("opened",)


def opened(
    url: str,
    vault: Vault,
    *,
    durability: Durability,
    exclusive: bool,
    migrate: bool,
    home: Path | None,
) -> AbstractAsyncContextManager[Store]:
    """Return a context manager that opens a database; see ``open_store``."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as exc:
        raise SettingsError("the database URL cannot be understood") from exc
    match parsed.get_backend_name():
        case "sqlite":
            if not parsed.database or parsed.database == ":memory:":
                raise SettingsError("the database URL names no file: sqlite:///path/to/file")
            from aioflow.store.sqlite import open_sqlite

            path = Path(parsed.database)
            return open_sqlite(path, vault, durability=durability, exclusive=exclusive, home=home)
        case "postgresql":
            try:
                from aioflow.store.postgres import open_postgres
            except ModuleNotFoundError as exc:
                if exc.name != "asyncpg":
                    raise
                hint = "pip install 'aioflow-engine[postgres]'"
                raise SettingsError(f"PostgreSQL needs asyncpg: {hint}") from exc

            return open_postgres(
                parsed, vault, durability=durability, exclusive=exclusive, migrate=migrate
            )
        case other:
            raise SettingsError(
                f"the database URL names {other!r}; sqlite:///path and postgresql://… work"
            )
