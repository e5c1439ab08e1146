"""The audit: read, checked, and told of what was refused before the engine heard of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aioflow.access import AuditRow, Noted
from aioflow.api.views import iso
from aioflow.core.audit_chain import check_chain
from aioflow.store import Store

__all__ = ("AuditView", "Refusals", "audit_faults", "audit_view")

_PAGE = 1_000

_BURST = 100.0
_PER_SECOND = 1.0
_TOLD_SECONDS = 60.0
"""Between two lines that tell how many were left out."""


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the audit.

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
    """Return a line as it is told."""
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
    """Return what is wrong with the chain of the audit, read a page at a time."""
    faults: list[str] = []
    before: AuditRow | None = None
    while True:
        page = await store.read_audit(-1 if before is None else before.audit_no, limit=_PAGE)
        faults += check_chain(page, before=before)
        if len(page) < _PAGE:
            return faults
        before = page[-1]


class _Budget:
    """What may be written: a burst, then one line a second; the rest is counted."""

    def __init__(self) -> None:
        self.missed = 0
        self._left = _BURST
        self._at = 0.0

    def take(self, now: float) -> bool:
        """Whether one more line may be written, monotonic seconds."""
        self._left = min(_BURST, self._left + (now - self._at) * _PER_SECOND)
        self._at = now
        if self._left < 1:
            self.missed += 1
            return False
        self._left -= 1
        return True


class Refusals:
    """Lines about what was refused, waiting to be written: so many that no flood fills a disk.

    What comes from nobody known has a budget of its own, so that it hides nothing.
    """

    def __init__(self) -> None:
        self._lines: list[Noted] = []
        self._budgets = {False: _Budget(), True: _Budget()}
        self._told_at = 0.0

    def add(self, line: Noted, now: float) -> bool:
        """Keep a line, or count it; whether there is something to be written.

        Args:
            now: Monotonic seconds.
        """
        if self._budgets[bool(line.actor)].take(now):
            self._lines.append(line)
        return bool(self._lines)

    def take(self, now: float) -> Sequence[Noted]:
        """Return what is to be written now."""
        lines, self._lines = self._lines, []
        if now - self._told_at >= _TOLD_SECONDS:
            for is_known, budget in self._budgets.items():
                if budget.missed:
                    lines.append(_left_out(budget.missed, is_known=is_known))
                    self._told_at = now
                    budget.missed = 0
        return lines


def _left_out(count: int, *, is_known: bool) -> Noted:
    who = "known callers" if is_known else "unknown callers"
    return Noted(
        actor="",
        role="",
        action="refusals.left_out",
        target=f"{count} more of {who}",
        address="",
        is_refused=True,
        code="audit.left_out",
    )
