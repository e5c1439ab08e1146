"""Runs that are being deleted.

Revision ID: 0012
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Integer

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "deletion",
        Column("run_no", _NUMBER, primary_key=True, autoincrement=False),
        Column("at", _NUMBER, nullable=False),
        sqlite_strict=True,
    )
