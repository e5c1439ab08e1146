"""Audit entries as JSON, and verification of the audit's hash chain."""

from __future__ import annotations

from array import array

import msgspec

from aioflow.api.schemas import iso
from aioflow.core.state.audit_chain import BEGINNING, check_chain, check_head
from aioflow.model.access import AuditRow
from aioflow.store import Store

__all__ = ("AuditView", "audit_faults", "audit_view")

_PAGE = 1_000


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
        page = await store.read_audit(after, limit=_PAGE)
        faults += check_chain(page, before=last)
        numbers.extend(row.audit_no for row in page)
        last = page[-1] if page else last
        if len(page) == _PAGE:
            continue
        head = await store.find_audit_head()
        after = -1 if last is None else last.audit_no
        if not await store.read_audit(after, limit=1):
            digest = BEGINNING if last is None else last.digest
            return faults + check_head(head, numbers, digest)
