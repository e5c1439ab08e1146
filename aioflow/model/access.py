"""Authentication and authorization: roles, accounts, tokens, sessions and the audit log."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, TypeAlias

import msgspec

from aioflow.model.timestamps import Timestamp

__all__ = (
    "EVERY_ENTRY",
    "HOME",
    "LINK",
    "AccountRow",
    "Actor",
    "AuditEntry",
    "AuditFilter",
    "AuditHead",
    "AuditRow",
    "CallerKind",
    "Role",
    "SessionRow",
    "TokenRow",
    "audit_entry",
    "caller_name",
    "told",
)

HOME = "home"
"""The name of a caller that uses the home's token file or socket. No account may have this name."""

LINK = "link:"
"""Prefix of the name of a caller who has only a signed link."""

_LONGEST = 500
"""Maximum length of an audited text, in characters."""

CallerKind: TypeAlias = Literal["home", "token", "session"]


class Role(IntEnum):
    """The role of a caller. Each role includes the permissions of all lower roles."""

    VIEWER = 0
    OPERATOR = 1
    ADMIN = 2

    @property
    def label(self) -> str:
        """The name in JSON, logs and the web UI."""
        return self.name.lower()


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """The author of a change, for the audit log.

    Attributes:
        address: The client's address; empty over the home's socket.
    """

    name: str
    role: Role
    address: str = ""


class AccountRow(msgspec.Struct, frozen=True, kw_only=True):
    """The account of a person who may log in.

    Attributes:
        secret: The encoded Argon2 hash of the password.
        groups: Names of groups that the account belongs to. Tasks may assign decisions to groups.
    """

    account_no: int
    name: str
    secret: bytes
    role: Role
    is_disabled: bool
    created_at: Timestamp
    changed_at: Timestamp
    groups: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"AccountRow({self.name!r} #{self.account_no})"  # it may be logged


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """An API token of a program.

    Attributes:
        digest: SHA-256 of the token. The token itself is not stored.
        scopes: The DAGs to which it applies; ``None`` for all.
        created_by: The name of its creator.
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


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A login session of the web UI. The row is deleted when the session ends.

    Attributes:
        name: The name of the account, or ``HOME``.
        digest: SHA-256 of the cookie's secret.
        address: The address from which it was opened.
        agent: The browser's description of itself (``User-Agent``), shortened.
        last_used_at: When it was last used, accurate to ten minutes; ``None`` for sessions from
            before this was recorded.
    """

    session_no: int
    name: str
    digest: bytes
    created_at: Timestamp
    expires_at: Timestamp
    address: str
    agent: str = ""
    last_used_at: Timestamp | None = None

    def __repr__(self) -> str:
        return f"LoginRow({self.name!r} #{self.session_no})"


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One audit entry: a change, or a denied attempt.

    Attributes:
        actor: Name of the caller; empty if unknown.
        role: Label of the caller's role; empty if unknown.
        action: ``noun.verb``, or the denied request: ``POST /api/v1/runs/{run_id}``.
        target: The object of the action.
        code: The error code of a denied attempt.
        before, after: Old and new value, omitted when long or secret.
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
    """One stored audit entry, chained to the previous entry.

    Attributes:
        previous: The digest of the previous entry; empty in the very first entry.
        digest: SHA-256 of ``previous`` and of the content of this entry.
    """

    audit_no: int
    at: Timestamp
    noted: AuditEntry
    previous: bytes
    digest: bytes


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Properties that an audit entry must have. An empty property matches every entry.

    Attributes:
        actor: A part of the name of the caller.
        action: An action, or its noun: ``run`` matches ``run.create``.
        target: A part of the target, or of the value after the change. For a new run, this value is
            its id.
        is_refused: Whether the attempt was denied; ``None`` for both.
        first, last: The entry was written at or after ``first``, and before ``last``.
    """

    actor: str = ""
    action: str = ""
    target: str = ""
    is_refused: bool | None = None
    first: Timestamp | None = None
    last: Timestamp | None = None


EVERY_ENTRY = AuditFilter()


class AuditHead(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the audit log. Stored encrypted, so that truncating the log requires the key.

    Attributes:
        written: Number of entries that were ever written; ``None`` if it is not known any more.
        erased: Number of entries that retention has deleted.
        erased_until: Number of the last deleted entry.
        last: The digest of the last entry.
    """

    written: int | None = 0
    erased: int = 0
    erased_until: int = -1
    last: bytes = b""


def caller_name(name: str, kind: CallerKind) -> str:
    """Return the name of a caller for the audit. It distinguishes tokens from users."""
    return f"token:{name}" if kind == "token" else name


def told(text: str) -> str:
    """Return an untrusted text in a short and printable form, for the audit."""
    short = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in short)


def audit_entry(actor: Actor, action: str, target: str) -> AuditEntry:
    """Return the audit entry of an action."""
    return AuditEntry(
        actor=actor.name,
        role=actor.role.label,
        action=action,
        target=told(target),
        address=actor.address,
    )
