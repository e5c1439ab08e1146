"""Rows and queries of accounts, tokens, sessions and the audit log.

Passwords, tokens and cookies are stored as digests. Only the head of the audit chain is encrypted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, func, literal_column, or_, select

from aioflow.core.state.accounts import CHAIN_LOST
from aioflow.crypto import Vault
from aioflow.model.access import (
    EVERY_ENTRY,
    AccountRow,
    AuditEntry,
    AuditFilter,
    AuditHead,
    AuditRow,
    Role,
    SessionRow,
    TokenRow,
)
from aioflow.model.batch import Batch
from aioflow.store import rows, tables
from aioflow.store.contains import Contains
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.rows import last_of_each, pack
from aioflow.store.selects import literal, number, text

__all__ = (
    "ACCESS_ROWS",
    "AccessReader",
    "access_fields",
    "account_row",
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
_BY_NO = select(tables.audit).where(tables.audit.c.audit_no == number("audit_no"))
_HEAD = select(tables.audit_head.c.encrypted)
_HEAD_NO = 0

ACCESS_ROWS: tuple[Select[Any], ...] = (_ACCOUNTS, _TOKENS, _SESSIONS, _LAST, _HEAD)
"""The queries that a restart runs, in the order that ``access_fields`` expects."""


@cache
def _audit_page(*given: str) -> Select[Any]:
    """Return the statement for a page of the audit log.

    Args:
        given: Names of the parameters besides ``limit``. With ``after``, entries are in ascending
            order of number.
    """
    audit_no = _audit_table.c.audit_no
    page = select(_audit_table).limit(number("limit"))
    page = page.order_by(audit_no if "after" in given else audit_no.desc())
    return page.where(*(_CONDITIONS[name] for name in given))


_audit_table = tables.audit
_of_noun = text("noun")
_CONDITIONS: Mapping[str, ColumnElement[bool]] = {
    "before": _audit_table.c.audit_no < number("before"),
    "after": _audit_table.c.audit_no > number("after"),
    "actor": Contains(_audit_table.c.actor, text("actor")),
    "action": _audit_table.c.action == text("action"),
    "noun": func.substr(_audit_table.c.action, literal(1), func.length(_of_noun)) == _of_noun,
    "target": or_(
        Contains(_audit_table.c.target, text("target")),
        Contains(func.coalesce(_audit_table.c.after, literal_column("''")), text("target")),
    ),
    "is_refused": _audit_table.c.is_refused == number("is_refused"),
    "first": _audit_table.c.at >= number("first"),
    "last": _audit_table.c.at < number("last"),
}


def _audit_parameters(wanted: AuditFilter, before: int | None) -> dict[str, Any]:
    is_noun = "." not in wanted.action and wanted.action.islower()
    named: dict[str, Any] = {
        "before": before,
        "actor": wanted.actor or None,
        "action": None if is_noun else wanted.action or None,
        "noun": f"{wanted.action}." if is_noun else None,
        "target": wanted.target or None,
        "is_refused": None if wanted.is_refused is None else int(wanted.is_refused),
        "first": wanted.first,
        "last": wanted.last,
    }
    return {name: value for name, value in named.items() if value is not None}


def access_fields(
    found: Sequence[Sequence[rows.Values]], vault: Vault, healthy: Callable[..., list[Any]]
) -> dict[str, Any]:
    """Return the snapshot fields that the results of ``ACCESS_ROWS`` fill.

    Args:
        healthy: Converts the result of a statement to rows, and omits damaged rows.
    """
    of_accounts, of_tokens, of_sessions, last, head = found
    return {
        "accounts": healthy(_ACCOUNTS, account_row, of_accounts),
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
    """Return the sessions that are created or used."""
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


def account_row(values: rows.Values) -> AccountRow:
    """Return a row of ``account``."""
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
    number, name, digest, created_at, expires_at, address, agent, last_used_at = values
    return SessionRow(
        session_no=number,
        name=name,
        digest=bytes(digest),
        created_at=created_at,
        expires_at=expires_at,
        address=address,
        agent=agent or "",
        last_used_at=last_used_at,
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
        return await self._all(account_row, _ACCOUNTS)

    async def list_tokens(self) -> list[TokenRow]:
        """See ``Store``."""
        return await self._all(token_row, _TOKENS)

    async def list_sessions(self) -> list[SessionRow]:
        """See ``Store``."""
        return await self._all(_session, _SESSIONS)

    async def list_audit(
        self,
        wanted: AuditFilter = EVERY_ENTRY,
        *,
        before: int | None = None,
        limit: int = 100,
    ) -> list[AuditRow]:
        """See ``Store``."""
        named = _audit_parameters(wanted, before)
        return await self._all(_audit, _audit_page(*named), limit=limit, **named)

    async def find_audit(self, audit_no: int) -> AuditRow | None:
        """See ``Store``."""
        return await self._one(_audit, _BY_NO, audit_no=audit_no)

    async def read_audit(self, after: int = -1, limit: int = 1000) -> list[AuditRow]:
        """See ``Store``."""
        return await self._all(_audit, _audit_page("after"), after=after, limit=limit)

    async def find_audit_head(self) -> AuditHead:
        """See ``Store``."""
        last = await self._all(tuple, _LAST)
        return _head(last, await self._all(tuple, _HEAD), self._vault)
