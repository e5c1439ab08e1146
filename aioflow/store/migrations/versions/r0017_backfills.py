"""Backfills, and which run is of which.

Revision ID: 0017
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, CheckConstraint, Column, Integer, LargeBinary, Text, text

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Make the table, and name the backfill of a run."""
    op.create_table(
        "backfill",
        Column("backfill_no", _NUMBER, primary_key=True, autoincrement=False),
        Column("dag_id", Text(), CheckConstraint("length(dag_id) <= 250"), nullable=False),
        Column("first", _NUMBER, nullable=False),
        Column("last", _NUMBER, nullable=False),
        Column("reprocess", Text(), nullable=False),
        Column("max_active", _NUMBER, nullable=False),
        Column("is_reverse", _NUMBER, nullable=False),
        Column("state", Text(), nullable=False),
        Column("conf", LargeBinary()),
        Column("next_at", _NUMBER),
        Column("made", _NUMBER, nullable=False),
        Column("skipped", _NUMBER, nullable=False),
        Column("created_at", _NUMBER, nullable=False),
        Column("ended_at", _NUMBER),
        Column("failure", Text()),
        sqlite_strict=True,
    )
    running = text("state = 'running'")
    op.create_index(
        "backfill_running",
        "backfill",
        ["dag_id"],
        unique=True,
        sqlite_where=running,
        postgresql_where=running,
    )
    op.add_column("run", Column("backfill", _NUMBER))
    of_backfill = text("backfill IS NOT NULL")
    op.create_index(
        "run_by_backfill",
        "run",
        ["backfill", "run_no"],
        sqlite_where=of_backfill,
        postgresql_where=of_backfill,
    )
