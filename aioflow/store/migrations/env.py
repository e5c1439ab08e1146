"""Runs migrations within the transaction that ``store.schema`` has opened."""

from __future__ import annotations

from alembic import context

from aioflow.store.schema import REVISION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=REVISION_TABLE,
)
context.run_migrations()
