"""Named events, and runs that a task of another one has made.

Revision ID: 0003
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, CheckConstraint, Column, Integer, LargeBinary, Text, text

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Make the table and the column."""
    op.add_column("run", Column("caller", _NUMBER, nullable=True))
    op.create_table(
        "named_event",
        Column("event_no", _NUMBER, primary_key=True, autoincrement=False),
        Column("name", Text(), CheckConstraint("length(name) <= 250"), nullable=False),
        Column("key", Text(), CheckConstraint("length(key) <= 250"), nullable=True),
        Column("data", LargeBinary(), nullable=False),
        Column("at", _NUMBER, nullable=False),
        Column("run_no", _NUMBER, nullable=True),
        Column("request", Text(), CheckConstraint("length(request) <= 250"), nullable=True),
        sqlite_strict=True,
    )
    op.create_index("named_event_by_name", "named_event", ["name", "event_no"])
    requested = text("request IS NOT NULL")
    op.create_index(
        "named_event_by_request",
        "named_event",
        ["name", "request"],
        unique=True,
        sqlite_where=requested,
        postgresql_where=requested,
    )
