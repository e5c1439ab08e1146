"""Management of users, tokens and sessions, and the list of audit entries."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow.api.access.audit import AuditView, DeniedRequests, audit_view
from aioflow.api.access.authentication import (
    TOKEN_PREFIX,
    AuthCache,
    Passwords,
    checked_password,
    digest_of,
)
from aioflow.api.access.login_throttle import LoginThrottle
from aioflow.api.schemas import instant, iso
from aioflow.clock import Clock
from aioflow.errors import (
    AccountRefused,
    AioflowError,
    LoginFailed,
    StoreSlow,
    StoreUnavailable,
    UnknownAuditEntry,
    UnknownSession,
    WrongPassword,
)
from aioflow.model.access import (
    EVERY_ENTRY,
    HOME,
    AccountRow,
    Actor,
    AuditEntry,
    AuditFilter,
    Role,
    SessionRow,
    TokenRow,
    told,
)
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.requests import (
    CreateAccount,
    CreateToken,
    DeleteAccount,
    EndOtherSessions,
    EndSession,
    Note,
    NoteUse,
    OpenSession,
    Request,
    RevokeToken,
    SetAccount,
)
from aioflow.store import Store
from aioflow.telemetry.log import Logger

__all__ = ("SESSION_SECONDS", "Access", "SessionView", "TokenView", "UserView", "role_of")

SESSION_SECONDS = 30 * 24 * 3600

_SECRET_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,99}")
_SCOPES = 100
_GROUPS = 50
_WRITE_SECONDS = 1.0
_USES_AT_ONCE = 500
_AGENT_LENGTH = 200
_UNUSED_US = 3_600 * 1_000_000

_log = Logger(__name__)

_Send: TypeAlias = Callable[[Request, Actor | None, float], Awaitable[object]]
_REQUEST_SECONDS = 5.0


class UserView(msgspec.Struct, frozen=True, kw_only=True):
    """A user account.

    Attributes:
        groups: Groups, to which a task may assign a decision.
    """

    name: str
    role: str
    groups: tuple[str, ...]
    disabled: bool
    created_at: str
    changed_at: str


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """An API token, without its secret.

    Attributes:
        scopes: The DAGs it is valid for; ``None`` for all.
        state: ``active``, ``expired`` or ``revoked``.
        last_used_at: Time of the last use, to the minute.
    """

    token_id: int
    name: str
    role: str
    scopes: tuple[str, ...] | None
    state: str
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A user's session of the web page.

    Attributes:
        user_agent: The browser's description of itself; empty if unknown.
        last_used_at: Time of the last use, to ten minutes; ``None`` if unknown.
        is_current: Whether the current request belongs to this session.
    """

    session_id: int
    name: str
    created_at: str
    expires_at: str
    address: str
    user_agent: str
    last_used_at: str | None
    is_current: bool = False


def role_of(label: str) -> Role:
    """Return the role with this label.

    Raises:
        AccountRefused: If there is no such role.
    """
    for role in Role:
        if role.label == label:
            return role
    raise AccountRefused(f"{label[:80]!r} is not a role; roles are viewer, operator and admin")


class Access:
    """Manages and lists users, tokens and sessions. Changes are made by the engine.

    Args:
        send: Sends a request to the engine on behalf of an actor, with a timeout in seconds.
        passwords: Hashes passwords.

    Attributes:
        auth_cache: The cache that is used to authenticate requests.
    """

    def __init__(
        self, store: Store, clock: Clock, send: _Send, passwords: Passwords | None = None
    ) -> None:
        self.auth_cache = AuthCache()
        self._store = store
        self._clock = clock
        self._send = send
        self._passwords = passwords or Passwords()
        self._throttle = LoginThrottle()
        self._refusals = DeniedRequests()
        self._arrived = anyio.Event()
        self._writing = anyio.Lock()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Load all accounts. Then store denied requests and token uses, at most once a second."""
        await self._load()
        for name, address in self.auth_cache.places():
            self._throttle.remember(name, address)
        task_status.started()
        while True:
            if not self._has_uses and self._refusals.is_empty:
                await self._arrived.wait()
            await self._clock.sleep(_WRITE_SECONDS)
            self._arrived = anyio.Event()
            await self._write()

    async def reload(self) -> None:
        """Read all accounts, tokens and sessions again, because another node has changed them."""
        cache = AuthCache()
        await cache.load(self._store)
        cache.uses, cache.session_uses = self.auth_cache.uses, self.auth_cache.session_uses
        self.auth_cache = cache

    async def finish(self) -> None:
        """Store all remaining denied requests and token uses. Then ``run`` may be cancelled."""
        await self._write(is_last=True)

    async def _load(self) -> None:
        while True:
            try:
                return await self.auth_cache.load(self._store)
            except (StoreSlow, StoreUnavailable) as exc:
                _log.warning("database unavailable, accounts are not loaded yet", error=str(exc))
                await self._clock.sleep(_WRITE_SECONDS)

    async def _write(self, *, is_last: bool = False) -> None:
        """Store denied requests and token uses. Wait while the database is unavailable.

        The backlog is bounded during the wait.
        """
        async with self._writing:
            cache = self.auth_cache
            uses, session_uses = _pop(cache.uses), _pop(cache.session_uses)
            lines = self._refusals.take(self._seconds, is_last=is_last)
            try:
                if uses or session_uses:
                    request = NoteUse(uses=uses, session_uses=session_uses)
                    await self._send(request, None, math.inf)
                if lines:
                    await self._send(Note(lines=tuple(lines)), None, math.inf)
            except AioflowError as exc:
                self._refusals.lose(lines, self._seconds)
                _log.warning("recent denials are missing from the audit", error=str(exc))

    @property
    def _has_uses(self) -> bool:
        return bool(self.auth_cache.uses or self.auth_cache.session_uses)

    def refused(self, line: AuditEntry) -> None:
        """Queue a denied request for the audit. Very many of them are only counted."""
        self._refusals.add(line, self._seconds)
        self._arrived.set()

    def used(self) -> None:
        """Wake ``run`` if there are uses of tokens or sessions to store."""
        if self._has_uses:
            self._arrived.set()

    @property
    def _seconds(self) -> float:
        return self._clock.monotonic_us() / 1e6

    # ── users ───────────────────────────────────────────────────────────────────────────

    async def list_users(self) -> list[UserView]:
        """Return all users by name."""
        return [_user(row) for row in await self._store.list_accounts()]

    async def create_user(
        self,
        by: Actor,
        name: str,
        password: str,
        role: str,
        groups: Sequence[str] = (),
    ) -> UserView:
        """Create a user.

        Raises:
            AccountRefused: If the name, the password or the role is invalid.
            AccountExists: If a user has that name.
        """
        wanted = role_of(role)
        secret = await self._passwords.hashed(password)
        request = CreateAccount(
            name=_checked_name(name),
            secret=secret,
            role=wanted,
            groups=_checked_groups(groups) or (),
        )
        return _user(cast(AccountRow, await self._send(request, by, _REQUEST_SECONDS)))

    async def set_user(
        self,
        by: Actor,
        name: str,
        *,
        password: str | None = None,
        role: str | None = None,
        disabled: bool | None = None,
        groups: Sequence[str] | None = None,
    ) -> UserView:
        """Change the given properties of a user, and end the user's sessions.

        Raises:
            UnknownAccount: If there is no user of that name.
            AccountRefused: If a new value is invalid.
        """
        wanted = None if role is None else role_of(role)
        secret = None if password is None else await self._passwords.hashed(password)
        request = SetAccount(
            name=name,
            secret=secret,
            role=wanted,
            is_disabled=disabled,
            groups=_checked_groups(groups),
        )
        return _user(cast(AccountRow, await self._send(request, by, _REQUEST_SECONDS)))

    async def change_password(
        self, name: str, old: str, new: str, *, address: str, keeps: int | None
    ) -> UserView:
        """Change a user's password, given the current one, and end the user's sessions.

        Args:
            keeps: Number of the session that stays open.

        Raises:
            WrongPassword: If the current password is wrong, or there is no such user.
            TooManyLogins: If too many password changes or logins have failed recently.
            AccountRefused: If the new password is invalid.
        """
        if checked_password(new) == old:
            raise AccountRefused("the new password must differ from the current one")
        account = await self._proven(name, old, address)
        if account is None:
            raise WrongPassword
        secret = await self._passwords.hashed(new)
        request = SetAccount(name=name, secret=secret, seen=account.secret, keeps=keeps)
        by = Actor(name=name, role=account.role, address=address)
        return _user(cast(AccountRow, await self._send(request, by, _REQUEST_SECONDS)))

    async def _proven(self, name: str, password: str, address: str) -> AccountRow | None:
        """Return the account if the password is right and the account is not disabled."""
        account = self.auth_cache.account(name)
        self._throttle.begin(name, address, self._seconds, is_user=account is not None)
        if account is not None and account.is_disabled:
            account = None
        secret = None if account is None else account.secret
        if not await self._passwords.matches(secret, password):
            return None
        self._throttle.succeed(name, address, self._seconds)
        return account

    async def delete_user(self, by: Actor, name: str) -> dict[str, Any]:
        """Delete a user, end the user's sessions and revoke the user's tokens.

        Raises:
            UnknownAccount: If there is no user of that name.
        """
        await self._send(DeleteAccount(name=name), by, _REQUEST_SECONDS)
        return {"name": name, "deleted": True}

    # ── sessions ────────────────────────────────────────────────────────────────────────

    async def log_in(
        self,
        name: str,
        password: str,
        *,
        address: str,
        cookie: str,
        replaces: str | None = None,
        agent: str = "",
    ) -> tuple[str, SessionView]:
        """Start a session. Return the value of its cookie, and the session.

        Args:
            cookie: The name of the cookie. The session is not valid under another name.
            replaces: The previous value of that cookie.
            agent: The browser's description of itself.

        Raises:
            LoginFailed: If name and password do not match, or the user is disabled.
            TooManyLogins: If too many logins have failed recently.
        """
        account = await self._proven(name, password, address)
        if account is None:
            raise LoginFailed
        by = Actor(name=name, role=account.role, address=address)
        return await self._open(by, account.secret, cookie, replaces, agent)

    async def open_home(
        self, *, address: str, cookie: str, replaces: str | None = None, agent: str = ""
    ) -> tuple[str, SessionView]:
        """Start an admin session for a client that presented the home's token.

        The browser sends no cookie when it opens a link from another application, so its earlier
        session is found by the user agent. That session is ended only if it has not been used for
        an hour, because it may belong to another window of the same browser.
        """
        by = Actor(name=HOME, role=Role.ADMIN, address=address)
        return await self._open(by, None, cookie, replaces, agent)

    async def _open(
        self, by: Actor, seen: bytes | None, cookie: str, replaces: str | None, agent: str
    ) -> tuple[str, SessionView]:
        now = self._clock.now()
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        request = OpenSession(
            name=by.name,
            seen=seen,
            digest=digest_of(secret, cookie),
            expires_at=now + SESSION_SECONDS * 1_000_000,
            address=by.address,
            replaces=None if replaces is None else digest_of(replaces, cookie),
            agent=told(agent)[:_AGENT_LENGTH],
            replaces_unused_since=now - _UNUSED_US if by.name == HOME else None,
        )
        return secret, _session(cast(SessionRow, await self._send(request, by, _REQUEST_SECONDS)))

    async def list_sessions(
        self, *, of: str | None = None, current: int | None = None
    ) -> list[SessionView]:
        """Return the active sessions, the oldest first. With ``of``, only those of this user.

        Args:
            current: Number of the caller's session.
        """
        now = self._clock.now()
        found = await self._store.list_sessions()
        return [
            msgspec.structs.replace(_session(row), is_current=row.session_no == current)
            for row in found
            if row.expires_at > now and of in {None, row.name}
        ]

    async def end_other_sessions(self, by: Actor, *, keeps: int | None) -> dict[str, Any]:
        """End all sessions of the caller, except the session ``keeps``, if given."""
        request = EndOtherSessions(name=by.name, keeps=keeps)
        return {"ended": await self._send(request, by, _REQUEST_SECONDS)}

    async def end_session(self, by: Actor, number: int, *, of: str | None = None) -> dict[str, Any]:
        """End a session. With ``of``, do so only if the session belongs to this user.

        Raises:
            UnknownSession: If there is no such session.
        """
        if of is not None and not any(
            row.session_no == number and row.name == of for row in await self._store.list_sessions()
        ):
            raise UnknownSession(number)
        await self._send(EndSession(session_no=number), by, _REQUEST_SECONDS)
        return {"session_id": number, "ended": True}

    # ── tokens ──────────────────────────────────────────────────────────────────────────

    async def list_tokens(self) -> list[TokenView]:
        """Return all tokens by number, including expired and revoked ones."""
        now = self._clock.now()
        return [_token(row, now) for row in await self._store.list_tokens()]

    async def create_token(
        self,
        by: Actor,
        name: str,
        role: str,
        *,
        scopes: Sequence[str] | None = None,
        expires_at: str | None = None,
    ) -> dict[str, Any]:
        """Create a token. The result contains the secret, which cannot be retrieved later.

        Args:
            scopes: Ids of the DAGs it is valid for; ``None``, or a list with ``*``, for all.

        Raises:
            AccountRefused: If the name, the role, a scope or the timestamp is invalid.
            TokenExists: If an active token has that name.
        """
        until = None if expires_at is None else instant(expires_at, "expires_at")
        now = self._clock.now()
        if until is not None and until <= now:
            raise AccountRefused("expires_at is in the past")
        secret = TOKEN_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        request = CreateToken(
            name=_checked_name(name),
            digest=digest_of(secret),
            role=role_of(role),
            scopes=_checked_scopes(scopes),
            created_by=by.name,
            expires_at=until,
        )
        row = cast(TokenRow, await self._send(request, by, _REQUEST_SECONDS))
        return {**msgspec.structs.asdict(_token(row, now)), "token": secret}

    async def revoke_token(self, by: Actor, number: int) -> TokenView:
        """Revoke a token.

        Raises:
            UnknownToken: If there is no such token.
        """
        row = cast(TokenRow, await self._send(RevokeToken(token_no=number), by, _REQUEST_SECONDS))
        return _token(row, self._clock.now())

    # ── the audit ───────────────────────────────────────────────────────────────────────

    async def list_audit(
        self,
        wanted: AuditFilter = EVERY_ENTRY,
        *,
        before: int | None = None,
        limit: int = 100,
    ) -> list[AuditView]:
        """Return matching audit entries, newest first; with ``before``, those with lower ids."""
        rows = await self._store.list_audit(wanted, before=before, limit=limit)
        return [audit_view(row) for row in rows]

    async def show_audit(self, audit_no: int) -> AuditView:
        """Return an audit entry with the ids of all its runs.

        Raises:
            UnknownAuditEntry: If there is no such entry.
        """
        row = await self._store.find_audit(audit_no)
        if row is None:
            raise UnknownAuditEntry(audit_no)
        return audit_view(row, is_whole=True)


def _pop(uses: dict[int, Timestamp]) -> tuple[tuple[int, Timestamp], ...]:
    """Remove and return the first uses that are still to be stored, up to the size of a batch."""
    batch = tuple(uses.items())[:_USES_AT_ONCE]
    for number, _ in batch:
        del uses[number]
    return batch


def _checked_groups(groups: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the sorted names of groups; ``None`` for ``None``.

    Raises:
        AccountRefused: If a name is invalid or is the name of a role, or there are too many groups.
    """
    if groups is None:
        return None
    roles = {role.label for role in Role}
    for group in groups:
        if not _NAME.fullmatch(group) or group in roles:
            raise AccountRefused(f"{group[:80]!r} cannot be the name of a group")
    if len(groups) > _GROUPS:
        raise AccountRefused(f"a user is in at most {_GROUPS} groups")
    return tuple(sorted(set(groups)))


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise AccountRefused(
            f"{name[:80]!r} is not a valid name: use letters, digits and _ . @ + -, at most 100"
        )
    return name


def _checked_scopes(scopes: Sequence[str] | None) -> tuple[str, ...] | None:
    if scopes is None or "*" in scopes:
        return None
    if not 0 < len(scopes) <= _SCOPES:
        raise AccountRefused(f"scopes are 1 to {_SCOPES} DAG ids, or * for all")
    for scope in scopes:
        if not (0 < len(scope) <= 250 and scope.isprintable()):
            raise AccountRefused(f"{scope[:80]!r} is not a DAG id")
    return tuple(dict.fromkeys(scopes))


def _user(row: AccountRow) -> UserView:
    return UserView(
        name=row.name,
        role=row.role.label,
        groups=row.groups,
        disabled=row.is_disabled,
        created_at=iso(row.created_at) or "",
        changed_at=iso(row.changed_at) or "",
    )


def _session(row: SessionRow) -> SessionView:
    return SessionView(
        session_id=row.session_no,
        name=row.name,
        created_at=iso(row.created_at) or "",
        expires_at=iso(row.expires_at) or "",
        address=row.address,
        user_agent=row.agent,
        last_used_at=iso(row.last_used_at),
    )


def _token(row: TokenRow, now: int) -> TokenView:
    state = "active"
    if row.revoked_at is not None:
        state = "revoked"
    elif row.expires_at is not None and row.expires_at <= now:
        state = "expired"
    return TokenView(
        token_id=row.token_no,
        name=row.name,
        role=row.role.label,
        scopes=row.scopes,
        state=state,
        created_at=iso(row.created_at) or "",
        created_by=row.created_by,
        expires_at=iso(row.expires_at),
        revoked_at=iso(row.revoked_at),
        last_used_at=iso(row.last_used_at),
    )
