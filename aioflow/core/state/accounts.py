"""Accounts, API tokens and sessions in the engine's memory, and the head of the audit log.

Each kind is small: ``core.access`` enforces a limit on its number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioflow.core.state.audit_chain import chained, grown, shortened
from aioflow.model.access import AccountRow, AuditEntry, AuditHead, LoginRow, TokenRow
from aioflow.model.batch import Batch
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.recovery import Snapshot
from aioflow.protocol.requests import AUDIT

__all__ = ("AccountUpdates", "Accounts")


class Accounts:
    """Stored accounts, tokens and sessions.

    Attributes:
        accounts, tokens, logins: Rows by number.
        head: Head of the audit log.
    """

    def __init__(self) -> None:
        self.accounts: dict[int, AccountRow] = {}
        self.tokens: dict[int, TokenRow] = {}
        self.logins: dict[int, LoginRow] = {}
        self.head = AuditHead()

    def restore(self, snapshot: Snapshot) -> None:
        """Load everything from a recovery snapshot."""
        self.accounts = {row.account_no: row for row in snapshot.accounts}
        self.tokens = {row.token_no: row for row in snapshot.tokens}
        self.logins = {row.login_no: row for row in snapshot.logins}
        self.head = snapshot.audit_head

    def account(self, name: str) -> AccountRow | None:
        """Return the account with this name, or ``None``."""
        return next((row for row in self.accounts.values() if row.name == name), None)


class AccountUpdates:
    """Changes that one transaction makes to accounts and sessions, and its audit entries.

    Args:
        take: Returns the next free row number.
    """

    def __init__(self, admitted: Accounts, take: Callable[[], int]) -> None:
        self._admitted = admitted
        self._take = take
        self._before: dict[tuple[str, int], Any] = {}
        self._lines: list[AuditEntry] = []
        self._head: AuditHead | None = None
        self._is_reencrypted = False

    def put_account(self, row: AccountRow) -> None:
        """Add or update an account."""
        self._put("accounts", row.account_no, row)

    def put_token(self, row: TokenRow) -> None:
        """Add or update a token."""
        self._put("tokens", row.token_no, row)

    def put_login(self, row: LoginRow) -> None:
        """Add or update a session."""
        self._put("logins", row.login_no, row)

    def drop_account(self, row: AccountRow) -> None:
        """Delete an account."""
        self._put("accounts", row.account_no, None)

    def drop_token(self, row: TokenRow) -> None:
        """Delete a token that is no longer usable."""
        self._put("tokens", row.token_no, None)

    def drop_login(self, row: LoginRow) -> None:
        """Delete a session."""
        self._put("logins", row.login_no, None)

    def note(self, line: AuditEntry) -> None:
        """Add an entry to the audit log."""
        self._lines.append(line)

    def reencrypt(self) -> None:
        """Request that the audit head be encrypted again, even if it is unchanged."""
        self._is_reencrypted = True

    def close(self, batch: Batch, now: Timestamp) -> None:
        """Add the changed rows, the chained audit entries and the audit head to the batch."""
        for (kind, number), before in self._before.items():
            row = getattr(self._admitted, kind).get(number)
            if row is None and before is not None:
                getattr(batch, f"gone_{kind}").append(number)
            elif row is not None and row != before:
                getattr(batch, kind).append(row)
        before = self._admitted.head
        last = before.last
        for line in self._lines:
            row = chained(self._take(), now, line, previous=last)
            batch.audit.append(row)
            last = row.digest
        erased = batch.erased.get(AUDIT, ())
        head = shortened(grown(before, batch.audit), (int(number) for (number,) in erased))
        if head != before or self._is_reencrypted:
            self._head = batch.audit_head = head

    def settle(self) -> None:
        """Adopt the new audit head: the batch is committed."""
        if self._head is not None:
            self._admitted.head = self._head

    def put_back(self) -> None:
        """Roll back all changes to the rows in memory."""
        for (kind, number), before in self._before.items():
            rows = getattr(self._admitted, kind)
            rows.pop(number, None)
            if before is not None:
                rows[number] = before

    def _put(self, kind: str, number: int, row: AccountRow | TokenRow | LoginRow | None) -> None:
        rows = getattr(self._admitted, kind)
        self._before.setdefault((kind, number), rows.pop(number, None))
        if row is not None:
            rows[number] = row
