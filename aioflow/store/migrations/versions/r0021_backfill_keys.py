"""Which request began a backfill.

Revision ID: 0021
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Text

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Name its idempotency key, one backfill of a DAG for each."""
    op.add_column("backfill", Column("key", Text()))
    op.create_index("backfill_by_key", "backfill", ["dag_id", "key"], unique=True)
