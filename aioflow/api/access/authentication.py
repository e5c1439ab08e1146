"""Authentication: cache of accounts, tokens and sessions; password hashes.

The cache has the state as of the last commit, so a request is authenticated without a query.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import argon2
import msgspec
from argon2.exceptions import InvalidHashError, VerificationError

from aioflow._threads import in_thread
from aioflow.errors import AccountRefused, TooManyLogins
from aioflow.model.access import HOME, AccountRow, CallerKind, Role, SessionRow, TokenRow
from aioflow.model.batch import Batch
from aioflow.model.timestamps import Timestamp
from aioflow.store import Store

__all__ = (
    "TOKEN_PREFIX",
    "AuthCache",
    "Caller",
    "Passwords",
    "checked_password",
    "digest_of",
)

TOKEN_PREFIX = "aio_"  # noqa: S105 - a prefix, so that scanners find leaked tokens

_USED_AGAIN_US = 60_000_000
_SESSION_USED_AGAIN_US = 600_000_000


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The authenticated sender of a request.

    Attributes:
        scopes: The DAGs that a token is valid for; ``None`` for all.
        number: Number of the token or session; -1 for the home's own token and socket.
    """

    name: str
    role: Role
    kind: CallerKind
    scopes: tuple[str, ...] | None = None
    number: int = -1


def digest_of(secret: str, cookie: str = "") -> bytes:
    """Return the digest under which a token is stored.

    With ``cookie``, return the digest of a session: ``secret`` is the value of the cookie with that
    name.
    """
    return hashlib.sha256(f"{cookie}{secret}".encode("utf-8", "surrogateescape")).digest()


class AuthCache:
    """Accounts, tokens and sessions, updated by each commit.

    Attributes:
        uses: Times of token uses still to be stored, by token number. A use less than a minute
            after the last stored one is left out.
        session_uses: Times of session uses still to be stored, by session number. A use less than
            ten minutes after the last stored one is left out, because an open page sends requests
            all the time.
    """

    def __init__(self) -> None:
        self.uses: dict[int, Timestamp] = {}
        self.session_uses: dict[int, Timestamp] = {}
        self._accounts: dict[int, AccountRow] = {}
        self._tokens: dict[int, TokenRow] = {}
        self._sessions: dict[int, SessionRow] = {}
        self._names: dict[str, int] = {}
        self._token_of: dict[bytes, int] = {}
        self._session_of: dict[bytes, int] = {}
        self._changed: set[tuple[str, int]] | None = None

    async def load(self, store: Store) -> None:
        """Read the stored rows. Rows that are committed during the read take precedence."""
        known: set[tuple[str, int]] = set()
        self._changed = known
        accounts = await store.list_accounts()
        tokens = await store.list_tokens()
        sessions = await store.list_sessions()
        self._changed = None
        self._put_accounts([row for row in accounts if ("account", row.account_no) not in known])
        self._put_tokens([row for row in tokens if ("token", row.token_no) not in known])
        self._put_sessions([row for row in sessions if ("session", row.session_no) not in known])

    def committed(self, batch: Batch) -> None:
        """Update the cache with the accounts, tokens and sessions of a committed batch."""
        for number in batch.gone_accounts:
            self._note("account", number)
            self._drop_account(number)
        for number in batch.gone_tokens:
            self._note("token", number)
            token = self._tokens.pop(number, None)
            if token is not None:
                self._token_of.pop(token.digest, None)
        for number in batch.gone_sessions:
            self._note("session", number)
            session = self._sessions.pop(number, None)
            if session is not None:
                self._session_of.pop(session.digest, None)
        self._put_accounts(batch.accounts)
        self._put_tokens(batch.tokens)
        self._put_sessions(batch.sessions)

    def account(self, name: str) -> AccountRow | None:
        """Return the account with this name."""
        number = self._names.get(name)
        return None if number is None else self._accounts[number]

    def places(self) -> list[tuple[str, str]]:
        """Return the name and address of each session."""
        return [(session.name, session.address) for session in self._sessions.values()]

    def of_token(self, given: str, now: Timestamp) -> Caller | None:
        """Return the caller with this token, if it is valid now."""
        if not given.startswith(TOKEN_PREFIX):
            return None
        number = self._token_of.get(digest_of(given))
        row = None if number is None else self._tokens[number]
        if row is None or not _is_token_good(row, now):
            return None
        if now - max(row.last_used_at or 0, self.uses.get(row.token_no, 0)) >= _USED_AGAIN_US:
            self.uses[row.token_no] = now
        return _caller_of_token(row)

    def of_cookie(self, name: str, given: str, now: Timestamp) -> Caller | None:
        """Return the caller whose active session has a cookie with this name and value."""
        number = self._session_of.get(digest_of(given, name))
        row = None if number is None else self._sessions[number]
        caller = None if row is None else self._caller_of_session(row, now)
        if row is not None and caller is not None:
            self._use_session(row, now)
        return caller

    def _caller_of_session(self, row: SessionRow, now: Timestamp) -> Caller | None:
        if row.expires_at <= now:
            return None
        if row.name == HOME:
            return Caller(name=HOME, role=Role.ADMIN, kind="session", number=row.session_no)
        account = self.account(row.name)
        if account is None or account.is_disabled:
            return None
        return Caller(name=row.name, role=account.role, kind="session", number=row.session_no)

    def _use_session(self, row: SessionRow, now: Timestamp) -> None:
        last = max(row.last_used_at or 0, self.session_uses.get(row.session_no, 0))
        if now - last >= _SESSION_USED_AGAIN_US:
            self.session_uses[row.session_no] = now

    def known_again(self, caller: Caller, now: Timestamp) -> Caller | None:
        """Return this node's version of a caller that another node has authenticated.

        Return ``None`` if the token was revoked, or the session has ended.
        """
        match caller.kind:
            case "home":
                return caller
            case "token":
                token = self._tokens.get(caller.number)
                if token is None or not _is_token_good(token, now):
                    return None
                return _caller_of_token(token)
            case "session":
                session = self._sessions.get(caller.number)
                return None if session is None else self._caller_of_session(session, now)

    def is_good(self, caller: Caller, now: Timestamp) -> bool:
        """Return whether an authenticated caller still has access."""
        match caller.kind:
            case "home":
                return True
            case "token":
                token = self._tokens.get(caller.number)
                return token is not None and _is_token_good(token, now)
            case "session":
                session = self._sessions.get(caller.number)
                return session is not None and session.expires_at > now

    def _note(self, kind: str, number: int) -> None:
        if self._changed is not None:
            self._changed.add((kind, number))

    def _put_accounts(self, rows: list[AccountRow]) -> None:
        for row in rows:
            self._accounts[row.account_no] = row
            self._names[row.name] = row.account_no
            self._note("account", row.account_no)

    def _put_tokens(self, rows: list[TokenRow]) -> None:
        for row in rows:
            self._tokens[row.token_no] = row
            self._token_of[row.digest] = row.token_no
            self._note("token", row.token_no)

    def _put_sessions(self, rows: list[SessionRow]) -> None:
        for row in rows:
            self._sessions[row.session_no] = row
            self._session_of[row.digest] = row.session_no
            self._note("session", row.session_no)

    def _drop_account(self, number: int) -> None:
        row = self._accounts.pop(number, None)
        if row is not None and self._names.get(row.name) == number:
            del self._names[row.name]


def _caller_of_token(row: TokenRow) -> Caller:
    return Caller(
        name=row.name, role=row.role, kind="token", scopes=row.scopes, number=row.token_no
    )


def _is_token_good(row: TokenRow, now: Timestamp) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > now)


_PASSWORD_SHORTEST, _PASSWORD_LONGEST = 10, 1_024  # characters
_HASHING_THREADS = 1
"""Limits hashing to one core, and to the memory of one hash, however many logins there are."""

_WAITING_LOGINS = 16
_AGAIN_SECONDS = 2

# The minimum that OWASP recommends: 19 MiB, two iterations.
_OWASP = argon2.PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

_NO_USER = "$argon2id$v=19$m={m},t={t},p={p}$c29tZXRoaW5nc2FsdHkxMg${digest}"
_NO_USER_DIGEST = "ZzO1ZQm0pOZzY6V2v3r8mVJY9b2uZk0h7pXqk0yF1mE"


def checked_password(password: str) -> str:
    """Return the password if its length is valid.

    Raises:
        AccountRefused: If it is too short, or too long.
    """
    if not _PASSWORD_SHORTEST <= len(password) <= _PASSWORD_LONGEST:
        raise AccountRefused(
            f"a password has {_PASSWORD_SHORTEST} to {_PASSWORD_LONGEST} characters"
        )
    return password


class Passwords:
    """Hashes and verifies passwords. Rejects callers while too many are waiting.

    Args:
        hasher: Its parameters determine how long a hash takes.
    """

    def __init__(self, hasher: argon2.PasswordHasher = _OWASP) -> None:
        self._hasher = hasher
        self._no_user = _NO_USER.format(
            m=hasher.memory_cost, t=hasher.time_cost, p=hasher.parallelism, digest=_NO_USER_DIGEST
        ).encode()
        self._limiter = anyio.CapacityLimiter(_HASHING_THREADS)
        self._waiting = 0

    async def hashed(self, password: str) -> bytes:
        """Return the hash of a password.

        Raises:
            AccountRefused: If the password is invalid.
            TooManyLogins: If too many callers are waiting already.
        """
        text = checked_password(password).encode("utf-8", "surrogatepass")
        with self._in_line():
            return (await in_thread(self._hasher.hash, text, limiter=self._limiter)).encode()

    async def matches(self, secret: bytes | None, password: str) -> bool:
        """Return whether a password matches a hash.

        ``None`` never matches, but takes just as long, so that the time does not reveal that a user
        is unknown.

        Raises:
            TooManyLogins: If too many callers are waiting already.
        """
        if len(password) > _PASSWORD_LONGEST:
            return False
        text = password.encode("utf-8", "surrogatepass")
        with self._in_line():
            is_same = await in_thread(
                self._is_of, secret or self._no_user, text, limiter=self._limiter
            )
        return is_same and secret is not None

    @contextmanager
    def _in_line(self) -> Iterator[None]:
        if self._waiting >= _WAITING_LOGINS:
            raise TooManyLogins(_AGAIN_SECONDS)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def _is_of(self, secret: bytes, password: bytes) -> bool:
        try:
            return self._hasher.verify(secret, password)
        except (VerificationError, InvalidHashError):
            return False
