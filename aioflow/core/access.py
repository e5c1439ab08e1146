"""Accounts, tokens and sessions, their limits, and the audit entries of all requested changes.

An audit entry holds no secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.memory import Memory
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
    Actor,
    AuditEntry,
    Role,
    SessionRow,
    TokenRow,
    audit_entry,
    caller_name,
    told,
)
from aioflow.model.rows import PoolRow
from aioflow.model.states import RunState
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.requests import (
    AccessRequest,
    CancelBackfill,
    CancelRun,
    ClearTasks,
    CreateAccount,
    CreateRun,
    CreateToken,
    DeleteAccount,
    DeleteDag,
    DeleteRun,
    DrainNode,
    EmitEvent,
    EndSession,
    FireTrigger,
    Mark,
    Note,
    NoteUse,
    OpenSession,
    Reencrypt,
    Request,
    RevokeToken,
    SetAccount,
    SetPaused,
    SetPool,
    SetValue,
    StartBackfill,
    Unquarantine,
)

__all__ = (
    "ACCOUNTS",
    "SESSIONS",
    "TOKENS",
    "answer_of_access",
    "audit_entry_of",
    "audited_value",
)

ACCOUNTS = 1_000
TOKENS = 1_000
"""Maximum number of tokens. At the limit, revoked and expired tokens are deleted, oldest first."""

SESSIONS = 100
"""Maximum number of sessions of one account. Beyond it, a new session replaces the oldest."""


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
        case OpenSession():
            return _open_session(request, tx)
        case EndSession(session_no=number):
            session = tx.memory.accounts.sessions.get(number)
            if session is None:
                raise UnknownSession(number)
            tx.accounts.drop_session(session)
            return session
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
    )
    tx.accounts.put_account(row)
    return row


def _set_account(request: SetAccount, tx: Transaction) -> AccountRow:
    """Change an account and end its sessions, except the one that ``keeps`` names.

    If the account is disabled, its tokens are revoked. If its new role is lower, they are reduced
    to that role.
    """
    was = _account(request.name, tx)
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
    _end_sessions(row.name, tx, but=request.keeps)
    if row.is_disabled or row.role < was.role:
        _cap_tokens(row.name, None if row.is_disabled else row.role, tx)
    row = replace(row, changed_at=tx.now)
    tx.accounts.put_account(row)
    return row


# ── sessions ────────────────────────────────────────────────────────────────────────────


def _end_sessions(name: str, tx: Transaction, *, but: int | None = None) -> None:
    for session in [row for row in tx.memory.accounts.sessions.values() if row.name == name]:
        if session.session_no != but:
            tx.accounts.drop_session(session)


def _open_session(request: OpenSession, tx: Transaction) -> SessionRow:
    """Open a session, unless the account changed since its password was verified."""
    admitted = tx.memory.accounts
    if request.name != HOME:
        account = admitted.account(request.name)
        if account is None or account.is_disabled or account.secret != request.seen:
            raise LoginFailed
    for row in list(admitted.sessions.values()):
        if row.expires_at <= tx.now or row.digest == request.replaces:
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
    )
    tx.accounts.put_session(session)
    return session


# ── tokens ──────────────────────────────────────────────────────────────────────────────


def _is_over(row: TokenRow, tx: Transaction) -> bool:
    return row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= tx.now)


def _cap_tokens(name: str, role: Role | None, tx: Transaction) -> int:
    """Reduce the tokens that an account has created to this role; ``None`` revokes them.

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
    """Yield the tokens that an account has created, directly or with one of these tokens."""
    is_his = {name: True}
    for _, row in sorted(tokens.items()):
        # A name is free again once its token has ended, so the earlier token tells who created
        # which.
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


class _AuditFields(msgspec.Struct, frozen=True):
    action: str
    target: str
    after: str | None = None


def audited_value(request: Request, memory: Memory, slots: Slots) -> str | None:
    """Return the audited value before the request is executed."""
    match request:
        case SetPool(name=name):
            return _pool_text(slots.pools.get(name))
        case SetPaused(dag_id=dag_id):
            dag = memory.dags.get(dag_id)
            return None if dag is None else _paused_text(dag.paused)
        case CancelRun(run_id=run_id):
            run = memory.find_run(run_id)
            return None if run is None else run.row.state.label
        case SetAccount(name=name):
            account = memory.accounts.account(name)
            return None if account is None else _account_text(account)
        case _:
            return None


def audit_entry_of(
    asked: RequestReceived, by: Actor, was: str | None, said: Any
) -> AuditEntry | None:
    """Return the audit entry of an executed request; ``None`` for one that changes nothing.

    Args:
        was: The result of ``audited_value``.
        said: The response.
    """
    request = asked.request
    line = (
        _audit_of_runs(request, said)
        or _audit_of_dags(request, said)
        or _audit_of_access(request, said)
    )
    if line is None:
        return None
    return msgspec.structs.replace(
        audit_entry(by, line.action, line.target),
        before=was,
        after=None if line.after is None else told(line.after),
    )


def _audit_of_runs(request: Request, said: Any) -> _AuditFields | None:
    match request:
        case CreateRun(dag_id=dag_id):
            return _AuditFields("run.create", dag_id, said[0])
        case StartBackfill(dag_id=dag_id):
            return _AuditFields("backfill.start", dag_id, str(said[0]))
        case CancelBackfill(backfill_no=number):
            return _AuditFields("backfill.cancel", str(number))
        case CancelRun(run_id=run_id):
            return _AuditFields("run.cancel", run_id, _state_text(said))
        case ClearTasks(run_id=run_id, tasks=tasks, latest=latest):
            how = f"{said[0]} cleared" + (", to run the newest version" if latest else "")
            return _AuditFields("run.clear", f"{run_id} {' '.join(tasks)}".rstrip(), how)
        case Mark(run_id=run_id, tasks=tasks, state=state):
            return _AuditFields("run.mark", f"{run_id} {' '.join(tasks)}".rstrip(), state.label)
        case DeleteRun(run_id=run_id):
            return _AuditFields("run.delete", run_id)
        case _:
            return None


def _audit_of_dags(request: Request, said: Any) -> _AuditFields | None:
    match request:
        case DeleteDag(dag_id=dag_id, only_asks=False):
            return _AuditFields("dag.delete", dag_id)
        case SetPaused(dag_id=dag_id, paused=paused):
            return _AuditFields(
                "dag.pause" if paused else "dag.resume", dag_id, _paused_text(paused)
            )
        case FireTrigger(trigger_no=number):
            return _AuditFields("trigger.fire", str(number), " ".join(map(str, said)))
        case Unquarantine(class_path=class_path):
            return _AuditFields("trigger.unquarantine", class_path)
        case EmitEvent(name=name):
            return _AuditFields("event.emit", name, str(said[0]))
        case SetPool(name=name, slots=slots, include_deferred=wide):
            row = None if slots is None else PoolRow(name=name, slots=slots, include_deferred=wide)
            return _AuditFields("pool.delete" if row is None else "pool.set", name, _pool_text(row))
        case SetValue(kind=kind, name=name, value=value):
            return _AuditFields(f"{kind}.{'delete' if value is None else 'set'}", name)
        case DrainNode(node_no=number, is_drained=is_drained):
            return _AuditFields("node.drain" if is_drained else "node.undrain", str(number))
        case Reencrypt(after=None):
            return _AuditFields("key.rotate", "key")
        case _:
            return None


def _audit_of_access(request: Request, said: Any) -> _AuditFields | None:
    match request:
        case CreateAccount(name=name):
            return _AuditFields("user.create", name, _account_text(said))
        case SetAccount(name=name, secret=secret):
            changed = " password" if secret is not None else ""
            return _AuditFields("user.set", name, _account_text(said) + changed)
        case DeleteAccount(name=name):
            return _AuditFields("user.delete", name, f"{said} tokens revoked" if said else None)
        case OpenSession(name=name):
            return _AuditFields("session.open", name, _session_text(said))
        case EndSession():
            return _AuditFields("session.end", said.name, _session_text(said))
        case CreateToken(name=name):
            return _AuditFields("token.create", name, _token_text(said))
        case RevokeToken():
            return _AuditFields("token.revoke", said.name, str(said.token_no))
        case _:
            return None


def _state_text(said: Any) -> str | None:
    return said.label if isinstance(said, RunState) else None


def _pool_text(row: PoolRow | None) -> str | None:
    if row is None:
        return None
    return f"{row.slots} slots" + (", also deferred" if row.include_deferred else "")


def _paused_text(is_paused: bool) -> str:
    return "paused" if is_paused else "active"


def _account_text(row: AccountRow) -> str:
    return row.role.label + (" disabled" if row.is_disabled else "")


def _session_text(row: SessionRow) -> str:
    return str(row.session_no)


def _token_text(row: TokenRow) -> str:
    scopes = "*" if row.scopes is None else " ".join(row.scopes)
    return f"{row.token_no} {row.role.label} {scopes}"
