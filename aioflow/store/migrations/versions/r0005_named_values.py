"""Secrets, connections and variables, sealed.

Revision ID: 0005
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Text,
)

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "named_value",
        Column(
            "kind",
            Text(),
            CheckConstraint("kind IN ('secret', 'connection', 'variable')"),
            nullable=False,
        ),
        Column("name", Text(), CheckConstraint("length(name) <= 250"), nullable=False),
        Column("value_no", _NUMBER, nullable=False),
        Column("at", _NUMBER, nullable=False),
        Column("sealed", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("kind", "name"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
