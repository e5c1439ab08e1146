"""The last commit of a node in steady time.

Revision ID: 0023
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Integer

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("node", Column("steady_at", BigInteger().with_variant(Integer(), "sqlite")))
