"""Arguments of the methods that resume waits are sealed, as the fields of their triggers are.

Revision ID: 0022
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

from aioflow.store.rows import encrypted_kwargs

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_WAITS = text("SELECT trigger_no FROM trigger_wait WHERE next_kwargs IS NOT NULL")
_READ = text("SELECT next_kwargs FROM trigger_wait WHERE trigger_no = :number")
_WRITE = text("UPDATE trigger_wait SET next_kwargs = :sealed WHERE trigger_no = :number")


def upgrade() -> None:
    """Seal what is stored unsealed, one wait at a time: each may have a mebibyte."""
    connection = op.get_bind()
    vault = op.get_context().opts["vault"]
    for (number,) in connection.execute(_WAITS).all():
        plain = connection.execute(_READ, {"number": number}).scalar_one()
        _, sealed = encrypted_kwargs(vault, number, None, plain)
        connection.execute(_WRITE, {"number": number, "sealed": sealed})
