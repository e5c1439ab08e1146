"""Requests to clear tasks that came with an idempotency key, and what they were answered.

Revision ID: 0013
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    PrimaryKeyConstraint,
    Text,
)

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "clear_request",
        Column("run_no", _NUMBER, ForeignKey("run.run_no"), nullable=False),
        Column("key", Text(), CheckConstraint("length(key) <= 250"), nullable=False),
        Column("cleared", _NUMBER, nullable=False),
        PrimaryKeyConstraint("run_no", "key"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
