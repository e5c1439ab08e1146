"""The tables of who is let in, and of the audit; see ``tables``."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
)

from aioflow.store.tables import metadata

__all__ = ("account", "api_token", "audit", "audit_head", "login")

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_SMALL = SmallInteger().with_variant(Integer(), "sqlite")

account = Table(
    "account",
    metadata,
    Column("account_no", _NUMBER, primary_key=True, autoincrement=False),
    Column("name", Text(), CheckConstraint("length(name) <= 250"), nullable=False),
    Column("secret", LargeBinary(), nullable=False),
    Column("role", _SMALL, CheckConstraint("role BETWEEN 0 AND 2"), nullable=False),
    Column("is_disabled", _SMALL, nullable=False),
    Column("created_at", _NUMBER, nullable=False),
    Column("changed_at", _NUMBER, nullable=False),
    sqlite_strict=True,
)
Index("account_by_name", account.c.name, unique=True)

api_token = Table(
    "api_token",
    metadata,
    Column("token_no", _NUMBER, primary_key=True, autoincrement=False),
    Column("name", Text(), CheckConstraint("length(name) <= 250"), nullable=False),
    Column("digest", LargeBinary(), nullable=False),
    Column("role", _SMALL, CheckConstraint("role BETWEEN 0 AND 2"), nullable=False),
    Column("scopes", LargeBinary()),
    Column("created_at", _NUMBER, nullable=False),
    Column("created_by", Text(), nullable=False),
    Column("expires_at", _NUMBER),
    Column("revoked_at", _NUMBER),
    Column("last_used_at", _NUMBER),
    sqlite_strict=True,
)
Index("api_token_by_digest", api_token.c.digest, unique=True)

login = Table(
    "login",
    metadata,
    Column("login_no", _NUMBER, primary_key=True, autoincrement=False),
    Column("name", Text(), CheckConstraint("length(name) <= 250"), nullable=False),
    Column("digest", LargeBinary(), nullable=False),
    Column("created_at", _NUMBER, nullable=False),
    Column("expires_at", _NUMBER, nullable=False),
    Column("address", Text(), nullable=False),
    sqlite_strict=True,
)
Index("login_by_digest", login.c.digest, unique=True)

audit = Table(
    "audit",
    metadata,
    Column("audit_no", _NUMBER, primary_key=True, autoincrement=False),
    Column("at", _NUMBER, nullable=False),
    Column("actor", Text(), nullable=False),
    Column("role", Text(), nullable=False),
    Column("action", Text(), nullable=False),
    Column("target", Text(), nullable=False),
    Column("address", Text(), nullable=False),
    Column("is_refused", _SMALL, nullable=False),
    Column("code", Text()),
    Column("before", Text()),
    Column("after", Text()),
    Column("previous", LargeBinary(), nullable=False),
    Column("digest", LargeBinary(), nullable=False),
    sqlite_strict=True,
)

audit_head = Table(
    "audit_head",
    metadata,
    Column("head_no", _NUMBER, primary_key=True, autoincrement=False),
    Column("sealed", LargeBinary(), nullable=False),
    sqlite_strict=True,
)
