"""Check and migration of a database schema.

Alembic migrates and is imported only if there is something to migrate. An empty SQLite file gets
the final schema at once, from ``migrations/<revision>.sql``.
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


def sqlite_script() -> str | None:
    """Return the script that creates schema ``HEAD`` in an empty SQLite file.

    The script contains its own transaction. Without a script, the schema is created by migration.
    """
    path = _SCRIPTS / f"{HEAD}.sql"
    return path.read_text(encoding="utf-8") if path.exists() else None


def upgrade(connection: sqlalchemy.Connection, vault: Vault | None = None) -> None:
    """Migrate the schema to ``HEAD`` in the open transaction.

    Args:
        connection: The database.
        vault: Encrypts values that older revisions stored in plain text. Not needed for an empty
            database.
    """
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.runtime.migration import MigrationContext, RevisionStep
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)

    def steps(revision: Any, context: MigrationContext) -> list[RevisionStep]:
        # As in Alembic's own recipe for running without an env.py. There is no public name.
        return script._upgrade_revs(HEAD, revision)  # noqa: SLF001

    with EnvironmentContext(config, script, fn=steps, destination_rev=HEAD) as environment:
        environment.configure(connection=connection, version_table=REVISION_TABLE, vault=vault)
        environment.run_migrations()
