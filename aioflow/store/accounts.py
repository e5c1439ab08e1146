"""Rows and queries of accounts, tokens, sessions and the audit log.

Passwords, tokens and cookies are stored as digests. Only the head of the audit chain is encrypted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Select, literal_column, select

from aioflow.core.state.accounts import CHAIN_LOST
from aioflow.crypto import Vault
from aioflow.model.access import (
    AccountRow,
    AuditEntry,
    AuditHead,
    AuditRow,
    Role,
    SessionRow,
    TokenRow,
)
from aioflow.model.batch import Batch
from aioflow.store import rows, tables
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.rows import last_of_each, pack
from aioflow.store.selects import number

__all__ = (
    "ACCESS_ROWS",
    "AccessReader",
    "access_fields",
    "accounts",
    "audit_entries",
    "audit_head",
    "deleted_numbers",
    "sessions",
    "token_row",
    "tokens",
)

_texts = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_ended = msgspec.msgpack.Decoder(AuditHead).decode


_ACCOUNTS = select(tables.account).order_by(tables.account.c.name)
_TOKENS = select(tables.api_token).order_by(tables.api_token.c.token_no)
_SESSIONS = select(tables.session).order_by(tables.session.c.session_no)
_LAST = (
    select(tables.audit.c.audit_no)
    .order_by(tables.audit.c.audit_no.desc())
    .limit(literal_column("1"))
)
_HEAD = select(tables.audit_head.c.encrypted)
_HEAD_NO = 0

ACCESS_ROWS: tuple[Select[Any], ...] = (_ACCOUNTS, _TOKENS, _SESSIONS, _LAST, _HEAD)
"""The queries of a restart, in the order that ``access_fields`` expects."""


@cache
def _audit_page(*, before: bool, after: bool) -> Select[Any]:
    audit_no = tables.audit.c.audit_no
    page = select(tables.audit).limit(number("limit"))
    page = page.order_by(audit_no if after else audit_no.desc())
    if before:
        page = page.where(audit_no < number("before"))
    return page.where(audit_no > number("after")) if after else page


def access_fields(
    found: Sequence[Sequence[rows.Values]], vault: Vault, healthy: Callable[..., list[Any]]
) -> dict[str, Any]:
    """Return the snapshot fields that the results of ``ACCESS_ROWS`` fill.

    Args:
        healthy: Converts the result of a statement to rows, and omits damaged rows.
    """
    of_accounts, of_tokens, of_sessions, last, head = found
    return {
        "accounts": healthy(_ACCOUNTS, _account, of_accounts),
        "tokens": healthy(_TOKENS, token_row, of_tokens),
        "sessions": healthy(_SESSIONS, _session, of_sessions),
        "audit_head": _head(last, healthy(_HEAD, tuple, head) if head else head, vault),
    }


# ── rows of a batch ─────────────────────────────────────────────────────────────────────


def accounts(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the accounts that are created or changed."""

    def values(row: AccountRow) -> tuple[Any, ...]:
        plain = msgspec.structs.replace(row, is_disabled=int(row.is_disabled))
        groups = pack(row.groups) if row.groups else None
        return (*_plain_role(msgspec.structs.astuple(plain), 3)[:-1], groups)

    return [values(row) for row in last_of_each(batch.accounts, lambda row: row.account_no)]


def tokens(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the tokens that are created or changed."""

    def values(row: TokenRow) -> tuple[Any, ...]:
        number, name, digest, role, scopes, *rest = msgspec.structs.astuple(row)
        packed = None if scopes is None else pack(scopes)
        return (number, name, digest, int(role), packed, *rest)

    return [values(row) for row in last_of_each(batch.tokens, lambda row: row.token_no)]


def sessions(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the sessions that are created."""
    return [msgspec.structs.astuple(row) for row in batch.sessions]


def deleted_numbers(kind: str) -> Callable[[Batch, Vault], list[tuple[Any, ...]]]:
    """Return a function that lists the numbers of the deleted rows of a kind."""

    def numbers(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
        return [(number,) for number in getattr(batch, f"gone_{kind}")]

    return numbers


def audit_entries(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the new audit entries."""

    def values(row: AuditRow) -> tuple[Any, ...]:
        line = msgspec.structs.replace(row.noted, is_refused=int(row.noted.is_refused))
        return (row.audit_no, row.at, *msgspec.structs.astuple(line), row.previous, row.digest)

    return [values(row) for row in batch.audit]


def audit_head(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the current head of the audit chain, encrypted."""
    if batch.audit_head is None:
        return []
    encrypted = vault.encrypt(tables.audit_head.name, _HEAD_NO, pack(batch.audit_head))
    return [(_HEAD_NO, encrypted)]


def _plain_role(values: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return (*values[:place], int(values[place]), *values[place + 1 :])


# ── queries ─────────────────────────────────────────────────────────────────────────────


def _account(values: rows.Values) -> AccountRow:
    number, name, secret, role, is_disabled, created_at, changed_at, groups = values
    return AccountRow(
        account_no=number,
        name=name,
        secret=bytes(secret),
        role=Role(role),
        is_disabled=bool(is_disabled),
        created_at=created_at,
        changed_at=changed_at,
        groups=() if groups is None else _texts(groups),
    )


def token_row(values: rows.Values) -> TokenRow:
    """Return a row of ``api_token``."""
    number, name, digest, role, scopes, created_at, created_by, *instants = values
    expires_at, revoked_at, last_used_at = instants
    return TokenRow(
        token_no=number,
        name=name,
        digest=bytes(digest),
        role=Role(role),
        scopes=None if scopes is None else _texts(scopes),
        created_at=created_at,
        created_by=created_by,
        expires_at=expires_at,
        revoked_at=revoked_at,
        last_used_at=last_used_at,
    )


def _session(values: rows.Values) -> SessionRow:
    number, name, digest, created_at, expires_at, address = values
    return SessionRow(
        session_no=number,
        name=name,
        digest=bytes(digest),
        created_at=created_at,
        expires_at=expires_at,
        address=address,
    )


def _audit(values: rows.Values) -> AuditRow:
    number, at, actor, role, action, target, address, is_refused, code, *rest = values
    before, after, previous, digest = rest
    return AuditRow(
        audit_no=number,
        at=at,
        noted=AuditEntry(
            actor=actor,
            role=role,
            action=action,
            target=target,
            address=address,
            is_refused=bool(is_refused),
            code=code,
            before=before,
            after=after,
        ),
        previous=bytes(previous),
        digest=bytes(digest),
    )


def _head(last: Sequence[rows.Values], head: Sequence[rows.Values], vault: Vault) -> AuditHead:
    """Return the head of the audit chain; an empty head if there are no entries yet."""
    if not head:
        return AuditHead(written=None, last=CHAIN_LOST) if last else AuditHead()
    opened = vault.decrypt(tables.audit_head.name, _HEAD_NO, bytes(head[0][0]))
    try:
        return AuditHead(written=None, last=CHAIN_LOST) if opened is None else _ended(opened)
    except msgspec.MsgspecError:
        return AuditHead(written=None, last=CHAIN_LOST)


class AccessReader(QueryInterface):
    """The part of a store that reads accounts, tokens, sessions and the audit log."""

    _vault: Vault

    async def list_accounts(self) -> list[AccountRow]:
        """See ``Store``."""
        return await self._all(_account, _ACCOUNTS)

    async def list_tokens(self) -> list[TokenRow]:
        """See ``Store``."""
        return await self._all(token_row, _TOKENS)

    async def list_sessions(self) -> list[SessionRow]:
        """See ``Store``."""
        return await self._all(_session, _SESSIONS)

    async def list_audit(self, *, before: int | None = None, limit: int = 100) -> list[AuditRow]:
        """See ``Store``."""
        page = _audit_page(before=before is not None, after=False)
        cursor = {} if before is None else {"before": before}
        return await self._all(_audit, page, limit=limit, **cursor)

    async def read_audit(self, after: int = -1, limit: int = 1000) -> list[AuditRow]:
        """See ``Store``."""
        page = _audit_page(before=False, after=True)
        return await self._all(_audit, page, after=after, limit=limit)

    async def find_audit_head(self) -> AuditHead:
        """See ``Store``."""
        last = await self._all(tuple, _LAST)
        return _head(last, await self._all(tuple, _HEAD), self._vault)
