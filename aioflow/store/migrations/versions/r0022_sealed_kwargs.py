"""What the method behind a wait is called with is sealed, as the trigger's fields are.

The column stays as it is. What lies in it unsealed from before does not open, and its task says
``undecryptable``; a program that knows no such seal refuses the database.

Revision ID: 0022
"""

from __future__ import annotations

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change no table."""
