"""Triggers that start runs of DAGs, and their events.

Revision ID: 0016
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
    SmallInteger,
    Text,
    text,
)

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_SMALL = SmallInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "dag_trigger",
        Column("trigger_no", _NUMBER, primary_key=True, autoincrement=False),
        Column("dag_id", Text(), CheckConstraint("length(dag_id) <= 250"), nullable=False),
        Column("class_path", Text(), nullable=False),
        Column("kwargs", LargeBinary(), nullable=False),
        Column("since", _NUMBER, nullable=False),
        Column("sequence", _NUMBER, nullable=False),
        Column("event", LargeBinary(), nullable=True),
        Column("event_key", Text(), nullable=True),
        Column("held", LargeBinary(), nullable=True),
        Column("run_no", _NUMBER, nullable=True),
        sqlite_strict=True,
    )
    op.create_index("dag_trigger_by_dag", "dag_trigger", ["dag_id"], unique=True)
    op.create_table(
        "dag_event",
        Column("event_no", _NUMBER, primary_key=True, autoincrement=False),
        Column("trigger_no", _NUMBER, ForeignKey("dag_trigger.trigger_no"), nullable=False),
        Column("sequence", _NUMBER, nullable=False),
        Column("key", Text(), nullable=True),
        Column("at", _NUMBER, nullable=False),
        Column("fate", _SMALL, CheckConstraint("fate BETWEEN 0 AND 4"), nullable=False),
        Column("run_no", _NUMBER, nullable=True),
        Column("reason", Text(), nullable=True),
        Column("asset", Text(), nullable=True),
        Column("data", LargeBinary(), nullable=True),
        sqlite_strict=True,
    )
    held = text("fate = 1")
    op.create_index(
        "dag_event_held", "dag_event", ["event_no"], sqlite_where=held, postgresql_where=held
    )
    op.create_index("dag_event_by_place", "dag_event", ["trigger_no", "sequence"], unique=True)
    keyed = text('"key" IS NOT NULL')
    op.create_index(
        "dag_event_by_key",
        "dag_event",
        ["trigger_no", "key"],
        unique=True,
        sqlite_where=keyed,
        postgresql_where=keyed,
    )
