"""The table ``decision`` for human decisions, and columns for groups and for who started a run.

Revision ID: 0003
"""

from __future__ import annotations

from alembic import op

from aioflow.store.tables import execute_script

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table and the columns. It is unknown who started earlier runs."""
    execute_script(revision, op.get_bind())
