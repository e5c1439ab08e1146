"""Support for several nodes on one database.

Adds the identities and terms of nodes, and identifies a journal row by node and commit.

A term is the epoch of one claim. All nodes take their terms from one counter, the row ``term`` of
``number_lease``, so no two claims have the same term. ``journal.seq`` orders the commits of all
nodes.

Revision ID: 0008
"""

from __future__ import annotations

from alembic import op

from aioflow.store.tables import execute_script

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the counters, and continue the numbers of the only node so far."""
    execute_script(revision, op.get_bind())
