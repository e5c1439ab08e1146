"""Accounts, API tokens and sessions in the engine's memory, and the hash chain of the audit log.

``core.accounts`` limits the number of rows of each kind. The chain makes changed or missing audit
entries detectable. The *head* of the audit log contains the number of entries and the digest of the
last one, so that entries missing at the end are detectable as well. The head is encrypted, so that
forging it requires the key.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from aioflow.model.access import (
    LINK,
    AccountRow,
    AuditEntry,
    AuditHead,
    AuditRow,
    SessionRow,
    TokenRow,
    caller_name,
)
from aioflow.model.batch import Batch
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.inputs import RecoverySnapshot
from aioflow.protocol.requests import AUDIT

__all__ = (
    "CHAIN_BEGINNING",
    "CHAIN_LOST",
    "AccountUpdates",
    "Accounts",
    "chained_row",
    "check_chain",
    "check_head",
    "grown_head",
    "person_of",
    "shortened_head",
)

CHAIN_BEGINNING = b""
"""Digest of the predecessor of the very first entry."""

CHAIN_LOST = b"lost"
"""Substitute for the digest of the last entry if that entry is unknown.

An entry that is chained to it breaks the chain, so the loss is detectable, too.
"""

_CREATORS = 100
"""Maximum length of a chain of tokens that have created each other."""

_encode = msgspec.msgpack.Encoder().encode


def chained_row(number: int, at: Timestamp, noted: AuditEntry, *, previous: bytes) -> AuditRow:
    """Return an audit row that is chained to the digest of its predecessor."""
    said = (previous, number, at, *msgspec.structs.astuple(noted))
    digest = hashlib.sha256(_encode(said)).digest()
    return AuditRow(audit_no=number, at=at, noted=noted, previous=previous, digest=digest)


def check_chain(rows: Iterable[AuditRow], *, before: AuditRow | None = None) -> list[str]:
    """Verify the hash chain and return one message per broken entry.

    The first entry is trusted, because its predecessor may have been removed by retention.

    Args:
        rows: Entries in ascending order of number.
        before: Last entry of the previous page.
    """
    faults = []
    for row in rows:
        if chained_row(row.audit_no, row.at, row.noted, previous=row.previous) != row:
            faults.append(f"audit {row.audit_no} was altered")
        elif before is not None and row.previous != before.digest:
            faults.append(
                f"audit {row.audit_no} does not follow {before.audit_no}: entries are missing"
            )
        before = row
    return faults


def grown_head(head: AuditHead, rows: Sequence[AuditRow]) -> AuditHead:
    """Return the audit head after these entries were appended."""
    if not rows:
        return head
    written = None if head.written is None else head.written + len(rows)
    return msgspec.structs.replace(head, written=written, last=rows[-1].digest)


def shortened_head(head: AuditHead, numbers: Iterable[int]) -> AuditHead:
    """Return the audit head after its oldest entries were deleted.

    Entries that were already deleted are not counted again.
    """
    gone = [number for number in numbers if number > head.erased_until]
    if not gone:
        return head
    return msgspec.structs.replace(head, erased=head.erased + len(gone), erased_until=max(gone))


def check_head(head: AuditHead, numbers: Sequence[int], last: bytes) -> list[str]:
    """Verify the audit head and return the problems found.

    Args:
        numbers: Numbers of all entries, ascending.
        last: Digest of the last entry; ``CHAIN_BEGINNING`` if there is none.
    """
    if head.last == CHAIN_LOST:
        return ["the end of the audit is unknown: deleted, or no key of this home can decrypt it"]
    left = len(numbers) - bisect_right(numbers, head.erased_until)
    if numbers and head.last != last:
        return [
            f"the audit ends with {numbers[-1]}, not as recorded: entries were deleted or forged"
        ]
    if head.written is not None and left != head.written - head.erased:
        return [f"the audit has {left} entries instead of {head.written - head.erased}"]
    return []


class Accounts:
    """Stored accounts, tokens and sessions.

    Attributes:
        accounts, tokens, sessions: Rows by number.
        head: Head of the audit log.
    """

    def __init__(self) -> None:
        self.accounts: dict[int, AccountRow] = {}
        self.tokens: dict[int, TokenRow] = {}
        self.sessions: dict[int, SessionRow] = {}
        self.head = AuditHead()

    def restore(self, snapshot: RecoverySnapshot) -> None:
        """Load everything from a recovery snapshot."""
        self.accounts = {row.account_no: row for row in snapshot.accounts}
        self.tokens = {row.token_no: row for row in snapshot.tokens}
        self.sessions = {row.session_no: row for row in snapshot.sessions}
        self.head = snapshot.audit_head

    def account(self, name: str) -> AccountRow | None:
        """Return the account with this name; ``None`` if there is none."""
        return next((row for row in self.accounts.values() if row.name == name), None)


def person_of(name: str, accounts: Accounts) -> str:
    """Return the person behind a caller: the creator of a token, or the user of a signed link.

    Args:
        name: The name of the caller, as in the audit log.
    """
    token = caller_name("", "token")
    for _ in range(_CREATORS):
        rows = [row for row in accounts.tokens.values() if token + row.name == name]
        if not rows:
            break
        name = max(rows, key=lambda row: row.token_no).created_by
    link = name.removeprefix(LINK)
    return link if link != name and accounts.account(link) is not None else name


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

    def put_session(self, row: SessionRow) -> None:
        """Add or update a session."""
        self._put("sessions", row.session_no, row)

    def drop_account(self, row: AccountRow) -> None:
        """Delete an account."""
        self._put("accounts", row.account_no, None)

    def drop_token(self, row: TokenRow) -> None:
        """Delete a token that is no longer usable."""
        self._put("tokens", row.token_no, None)

    def drop_session(self, row: SessionRow) -> None:
        """Delete a session."""
        self._put("sessions", row.session_no, None)

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
        erased = batch.erased.get(AUDIT, ())
        if not (self._lines or erased or self._is_reencrypted):
            return
        before = self._admitted.head
        last = before.last
        for line in self._lines:
            row = chained_row(self._take(), now, line, previous=last)
            batch.audit.append(row)
            last = row.digest
        head = shortened_head(
            grown_head(before, batch.audit), (int(number) for (number,) in erased)
        )
        if head != before or self._is_reencrypted:
            self._head = batch.audit_head = head

    def mark_durable(self) -> None:
        """Adopt the new audit head, because the batch is committed."""
        if self._head is not None:
            self._admitted.head = self._head

    def roll_back(self) -> None:
        """Roll back all changes to the rows in memory."""
        for (kind, number), before in self._before.items():
            rows = getattr(self._admitted, kind)
            rows.pop(number, None)
            if before is not None:
                rows[number] = before

    def _put(self, kind: str, number: int, row: AccountRow | TokenRow | SessionRow | None) -> None:
        rows = getattr(self._admitted, kind)
        self._before.setdefault((kind, number), rows.pop(number, None))
        if row is not None:
            rows[number] = row
