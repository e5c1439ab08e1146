"""What people want to know of a node, whether it takes work, and which runs ended badly.

Revision ID: 0019
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, Text, text

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0019"
down_revision = "0017"
branch_labels = None
depends_on = None

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Make the table, the columns and the index."""
    op.create_table(
        "drained",
        Column("node_no", _NUMBER, primary_key=True, autoincrement=False),
        Column("at", _NUMBER, nullable=False),
        sqlite_strict=True,
    )
    for column in (
        Column("started_at", _NUMBER),
        Column("seen_at", _NUMBER),
        Column("version", Text()),
        Column("pid", _NUMBER),
        Column("host", Text()),
    ):
        op.add_column("node", column)
    unsuccessful = text("state > 2")
    op.create_index(
        "run_unsuccessful",
        "run",
        ["state", "run_no"],
        sqlite_where=unsuccessful,
        postgresql_where=unsuccessful,
    )
