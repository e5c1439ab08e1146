"""The table ``note``, and columns for the browser and the last use of a session.

Revision ID: 0007
"""

from __future__ import annotations

from alembic import op

from aioflow.store.tables import execute_script

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table and the columns. The browsers of earlier sessions are unknown."""
    execute_script(revision, op.get_bind())
