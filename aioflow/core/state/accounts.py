"""Who is let in, as the engine remembers it: accounts, tokens and sessions; and the audit's end.

They are few: each kind has a limit, which ``core.access`` keeps.
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
    """What is stored of them, and what this turn has changed.

    Attributes:
        accounts, tokens, logins: By number.
        head: Where the audit ends.
    """

    def __init__(self) -> None:
        self.accounts: dict[int, AccountRow] = {}
        self.tokens: dict[int, TokenRow] = {}
        self.logins: dict[int, LoginRow] = {}
        self.head = AuditHead()

    def restore(self, snapshot: Snapshot) -> None:
        """Know what is stored."""
        self.accounts = {row.account_no: row for row in snapshot.accounts}
        self.tokens = {row.token_no: row for row in snapshot.tokens}
        self.logins = {row.login_no: row for row in snapshot.logins}
        self.head = snapshot.audit_head

    def account(self, name: str) -> AccountRow | None:
        """Return the account of that name."""
        return next((row for row in self.accounts.values() if row.name == name), None)


class AccountUpdates:
    """What a turn changes of them, and the lines it puts into the audit.

    Args:
        take: Gives row numbers.
    """

    def __init__(self, admitted: Accounts, take: Callable[[], int]) -> None:
        self._admitted = admitted
        self._take = take
        self._before: dict[tuple[str, int], Any] = {}
        self._lines: list[AuditEntry] = []
        self._head: AuditHead | None = None
        self._is_resealed = False

    def put_account(self, row: AccountRow) -> None:
        """An account is made, or changed."""
        self._put("accounts", row.account_no, row)

    def put_token(self, row: TokenRow) -> None:
        """A token is made, or changed."""
        self._put("tokens", row.token_no, row)

    def put_login(self, row: LoginRow) -> None:
        """A session is begun."""
        self._put("logins", row.login_no, row)

    def drop_account(self, row: AccountRow) -> None:
        """An account goes."""
        self._put("accounts", row.account_no, None)

    def drop_token(self, row: TokenRow) -> None:
        """A token goes that is good for nothing."""
        self._put("tokens", row.token_no, None)

    def drop_login(self, row: LoginRow) -> None:
        """A session ends."""
        self._put("logins", row.login_no, None)

    def note(self, line: AuditEntry) -> None:
        """Put a line into the audit."""
        self._lines.append(line)

    def reseal(self) -> None:
        """What is sealed is to be sealed anew."""
        self._is_resealed = True

    def close(self, batch: Batch, now: Timestamp) -> None:
        """Say what of it is to be stored."""
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
        if head != before or self._is_resealed:
            self._head = batch.audit_head = head

    def settle(self) -> None:
        """It is durable."""
        if self._head is not None:
            self._admitted.head = self._head

    def put_back(self) -> None:
        """None of it ever was."""
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
