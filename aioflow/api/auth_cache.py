"""Cache of accounts, tokens and sessions as of the last commit; authenticates without a query."""

from __future__ import annotations

import hashlib

import msgspec

from aioflow.model.access import HOME, AccountRow, CallerKind, LoginRow, Role, TokenRow
from aioflow.model.batch import Batch
from aioflow.model.timestamps import Timestamp
from aioflow.store import Store

__all__ = ("TOKEN_PREFIX", "AuthCache", "Caller", "digest_of")

TOKEN_PREFIX = "aio_"  # noqa: S105 - what tokens begin with, so that scanners find lost ones

_USED_AGAIN_US = 60_000_000


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The authenticated sender of a request.

    Attributes:
        scopes: The DAGs that a token is valid for; ``None`` for all.
        number: Of the token or session; -1 for the home's own token and socket.
    """

    name: str
    role: Role
    kind: CallerKind
    scopes: tuple[str, ...] | None = None
    number: int = -1


def digest_of(secret: str, cookie: str = "") -> bytes:
    """Return the stored digest of a token, or of the value of the cookie with that name."""
    return hashlib.sha256(f"{cookie}{secret}".encode("utf-8", "surrogateescape")).digest()


class AuthCache:
    """Accounts, tokens and sessions, updated by each commit.

    Attributes:
        uses: Times of token uses still to be stored, by token number. A use less than a minute
            after the last one is left out.
    """

    def __init__(self) -> None:
        self.uses: dict[int, Timestamp] = {}
        self._accounts: dict[int, AccountRow] = {}
        self._tokens: dict[int, TokenRow] = {}
        self._logins: dict[int, LoginRow] = {}
        self._names: dict[str, int] = {}
        self._token_of: dict[bytes, int] = {}
        self._login_of: dict[bytes, int] = {}
        self._changed: set[tuple[str, int]] | None = None

    async def load(self, store: Store) -> None:
        """Read the stored rows. Rows committed meanwhile take precedence."""
        known: set[tuple[str, int]] = set()
        self._changed = known
        accounts = await store.list_accounts()
        tokens = await store.list_tokens()
        logins = await store.list_logins()
        self._changed = None
        self._put_accounts([row for row in accounts if ("account", row.account_no) not in known])
        self._put_tokens([row for row in tokens if ("token", row.token_no) not in known])
        self._put_logins([row for row in logins if ("login", row.login_no) not in known])

    def committed(self, batch: Batch) -> None:
        """Apply a batch."""
        for number in batch.gone_accounts:
            self._note("account", number)
            self._drop_account(number)
        for number in batch.gone_tokens:
            self._note("token", number)
            token = self._tokens.pop(number, None)
            if token is not None:
                self._token_of.pop(token.digest, None)
        for number in batch.gone_logins:
            self._note("login", number)
            login = self._logins.pop(number, None)
            if login is not None:
                self._login_of.pop(login.digest, None)
        self._put_accounts(batch.accounts)
        self._put_tokens(batch.tokens)
        self._put_logins(batch.logins)

    def account(self, name: str) -> AccountRow | None:
        """Return the account with this name."""
        number = self._names.get(name)
        return None if number is None else self._accounts[number]

    def places(self) -> list[tuple[str, str]]:
        """Return the name and address of each session."""
        return [(login.name, login.address) for login in self._logins.values()]

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
        return Caller(
            name=row.name, role=row.role, kind="token", scopes=row.scopes, number=row.token_no
        )

    def of_cookie(self, name: str, given: str, now: Timestamp) -> Caller | None:
        """Return the caller with this session, if it is active and its cookie has this name."""
        number = self._login_of.get(digest_of(given, name))
        row = None if number is None else self._logins[number]
        if row is None or row.expires_at <= now:
            return None
        if row.name == HOME:
            return Caller(name=HOME, role=Role.ADMIN, kind="session", number=row.login_no)
        account = self.account(row.name)
        if account is None or account.is_disabled:
            return None
        return Caller(name=row.name, role=account.role, kind="session", number=row.login_no)

    def is_good(self, caller: Caller, now: Timestamp) -> bool:
        """Return whether an authenticated caller still has access."""
        match caller.kind:
            case "home":
                return True
            case "token":
                token = self._tokens.get(caller.number)
                return token is not None and _is_token_good(token, now)
            case "session":
                login = self._logins.get(caller.number)
                return login is not None and login.expires_at > now

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

    def _put_logins(self, rows: list[LoginRow]) -> None:
        for row in rows:
            self._logins[row.login_no] = row
            self._login_of[row.digest] = row.login_no
            self._note("login", row.login_no)

    def _drop_account(self, number: int) -> None:
        row = self._accounts.pop(number, None)
        if row is not None and self._names.get(row.name) == number:
            del self._names[row.name]


def _is_token_good(row: TokenRow, now: Timestamp) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > now)
