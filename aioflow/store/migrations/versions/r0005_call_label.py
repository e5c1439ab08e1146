"""The column ``record.label``: the author's description of a durable call.

Revision ID: 0005
"""

from __future__ import annotations

from alembic import op

from aioflow.store.tables import execute_script

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Calls before the migration have no label."""
    execute_script(revision, op.get_bind())
