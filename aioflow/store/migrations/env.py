"""Alembic's environment. It migrates in the transaction that ``store.tables`` has opened."""

from __future__ import annotations

from alembic import context

from aioflow.store.tables import REVISION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=REVISION_TABLE,
)
context.run_migrations()
