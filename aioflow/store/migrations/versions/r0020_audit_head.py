"""Where the audit ends, sealed.

Revision ID: 0020
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, LargeBinary

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "audit_head",
        Column("head_no", _NUMBER, primary_key=True, autoincrement=False),
        Column("sealed", LargeBinary(), nullable=False),
        sqlite_strict=True,
    )
