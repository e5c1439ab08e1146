"""What children of fan-outs are called.

Revision ID: 0011
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, ForeignKey, Integer, Text

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0011"
down_revision = "0005"
branch_labels = None
depends_on = None

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "map_label",
        Column(
            "task_no", _NUMBER, ForeignKey("task.task_no"), primary_key=True, autoincrement=False
        ),
        Column("run_no", _NUMBER, nullable=False),
        Column("label", Text(), nullable=False),
        sqlite_strict=True,
    )
