"""Items that tasks give on before they have ended, and fan-outs that grow with them.

Revision ID: 0004
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
    SmallInteger,
)

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_SMALL = SmallInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Make the table and the column."""
    op.add_column(
        "expansion",
        Column(
            "is_open",
            _SMALL,
            CheckConstraint("is_open BETWEEN 0 AND 1"),
            nullable=False,
            server_default="0",
        ),
    )
    op.create_table(
        "stream_item",
        Column("task_no", _NUMBER, nullable=False),
        Column("item_index", _NUMBER, nullable=False),
        Column("run_no", _NUMBER, nullable=False),
        Column("payload", LargeBinary(), nullable=False),
        PrimaryKeyConstraint("task_no", "item_index"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("stream_item_by_run", "stream_item", ["run_no", "task_no"])
