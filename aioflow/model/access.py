"""Who may ask for what: roles, accounts of people, tokens of programs, sessions, the audit."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, TypeAlias

import msgspec

from aioflow.model.timestamps import Timestamp

__all__ = (
    "HOME",
    "AccountRow",
    "Actor",
    "AuditEntry",
    "AuditHead",
    "AuditRow",
    "CallerKind",
    "LoginRow",
    "Role",
    "TokenRow",
    "audit_entry",
    "caller_name",
    "told",
)

HOME = "home"
"""Who has the home's token file, or opens its socket. No account has that name."""

_LONGEST = 500
"""Characters of what is told of one thing."""

CallerKind: TypeAlias = Literal["home", "token", "session"]


class Role(IntEnum):
    """What somebody may do; each role may do all that those before it may."""

    VIEWER = 0
    OPERATOR = 1
    ADMIN = 2

    @property
    def label(self) -> str:
        """The name in JSON, logs and the page."""
        return self.name.lower()


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks for a change, as the audit tells it.

    Attributes:
        address: Where from; empty over the home's socket.
    """

    name: str
    role: Role
    address: str = ""


class AccountRow(msgspec.Struct, frozen=True, kw_only=True):
    """A person who may log in.

    Attributes:
        secret: Argon2's own text of the password's hash.
    """

    account_no: int
    name: str
    secret: bytes
    role: Role
    is_disabled: bool
    created_at: Timestamp
    changed_at: Timestamp

    def __repr__(self) -> str:
        return f"AccountRow({self.name!r} #{self.account_no})"  # it may come to stand in a log


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a program shows instead of a password.

    Attributes:
        digest: SHA-256 of the token, which itself nobody keeps.
        scopes: The DAGs it is good for; ``None`` for all.
        created_by: The name of who made it.
    """

    token_no: int
    name: str
    digest: bytes
    role: Role
    scopes: tuple[str, ...] | None
    created_at: Timestamp
    created_by: str
    expires_at: Timestamp | None = None
    revoked_at: Timestamp | None = None
    last_used_at: Timestamp | None = None

    def __repr__(self) -> str:
        return f"TokenRow({self.name!r} #{self.token_no})"


class LoginRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the page. Its end deletes it.

    Attributes:
        name: Of the account, or ``HOME``.
        digest: SHA-256 of what the cookie holds.
        address: Where it was begun from.
    """

    login_no: int
    name: str
    digest: bytes
    created_at: Timestamp
    expires_at: Timestamp
    address: str

    def __repr__(self) -> str:
        return f"LoginRow({self.name!r} #{self.login_no})"


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What the audit says of one change, or of one that was refused.

    Attributes:
        actor: A name; empty where nobody knows who it was.
        role: By its label; empty likewise.
        action: ``noun.verb``, or what the refused request was: ``POST /api/v1/runs/{run_id}``.
        target: What it was done to.
        code: Of the refusal.
        before, after: What stood there, where that is short and no secret.
    """

    actor: str
    role: str
    action: str
    target: str
    address: str
    is_refused: bool = False
    code: str | None = None
    before: str | None = None
    after: str | None = None


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the audit, bound to the line before.

    Attributes:
        previous: The digest of the line before; empty in the first one of all.
        digest: SHA-256 of that, and of what this line says.
    """

    audit_no: int
    at: Timestamp
    noted: AuditEntry
    previous: bytes
    digest: bytes


class AuditHead(msgspec.Struct, frozen=True, kw_only=True):
    """Where the audit ends. It is kept sealed, so that nobody without the key cuts lines off.

    Attributes:
        written: How many lines there ever were; ``None`` if that is not known any more.
        erased: How many of them have gone because they were old.
        erased_until: The number of the last of these.
        last: The digest of the last line of all.
    """

    written: int | None = 0
    erased: int = 0
    erased_until: int = -1
    last: bytes = b""


def caller_name(name: str, kind: CallerKind) -> str:
    """Return who somebody is, as the audit tells it: a token is never taken for a user."""
    return f"token:{name}" if kind == "token" else name


def told(text: str) -> str:
    """Return what the audit says of a text that anybody may have sent: short, and printable."""
    short = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in short)


def audit_entry(actor: Actor, action: str, target: str) -> AuditEntry:
    """Return what the audit says of what somebody has done."""
    return AuditEntry(
        actor=actor.name,
        role=actor.role.label,
        action=action,
        target=told(target),
        address=actor.address,
    )
