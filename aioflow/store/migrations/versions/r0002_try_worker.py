"""The table ``try_worker``: in which remote worker a start of a task ran.

Revision ID: 0002
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKeyConstraint,
    Integer,
    PrimaryKeyConstraint,
    Text,
)

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table. Starts before the migration have no row in it."""
    number = BigInteger().with_variant(Integer(), "sqlite")
    op.create_table(
        "try_worker",
        Column("task_no", number, nullable=False),
        Column("start_no", number, nullable=False),
        Column("run_no", number, nullable=False),
        Column("executor", Text(), nullable=False),
        Column("host", Text(), nullable=False),
        Column("worker", Text(), nullable=False),
        PrimaryKeyConstraint("task_no", "start_no"),
        ForeignKeyConstraint(["task_no"], ["task.task_no"]),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
