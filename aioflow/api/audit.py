"""Audit: entries as JSON, verification of the hash chain, and entries of denied requests.

Requests that are denied before they reach the engine are written at a limited rate. The first
denial of a kind is written at once. Repetitions, with the same caller, address and reason, are
counted and summarized in one entry: after one minute, then after two more, up to once an hour while
they continue. There may be a hundred new kinds at once, then one per second; of the others only the
count is written. Unknown callers have a budget of their own, so that they cannot hide denials of
known ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec

from aioflow.api.schemas import iso
from aioflow.core.state.accounts import CHAIN_BEGINNING, check_chain, check_head
from aioflow.model.access import AuditEntry, AuditRow
from aioflow.store import Store

__all__ = (
    "DENIAL_KINDS",
    "UNWRITTEN_DENIALS",
    "AuditView",
    "DeniedRequests",
    "audit_faults",
    "audit_view",
)

_ROWS_AT_ONCE = 1_000


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """An audit entry.

    Attributes:
        outcome: ``done`` or ``refused``.
        code: Why it was refused.
    """

    audit_id: int
    at: str
    actor: str
    role: str
    action: str
    target: str
    outcome: str
    code: str | None
    before: str | None
    after: str | None
    address: str


def audit_view(row: AuditRow) -> AuditView:
    """Return an audit entry as JSON shows it."""
    said = row.noted
    return AuditView(
        audit_id=row.audit_no,
        at=iso(row.at) or "",
        actor=said.actor,
        role=said.role,
        action=said.action,
        target=said.target,
        outcome="refused" if said.is_refused else "done",
        code=said.code,
        before=said.before,
        after=said.after,
        address=said.address,
    )


async def audit_faults(store: Store) -> list[str]:
    """Verify the audit page by page and return its faults. It may grow meanwhile."""
    faults: list[str] = []
    numbers = array("q")
    last: AuditRow | None = None
    while True:
        after = -1 if last is None else last.audit_no
        page = await store.read_audit(after, limit=_ROWS_AT_ONCE)
        faults += check_chain(page, before=last)
        numbers.extend(row.audit_no for row in page)
        last = page[-1] if page else last
        if len(page) == _ROWS_AT_ONCE:
            continue
        head = await store.find_audit_head()
        after = -1 if last is None else last.audit_no
        if not await store.read_audit(after, limit=1):
            digest = CHAIN_BEGINNING if last is None else last.digest
            return faults + check_head(head, numbers, digest)


DENIAL_KINDS = 1_000
"""Kinds that are tracked at once."""

UNWRITTEN_DENIALS = 1_000
"""Entries that wait to be written while the database is away."""

_DENIAL_BURST = 100.0
_DENIALS_PER_SECOND = 1.0
_FIRST_SUMMARY_SECONDS, _LONGEST_SUMMARY_SECONDS = 60.0, 3_600.0
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class _DenialKind(msgspec.Struct):
    """Repeated denials of one kind.

    Attributes:
        last: The latest entry.
        count: Denials since the last written entry.
        due: When the next summary is due, in monotonic seconds.
    """

    last: AuditEntry
    due: float
    seconds: float = _FIRST_SUMMARY_SECONDS
    count: int = 0


class _DenialBudget:
    """Rate limit for new kinds; denials beyond it are counted."""

    def __init__(self) -> None:
        self.missed = 0
        self._left = _DENIAL_BURST
        self._at = 0.0

    def take(self, now: float) -> bool:
        """Return whether another entry may be written, at monotonic seconds."""
        self._left = min(_DENIAL_BURST, self._left + (now - self._at) * _DENIALS_PER_SECOND)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class DeniedRequests:
    """Audit entries that wait to be written. Their number is bounded at any rate of requests."""

    def __init__(self) -> None:
        self._lines: list[AuditEntry] = []
        self._kinds: dict[tuple[str | None, ...], _DenialKind] = {}
        self._budgets = {False: _DenialBudget(), True: _DenialBudget()}
        self._told_at: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to write, now or later."""
        return not (self._lines or self._kinds or self._missed)

    @property
    def _missed(self) -> int:
        return sum(budget.missed for budget in self._budgets.values())

    def add(self, line: AuditEntry, now: float) -> None:
        """Queue an entry, or count it.

        Args:
            now: Monotonic seconds.
        """
        key = _denial_key(line)
        kind = self._kinds.get(key)
        if kind is not None:
            kind.last = line
            kind.count += 1
            return
        budget = self._budgets[bool(line.actor)]
        has_room = len(self._kinds) < DENIAL_KINDS and len(self._lines) < UNWRITTEN_DENIALS
        if not (has_room and budget.take(now)):
            budget.missed += 1
            return
        self._lines.append(line)
        self._kinds[key] = _DenialKind(line, now + _FIRST_SUMMARY_SECONDS)

    def take(self, now: float, *, is_last: bool = False) -> list[AuditEntry]:
        """Remove and return the entries that are due.

        Args:
            is_last: Whether the daemon stops; then all entries are returned.
        """
        lines, self._lines = self._lines, []
        for key, kind in list(self._kinds.items()):
            if not (is_last or kind.due <= now):
                continue
            if not kind.count:
                del self._kinds[key]
                continue
            lines.append(_summary_entry(kind, kind.seconds - max(0.0, kind.due - now)))
            kind.count = 0
            kind.seconds = min(2 * kind.seconds, _LONGEST_SUMMARY_SECONDS)
            kind.due = now + kind.seconds
        return lines + self._left_out(now, is_last=is_last)

    def lose(self, lines: Iterable[AuditEntry]) -> None:
        """Count entries that could not be written."""
        for line in lines:
            self._budgets[bool(line.actor)].missed += 1

    def _left_out(self, now: float, *, is_last: bool) -> list[AuditEntry]:
        """Return entries with the number of denials that were left out, at most once a minute."""
        if not self._missed:
            self._told_at = None
            return []
        if self._told_at is None:
            self._told_at = now
        if now - self._told_at < _FIRST_SUMMARY_SECONDS and not is_last:
            return []
        lines = []
        for is_known, budget in self._budgets.items():
            if budget.missed:
                lines.append(_left_out_entry(budget.missed, is_known=is_known))
                budget.missed = 0
        return lines


def _denial_key(line: AuditEntry) -> tuple[str | None, ...]:
    """Return the kind of a denial. Of an unknown caller's reads, the target is ignored."""
    is_anything = not line.actor and line.action in _READING_METHODS
    target = "" if is_anything else line.target
    return (line.actor, line.role, line.address, line.action, line.code, target)


def _summary_entry(kind: _DenialKind, seconds: float) -> AuditEntry:
    return msgspec.structs.replace(kind.last, after=f"{kind.count} more in {seconds:.0f} s")


def _left_out_entry(count: int, *, is_known: bool) -> AuditEntry:
    who = "known callers" if is_known else "unknown callers"
    return AuditEntry(
        actor="",
        role="",
        action="refusals.left_out",
        target=f"{count} more of {who}",
        address="",
        is_refused=True,
        code="audit.left_out",
    )
