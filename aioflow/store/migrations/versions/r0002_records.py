"""Records of durable calls, streams of events, and triggers that belong to one.

Revision ID: 0002
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Text,
)

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_SMALL = SmallInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Make the table and the columns."""
    op.add_column("trigger_wait", Column("ordinal", _NUMBER, nullable=False, server_default="-1"))
    op.add_column("trigger_wait", Column("branch", _NUMBER, nullable=False, server_default="0"))
    op.add_column("trigger_wait", Column("window", _NUMBER, nullable=False, server_default="0"))
    op.add_column("trigger_wait", Column("failure", LargeBinary(), nullable=True))
    op.add_column(
        "trigger_wait", Column("timeout_method", Text(), nullable=False, server_default="")
    )
    op.create_table(
        "event",
        Column("trigger_no", _NUMBER, nullable=False),
        Column("sequence", _NUMBER, nullable=False),
        Column("run_no", _NUMBER, nullable=False),
        Column("key", Text(), nullable=True),
        Column("payload", LargeBinary(), nullable=True),
        PrimaryKeyConstraint("trigger_no", "sequence"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("event_by_run", "event", ["run_no"])
    op.create_table(
        "record",
        Column("task_no", _NUMBER, ForeignKey("task.task_no"), nullable=False),
        Column("ordinal", _NUMBER, nullable=False),
        Column("run_no", _NUMBER, nullable=False),
        Column("state", _SMALL, CheckConstraint("state BETWEEN 0 AND 2"), nullable=False),
        Column("kind", Text(), nullable=False),
        Column("name", Text(), nullable=False),
        Column("place", Text(), nullable=False),
        Column("answer", LargeBinary(), nullable=True),
        Column("failure", LargeBinary(), nullable=True),
        PrimaryKeyConstraint("task_no", "ordinal"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("record_by_run", "record", ["run_no"])
