"""The table ``try_worker``: the remote worker that each start of a task ran in.

Revision ID: 0002
"""

from __future__ import annotations

from alembic import op

from aioflow.store.tables import execute_script

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table. Starts before the migration have no row in the table."""
    execute_script(revision, op.get_bind())
