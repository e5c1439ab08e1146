"""The tables of accounts, tokens and sessions, and of the audit log; see ``tables``."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, Table

from aioflow.store.columns import blob, instant, key, number, small, state, text
from aioflow.store.tables import metadata

__all__ = ("account", "api_token", "audit", "audit_head", "login")

_LAST_ROLE = 2

account = Table(
    "account",
    metadata,
    key("account_no"),
    text("name", CheckConstraint("length(name) <= 250")),
    blob("secret"),
    state(_LAST_ROLE, "role"),
    small("is_disabled"),
    instant("created_at"),
    instant("changed_at"),
    sqlite_strict=True,
)
Index("account_by_name", account.c.name, unique=True)

api_token = Table(
    "api_token",
    metadata,
    key("token_no"),
    text("name", CheckConstraint("length(name) <= 250")),
    blob("digest"),
    state(_LAST_ROLE, "role"),
    blob("scopes", null=True),
    instant("created_at"),
    text("created_by"),
    number("expires_at", null=True),
    instant("revoked_at", null=True),
    instant("last_used_at", null=True),
    sqlite_strict=True,
)
Index("api_token_by_digest", api_token.c.digest, unique=True)

login = Table(
    "login",
    metadata,
    key("login_no"),
    text("name", CheckConstraint("length(name) <= 250")),
    blob("digest"),
    instant("created_at"),
    number("expires_at"),
    text("address"),
    sqlite_strict=True,
)
Index("login_by_digest", login.c.digest, unique=True)

audit = Table(
    "audit",
    metadata,
    key("audit_no"),
    instant("at"),
    text("actor"),
    text("role"),
    text("action"),
    text("target"),
    text("address"),
    small("is_refused"),
    text("code", null=True),
    text("before", null=True),
    text("after", null=True),
    blob("previous"),
    blob("digest"),
    sqlite_strict=True,
)

audit_head = Table(
    "audit_head",
    metadata,
    key("head_no"),
    blob("encrypted"),
    sqlite_strict=True,
)
