"""The index for counting runs by DAG, state and cause.

Revision ID: 0006
"""

from __future__ import annotations

from alembic import op

from aioflow.store.tables import execute_script

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index."""
    execute_script(revision, op.get_bind())
