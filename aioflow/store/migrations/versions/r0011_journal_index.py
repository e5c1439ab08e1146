"""Removal of the journal's index by commit number in SQLite, where only one node writes.

Each commit had to write a page of the index. PostgreSQL keeps the index, because several nodes
write there.

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
