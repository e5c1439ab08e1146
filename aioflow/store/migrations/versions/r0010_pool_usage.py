"""The table ``pool_usage``: how full each pool was in each minute of the last day.

Revision ID: 0010
"""

from __future__ import annotations

from alembic import op

from aioflow.store.tables import execute_script

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    execute_script(revision, op.get_bind())
