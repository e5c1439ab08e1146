"""Who is let in: accounts, tokens, sessions; and the audit.

Revision ID: 0018
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, CheckConstraint, Column, Integer, LargeBinary, SmallInteger, Text

__all__ = ("branch_labels", "depends_on", "down_revision", "revision", "upgrade")

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_SMALL = SmallInteger().with_variant(Integer(), "sqlite")


def _key(name: str) -> Column[int]:
    return Column(name, _NUMBER, primary_key=True, autoincrement=False)


def _name() -> Column[str]:
    return Column("name", Text(), CheckConstraint("length(name) <= 250"), nullable=False)


def _role() -> Column[int]:
    return Column("role", _SMALL, CheckConstraint("role BETWEEN 0 AND 2"), nullable=False)


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "account",
        _key("account_no"),
        _name(),
        Column("secret", LargeBinary(), nullable=False),
        _role(),
        Column("is_disabled", _SMALL, nullable=False),
        Column("created_at", _NUMBER, nullable=False),
        Column("changed_at", _NUMBER, nullable=False),
        sqlite_strict=True,
    )
    op.create_index("account_by_name", "account", ["name"], unique=True)
    op.create_table(
        "api_token",
        _key("token_no"),
        _name(),
        Column("digest", LargeBinary(), nullable=False),
        _role(),
        Column("scopes", LargeBinary()),
        Column("created_at", _NUMBER, nullable=False),
        Column("created_by", Text(), nullable=False),
        Column("expires_at", _NUMBER),
        Column("revoked_at", _NUMBER),
        Column("last_used_at", _NUMBER),
        sqlite_strict=True,
    )
    op.create_index("api_token_by_digest", "api_token", ["digest"], unique=True)
    op.create_table(
        "login",
        _key("login_no"),
        _name(),
        Column("digest", LargeBinary(), nullable=False),
        Column("created_at", _NUMBER, nullable=False),
        Column("expires_at", _NUMBER, nullable=False),
        Column("address", Text(), nullable=False),
        sqlite_strict=True,
    )
    op.create_index("login_by_digest", "login", ["digest"], unique=True)
    _make_audit()


def _make_audit() -> None:
    op.create_table(
        "audit",
        _key("audit_no"),
        Column("at", _NUMBER, nullable=False),
        *(
            Column(name, Text(), nullable=False)
            for name in ("actor", "role", "action", "target", "address")
        ),
        Column("is_refused", _SMALL, nullable=False),
        *(Column(name, Text()) for name in ("code", "before", "after")),
        Column("previous", LargeBinary(), nullable=False),
        Column("digest", LargeBinary(), nullable=False),
        sqlite_strict=True,
    )
