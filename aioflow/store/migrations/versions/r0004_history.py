"""The table ``history``: how many runs and tasks ended per hour, and how long they took.

Revision ID: 0004
"""

from __future__ import annotations

from alembic import op

from aioflow.store.tables import execute_script

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, and count the runs that have ended, without their durations."""
    execute_script(revision, op.get_bind())
