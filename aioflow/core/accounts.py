"""Accounts, tokens and sessions: requests to create, change and revoke them, and their limits."""

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
    UnknownSession,
    UnknownToken,
    WrongPassword,
)
from aioflow.model.access import (
    HOME,
    AccountRow,
    Role,
    SessionRow,
    TokenRow,
    caller_name,
)
from aioflow.protocol.requests import (
    AccessRequest,
    CreateAccount,
    CreateToken,
    DeleteAccount,
    EndOtherSessions,
    EndSession,
    Note,
    NoteUse,
    OpenSession,
    RevokeToken,
    SetAccount,
)

__all__ = (
    "ACCOUNTS",
    "SESSIONS",
    "TOKENS",
    "answer_of_access",
)

ACCOUNTS = 1_000
TOKENS = 1_000
"""Maximum number of tokens. At the limit, the oldest revoked and expired tokens are deleted."""

SESSIONS = 100
"""Maximum number of sessions per account. Beyond it, a new session replaces the oldest one."""


def answer_of_access(
    request: AccessRequest, tx: Transaction
) -> AccountRow | TokenRow | SessionRow | int | None:
    """Execute a request about accounts, tokens or sessions.

    Raises:
        RequestError: If the request is refused. Nothing has changed then.
    """
    match request:
        case CreateAccount():
            return _create_account(request, tx)
        case SetAccount():
            return _set_account(request, tx)
        case DeleteAccount(name=name):
            row = _account(name, tx)
            _end_sessions(name, tx)
            tx.accounts.drop_account(row)
            return _cap_tokens(name, None, tx)
        case OpenSession() | EndSession() | EndOtherSessions():
            return _answer_of_sessions(request, tx)
        case CreateToken():
            return _create_token(request, tx)
        case RevokeToken(token_no=number):
            return _revoke_token(number, tx)
        case NoteUse():
            _note_use(request, tx)
        case Note(lines=lines):
            for line in lines:
                tx.accounts.note(line)
    return None


# ── accounts ────────────────────────────────────────────────────────────────────────────


def _account(name: str, tx: Transaction) -> AccountRow:
    row = tx.memory.accounts.account(name)
    if row is None:
        raise UnknownAccount(name)
    return row


def _create_account(request: CreateAccount, tx: Transaction) -> AccountRow:
    admitted = tx.memory.accounts
    if request.name == HOME or admitted.account(request.name) is not None:
        raise AccountExists(request.name)
    if len(admitted.accounts) >= ACCOUNTS:
        raise AccountRefused(f"there are {ACCOUNTS} users already; delete one first")
    row = AccountRow(
        account_no=tx.numbers.take(),
        name=request.name,
        secret=request.secret,
        role=request.role,
        is_disabled=False,
        created_at=tx.now,
        changed_at=tx.now,
        groups=request.groups,
    )
    tx.accounts.put_account(row)
    return row


def _set_account(request: SetAccount, tx: Transaction) -> AccountRow:
    """Change an account, and end its sessions except the session that ``keeps`` names.

    If the account is disabled, its tokens are revoked. If its new role is lower, its tokens are
    limited to that role.
    """
    was = _account(request.name, tx)
    if request.seen is not None and (was.secret != request.seen or was.is_disabled):
        raise WrongPassword
    row = replace(
        was,
        secret=was.secret if request.secret is None else request.secret,
        role=was.role if request.role is None else request.role,
        is_disabled=was.is_disabled if request.is_disabled is None else request.is_disabled,
        groups=was.groups if request.groups is None else request.groups,
    )
    if row == was:
        return was
    _end_sessions(row.name, tx, but=request.keeps)
    if row.is_disabled or row.role < was.role:
        _cap_tokens(row.name, None if row.is_disabled else row.role, tx)
    row = replace(row, changed_at=tx.now)
    tx.accounts.put_account(row)
    return row


# ── sessions ────────────────────────────────────────────────────────────────────────────


def _answer_of_sessions(
    request: OpenSession | EndSession | EndOtherSessions, tx: Transaction
) -> SessionRow | int:
    match request:
        case OpenSession():
            return _open_session(request, tx)
        case EndSession(session_no=number):
            session = tx.memory.accounts.sessions.get(number)
            if session is None:
                raise UnknownSession(number)
            tx.accounts.drop_session(session)
            return session
        case EndOtherSessions(name=name, keeps=keeps):
            return _end_sessions(name, tx, but=keeps)


def _end_sessions(name: str, tx: Transaction, *, but: int | None = None) -> int:
    """End the sessions of an account except session ``but``. Return how many have ended."""
    sessions = tx.memory.accounts.sessions.values()
    ended = [row for row in sessions if row.name == name and row.session_no != but]
    for session in ended:
        tx.accounts.drop_session(session)
    return len(ended)


def _open_session(request: OpenSession, tx: Transaction) -> SessionRow:
    """Open a session, unless the account changed since its password was verified."""
    admitted = tx.memory.accounts
    if request.name != HOME:
        account = admitted.account(request.name)
        if account is None or account.is_disabled or account.secret != request.seen:
            raise LoginFailed
    for row in list(admitted.sessions.values()):
        if row.expires_at <= tx.now or _is_replaced(row, request):
            tx.accounts.drop_session(row)
    own = sorted(
        (row for row in admitted.sessions.values() if row.name == request.name),
        key=lambda row: row.session_no,
    )
    for row in own[: max(0, len(own) + 1 - SESSIONS)]:
        tx.accounts.drop_session(row)
    session = SessionRow(
        session_no=tx.numbers.take(),
        name=request.name,
        digest=request.digest,
        created_at=tx.now,
        expires_at=request.expires_at,
        address=request.address,
        agent=request.agent,
        last_used_at=tx.now,
    )
    tx.accounts.put_session(session)
    return session


def _is_replaced(row: SessionRow, request: OpenSession) -> bool:
    """Return whether a new session replaces this earlier session of the same browser."""
    if row.digest == request.replaces:
        return True
    if request.replaces_unused_since is None or not request.agent:
        return False
    same = (row.name, row.address, row.agent) == (request.name, request.address, request.agent)
    return same and (row.last_used_at or row.created_at) < request.replaces_unused_since


# ── tokens ──────────────────────────────────────────────────────────────────────────────


def _is_over(row: TokenRow, tx: Transaction) -> bool:
    return row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= tx.now)


def _cap_tokens(name: str, role: Role | None, tx: Transaction) -> int:
    """Limit the tokens that an account has created to this role, or revoke them if it is ``None``.

    Returns:
        The number of changed tokens.
    """
    capped = 0
    for row in list(_tokens_made_by(name, tx.memory.accounts.tokens)):
        if _is_over(row, tx) or (role is not None and row.role <= role):
            continue
        capped += 1
        if role is None:
            tx.accounts.put_token(replace(row, revoked_at=tx.now))
        else:
            tx.accounts.put_token(replace(row, role=role))
    return capped


def _tokens_made_by(name: str, tokens: Mapping[int, TokenRow]) -> Iterator[TokenRow]:
    """Yield the tokens that an account has created, directly or through tokens that it created."""
    is_his = {name: True}
    for _, row in sorted(tokens.items()):
        # The name of an ended token may be used again. Tokens are visited in the order of their
        # creation, so ``created_by`` refers to the latest earlier token with that name.
        is_his[caller_name(row.name, "token")] = found = is_his.get(row.created_by, False)
        if found:
            yield row


def _create_token(request: CreateToken, tx: Transaction) -> TokenRow:
    tokens = tx.memory.accounts.tokens
    over = sorted(number for number, row in tokens.items() if _is_over(row, tx))
    if any(row.name == request.name and not _is_over(row, tx) for row in tokens.values()):
        raise TokenExists(request.name)
    if len(tokens) - len(over) >= TOKENS:
        raise AccountRefused(f"there are {TOKENS} tokens already; revoke one first")
    for number in over[: max(0, len(tokens) + 1 - TOKENS)]:
        tx.accounts.drop_token(tokens[number])
    row = TokenRow(
        token_no=tx.numbers.take(),
        name=request.name,
        digest=request.digest,
        role=request.role,
        scopes=request.scopes,
        created_at=tx.now,
        created_by=request.created_by,
        expires_at=request.expires_at,
    )
    tx.accounts.put_token(row)
    return row


def _revoke_token(number: int, tx: Transaction) -> TokenRow:
    row = tx.memory.accounts.tokens.get(number)
    if row is None:
        raise UnknownToken(number)
    if row.revoked_at is None:
        row = replace(row, revoked_at=tx.now)
        tx.accounts.put_token(row)
    return row


def _note_use(request: NoteUse, tx: Transaction) -> None:
    for number, at in request.uses:
        row = tx.memory.accounts.tokens.get(number)
        if row is not None and at > (row.last_used_at or 0):
            tx.accounts.put_token(replace(row, last_used_at=at))
    for number, at in request.session_uses:
        session = tx.memory.accounts.sessions.get(number)
        if session is not None and at > (session.last_used_at or 0):
            tx.accounts.put_session(replace(session, last_used_at=at))
