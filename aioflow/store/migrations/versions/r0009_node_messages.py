"""The table for queries of standbys to the active node, and for the answers.

The rows live for seconds. On PostgreSQL the table is unlogged: a crash of the server empties it,
and a query without an answer ends at its deadline. SQLite has one node and no such table.

Revision ID: 0009
"""

from __future__ import annotations

from alembic import op

from aioflow.store.tables import execute_script

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    execute_script(revision, op.get_bind())
