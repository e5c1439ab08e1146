"""No index of the journal by commit number in SQLite, where one node writes.

Each commit wrote a page of it. PostgreSQL keeps the index, because there several nodes write.

Revision ID: 0011
"""

from __future__ import annotations

from alembic import op

from aioflow.store.tables import execute_script

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the index in SQLite."""
    execute_script(revision, op.get_bind())
