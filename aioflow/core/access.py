"""Accounts, tokens and sessions: made, changed and ended as people ask; how many there may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from aioflow.core.transaction import Transaction
from aioflow.errors import (
    AccountExists,
    AccountRefused,
    LoginFailed,
    TokenExists,
    UnknownAccount,
    UnknownLogin,
    UnknownToken,
    WrongPassword,
)
from aioflow.model.access import HOME, AccountRow, LoginRow, Role, TokenRow, caller_name
from aioflow.protocol.requests import (
    AccessRequest,
    CreateAccount,
    CreateToken,
    DeleteAccount,
    EndLogin,
    Note,
    NoteUse,
    OpenLogin,
    RevokeToken,
    SetAccount,
)

__all__ = ("ACCOUNTS", "LOGINS", "TOKENS", "answer_of_access")

ACCOUNTS = 1_000
TOKENS = 1_000
"""Those that are good for nothing any more make room, the oldest first."""

LOGINS = 100
"""Sessions of one account; the oldest makes room."""


def answer_of_access(
    request: AccessRequest, draft: Transaction
) -> AccountRow | TokenRow | LoginRow | int | None:
    """Do what is asked.

    Raises:
        RequestError: If it cannot be done; nothing has changed then.
    """
    match request:
        case CreateAccount():
            return _create_account(request, draft)
        case SetAccount():
            return _set_account(request, draft)
        case DeleteAccount(name=name):
            row = _account(name, draft)
            _end_logins(name, draft)
            draft.access.drop_account(row)
            return _cap_tokens(name, None, draft)
        case OpenLogin():
            return _open_login(request, draft)
        case EndLogin(login_no=number):
            login = draft.memory.admitted.logins.get(number)
            if login is None:
                raise UnknownLogin(number)
            draft.access.drop_login(login)
            return login
        case CreateToken():
            return _create_token(request, draft)
        case RevokeToken(token_no=number):
            return _revoke_token(number, draft)
        case NoteUse():
            _note_use(request, draft)
        case Note(lines=lines):
            for line in lines:
                draft.access.note(line)
    return None


# ── accounts ────────────────────────────────────────────────────────────────────────────


def _account(name: str, draft: Transaction) -> AccountRow:
    row = draft.memory.admitted.account(name)
    if row is None:
        raise UnknownAccount(name)
    return row


def _create_account(request: CreateAccount, draft: Transaction) -> AccountRow:
    admitted = draft.memory.admitted
    if request.name == HOME or admitted.account(request.name) is not None:
        raise AccountExists(request.name)
    if len(admitted.accounts) >= ACCOUNTS:
        raise AccountRefused(f"there are {ACCOUNTS} users already; delete one first")
    row = AccountRow(
        account_no=draft.numbers.take(),
        name=request.name,
        secret=request.secret,
        role=request.role,
        is_disabled=False,
        created_at=draft.now,
        changed_at=draft.now,
    )
    draft.access.put_account(row)
    return row


def _set_account(request: SetAccount, draft: Transaction) -> AccountRow:
    """Change an account: whoever has a session of it logs in again, and is what it is now."""
    was = _account(request.name, draft)
    if request.seen is not None and (was.secret != request.seen or was.is_disabled):
        raise WrongPassword
    row = replace(
        was,
        secret=was.secret if request.secret is None else request.secret,
        role=was.role if request.role is None else request.role,
        is_disabled=was.is_disabled if request.is_disabled is None else request.is_disabled,
    )
    if row == was:
        return was
    _end_logins(row.name, draft, but=request.keeps)
    if row.is_disabled or row.role < was.role:
        _cap_tokens(row.name, None if row.is_disabled else row.role, draft)
    row = replace(row, changed_at=draft.now)
    draft.access.put_account(row)
    return row


# ── sessions ────────────────────────────────────────────────────────────────────────────


def _end_logins(name: str, draft: Transaction, *, but: int | None = None) -> None:
    for login in [row for row in draft.memory.admitted.logins.values() if row.name == name]:
        if login.login_no != but:
            draft.access.drop_login(login)


def _open_login(request: OpenLogin, draft: Transaction) -> LoginRow:
    """Begin a session, unless the account is another one than its password was compared with."""
    admitted = draft.memory.admitted
    if request.name != HOME:
        account = admitted.account(request.name)
        if account is None or account.is_disabled or account.secret != request.seen:
            raise LoginFailed
    for row in list(admitted.logins.values()):
        if row.expires_at <= draft.now or row.digest == request.replaces:
            draft.access.drop_login(row)
    own = sorted(
        (row for row in admitted.logins.values() if row.name == request.name),
        key=lambda row: row.login_no,
    )
    for row in own[: max(0, len(own) + 1 - LOGINS)]:
        draft.access.drop_login(row)
    login = LoginRow(
        login_no=draft.numbers.take(),
        name=request.name,
        digest=request.digest,
        created_at=draft.now,
        expires_at=request.expires_at,
        address=request.address,
    )
    draft.access.put_login(login)
    return login


# ── tokens ──────────────────────────────────────────────────────────────────────────────


def _is_over(row: TokenRow, draft: Transaction) -> bool:
    return row.revoked_at is not None or (
        row.expires_at is not None and row.expires_at <= draft.now
    )


def _cap_tokens(name: str, role: Role | None, draft: Transaction) -> int:
    """Leave the tokens somebody has made this role at most; ``None`` revokes them.

    Returns:
        How many have changed.
    """
    capped = 0
    for row in list(_made_by(name, draft.memory.admitted.tokens)):
        if _is_over(row, draft) or (role is not None and row.role <= role):
            continue
        capped += 1
        if role is None:
            draft.access.put_token(replace(row, revoked_at=draft.now))
        else:
            draft.access.put_token(replace(row, role=role))
    return capped


def _made_by(name: str, tokens: Mapping[int, TokenRow]) -> Iterator[TokenRow]:
    """Yield the tokens that somebody has made, himself or with one of these tokens."""
    is_his = {name: True}
    for _, row in sorted(tokens.items()):
        # A name is free again once its token is over: who made what is told by the one before.
        is_his[caller_name(row.name, "token")] = found = is_his.get(row.created_by, False)
        if found:
            yield row


def _create_token(request: CreateToken, draft: Transaction) -> TokenRow:
    tokens = draft.memory.admitted.tokens
    over = sorted(number for number, row in tokens.items() if _is_over(row, draft))
    if any(row.name == request.name and not _is_over(row, draft) for row in tokens.values()):
        raise TokenExists(request.name)
    if len(tokens) - len(over) >= TOKENS:
        raise AccountRefused(f"there are {TOKENS} tokens already; revoke one first")
    for number in over[: max(0, len(tokens) + 1 - TOKENS)]:
        draft.access.drop_token(tokens[number])
    row = TokenRow(
        token_no=draft.numbers.take(),
        name=request.name,
        digest=request.digest,
        role=request.role,
        scopes=request.scopes,
        created_at=draft.now,
        created_by=request.created_by,
        expires_at=request.expires_at,
    )
    draft.access.put_token(row)
    return row


def _revoke_token(number: int, draft: Transaction) -> TokenRow:
    row = draft.memory.admitted.tokens.get(number)
    if row is None:
        raise UnknownToken(number)
    if row.revoked_at is None:
        row = replace(row, revoked_at=draft.now)
        draft.access.put_token(row)
    return row


def _note_use(request: NoteUse, draft: Transaction) -> None:
    for number, at in request.uses:
        row = draft.memory.admitted.tokens.get(number)
        if row is not None and at > (row.last_used_at or 0):
            draft.access.put_token(replace(row, last_used_at=at))
