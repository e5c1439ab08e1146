"""The first schema: ``0001.sqlite.sql`` or ``0001.postgresql.sql``.

Both files are frozen: every later change of ``store.tables`` needs its own revision.

Revision ID: 0001
"""

from __future__ import annotations

from alembic import op

from aioflow.store.tables import execute_script

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table, and mark the database as created by aioflow."""
    execute_script(revision, op.get_bind())
