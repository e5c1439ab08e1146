"""Which schema a database has, and how it gets the one this program knows.

Alembic does the migrating and is imported only when there is something to migrate. An empty SQLite
file gets at once what all revisions together would make: ``migrations/<revision>.sql``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy

from aioflow.crypto import Vault
from aioflow.errors import ForeignDatabase, SchemaMismatch

__all__ = (
    "HEAD",
    "PRODUCT",
    "REVISION_TABLE",
    "check_revision",
    "sqlite_script",
    "upgrade",
)

HEAD = "0023"
"""The revision this program works with. Revisions are numbered in order."""

PRODUCT = "aioflow"
"""What the row ``product`` of the table ``meta`` says."""

REVISION_TABLE = "alembic_version"

_SCRIPTS = Path(__file__).parent / "migrations"


def check_revision(where: str, product: str | None, revision: str | None) -> bool:
    """Return whether the schema is current; if not, it can be migrated.

    Args:
        where: The database, for messages.
        product: The row of that name, if there is one.
        revision: What Alembic noted, if it noted anything.

    Raises:
        ForeignDatabase: If aioflow did not make it.
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


def sqlite_script() -> str | None:
    """Return what gives an empty SQLite file the schema ``HEAD``, in a transaction of its own.

    A revision that has none is reached by migrating.
    """
    path = _SCRIPTS / f"{HEAD}.sql"
    return path.read_text(encoding="utf-8") if path.exists() else None


def upgrade(connection: sqlalchemy.Connection, vault: Vault | None = None) -> None:
    """Bring the schema up to ``HEAD`` inside the transaction that is open.

    Args:
        connection: The database.
        vault: Seals what older revisions stored unsealed. An empty database needs none.
    """
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.runtime.migration import MigrationContext, RevisionStep
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)

    def steps(revision: Any, context: MigrationContext) -> list[RevisionStep]:
        # Alembic's own recipe for running without an env.py; there is no public name.
        return script._upgrade_revs(HEAD, revision)  # noqa: SLF001

    with EnvironmentContext(config, script, fn=steps, destination_rev=HEAD) as environment:
        environment.configure(connection=connection, version_table=REVISION_TABLE, vault=vault)
        environment.run_migrations()
