"""Up to where the slots of a DAG's schedule were dealt with, and told where they were late.

Revision ID: 0014
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Integer

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Add the columns; what they say of older rows, ``next_run_at`` does."""
    op.add_column("dag", Column("last_slot", _NUMBER, nullable=True))
    op.add_column("dag", Column("told_late", _NUMBER, nullable=True))
