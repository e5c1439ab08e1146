"""Check and migration of a database schema.

Alembic migrates and is imported only if there is something to migrate. An empty SQLite file gets
the schema of ``HEAD`` at once, from ``migrations/<HEAD>.sqlite.sql``.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy

from aioflow.errors import ForeignDatabase, SchemaMismatch

__all__ = (
    "HEAD",
    "PRODUCT",
    "REVISION_TABLE",
    "check_revision",
    "sqlite_script",
    "statements",
    "upgrade",
)

HEAD = "0001"
"""The revision this program works with. Revisions are numbered in order."""

PRODUCT = "aioflow"
"""The value of the row ``product`` in the table ``meta``."""

REVISION_TABLE = "alembic_version"

_SCRIPTS = Path(__file__).parent / "migrations"


def check_revision(where: str, product: str | None, revision: str | None) -> bool:
    """Return whether the schema is current. Otherwise it is older and can be migrated.

    Args:
        where: The database, for messages.
        product: The value of the row ``product``, if it exists.
        revision: The revision recorded by Alembic, if any.

    Raises:
        ForeignDatabase: If aioflow did not create it.
        SchemaMismatch: If it is newer than this program.
    """
    if product != PRODUCT or revision is None:
        raise ForeignDatabase(f"{where} holds a database that aioflow did not make")
    if not revision.isdigit() or int(revision) > int(HEAD):
        raise SchemaMismatch(
            f"{where} has schema {revision}, this aioflow knows {HEAD} at most; "
            "use the newer version of aioflow that made it"
        )
    return revision == HEAD


def statements(revision: str, dialect: str) -> list[str]:
    """Return the statements that create the schema of a revision in an empty database.

    There are such statements for the first revision, and for SQLite also for ``HEAD``.

    Args:
        revision: A revision.
        dialect: ``sqlite`` or ``postgresql``.
    """
    text = (_SCRIPTS / f"{revision}.{dialect}.sql").read_text(encoding="utf-8")
    return [statement for part in text.split(";\n") if (statement := part.strip())]


def sqlite_script() -> str:
    """Return the script that creates schema ``HEAD`` in an empty SQLite file.

    The script contains its own transaction, and the table in which Alembic records the revision.
    """
    columns = f"version_num VARCHAR(32) NOT NULL, CONSTRAINT {REVISION_TABLE}_pkc PRIMARY KEY"
    recorded = (
        f"CREATE TABLE {REVISION_TABLE} ({columns} (version_num))",
        f"INSERT INTO {REVISION_TABLE} VALUES ('{HEAD}')",
    )
    script = ("BEGIN", *recorded, *statements(HEAD, "sqlite"), "COMMIT")
    return "".join(f"{statement};\n" for statement in script)


def upgrade(connection: sqlalchemy.Connection) -> None:
    """Migrate the schema to ``HEAD`` in the open transaction."""
    import alembic.command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    alembic.command.upgrade(config, HEAD)
