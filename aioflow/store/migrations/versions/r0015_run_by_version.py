"""Runs are found by their version: one that no run has may go.

Revision ID: 0015
"""

from __future__ import annotations

from alembic import op

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the index."""
    op.create_index("run_by_version", "run", ["version"])
