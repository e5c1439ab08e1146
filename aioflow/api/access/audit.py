"""Audit entries as JSON, verification of the hash chain, and entries for denied requests.

Requests that are denied before they reach the engine are written at a limited rate. Denials are of
one kind if they have the same caller, address, action, target and error code. The first denial of a
kind is written at once. Further ones are counted, and one entry summarizes them after ten minutes.
At most 100 kinds are written in this period; for all further kinds, only a total count is written.
Unknown callers have a separate limit of 100 kinds, so that they cannot hide known callers' denials.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from aioflow.api.schemas import instant, iso
from aioflow.core.state.accounts import CHAIN_BEGINNING, check_chain, check_head
from aioflow.model.access import AuditEntry, AuditFilter, AuditRow
from aioflow.store import Store

__all__ = (
    "DENIAL_KINDS",
    "DENIAL_SECONDS",
    "AuditView",
    "DeniedRequests",
    "audit_faults",
    "audit_filter",
    "audit_view",
)

_ROWS_AT_ONCE = 1_000


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """An audit entry.

    Attributes:
        outcome: ``done`` or ``refused``.
        code: The error code, if the request was refused.
        before, after: The value before and after the change. After an action on many runs, the ids
            of the runs; in a list of entries, only the first ids.
        more: Number of ids that were left out.
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
    more: int = 0


_LISTED_LENGTH = 500


def audit_view(row: AuditRow, *, is_whole: bool = False) -> AuditView:
    """Return an audit entry in its JSON form.

    Args:
        is_whole: Whether to include the ids of all runs of an action on many runs.
    """
    said, more = row.noted, 0
    if said.after is not None and len(said.after) > _LISTED_LENGTH and not is_whole:
        shown = said.after[:_LISTED_LENGTH].rpartition(" ")[0]
        more = said.after.count(" ") - shown.count(" ")
        said = msgspec.structs.replace(said, after=shown)
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
        more=more,
    )


def audit_filter(named: Mapping[str, Any]) -> AuditFilter:
    """Return the filter for the parameters of a request.

    Raises:
        RequestError: If a time is invalid.
    """
    outcome, first, last = (named.get(name) for name in ("outcome", "from", "to"))
    return AuditFilter(
        actor=named.get("actor") or "",
        action=named.get("action") or "",
        target=named.get("target") or "",
        is_refused=None if outcome is None else outcome == "refused",
        first=None if first is None else instant(first, "from"),
        last=None if last is None else instant(last, "to"),
    )


async def audit_faults(store: Store) -> list[str]:
    """Verify the audit page by page and return its faults. Entries may be added while it runs."""
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


DENIAL_KINDS = 100
"""Maximum number of kinds written per period, separately for known and for unknown callers."""

DENIAL_SECONDS = 600.0
"""Duration of the period in which denials are counted."""

_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class _DenialKind(msgspec.Struct):
    """The denials of one kind in a period; ``count`` does not include the first one."""

    last: AuditEntry
    count: int = 0


class _Denials:
    """The denials in a period, either of known callers or of unknown callers."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[str | None, ...], _DenialKind] = {}
        self.left_out = 0

    def add(self, line: AuditEntry) -> bool:
        """Count a denial. Return whether it gets a separate entry."""
        key = _denial_key(line)
        kind = self.kinds.get(key)
        if kind is not None:
            kind.last = line
            kind.count += 1
            return False
        if len(self.kinds) >= DENIAL_KINDS:
            self.left_out += 1
            return False
        self.kinds[key] = _DenialKind(line)
        return True


class DeniedRequests:
    """Audit entries of denied requests until they are written. Bounded for any rate of requests."""

    def __init__(self) -> None:
        self._lines: list[AuditEntry] = []
        self._denials = {is_known: _Denials() for is_known in (False, True)}
        self._began: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write: no entries, and no counts to summarize later."""
        return self._began is None

    def add(self, line: AuditEntry, now: float) -> None:
        """Queue an entry for a denial, or only count it.

        Args:
            now: Monotonic seconds.
        """
        if self._began is None:
            self._began = now
        if self._denials[bool(line.actor)].add(line):
            self._lines.append(line)

    def take(self, now: float, *, is_last: bool = False) -> list[AuditEntry]:
        """Remove and return the entries that are due.

        Args:
            is_last: Whether the daemon is stopping. If so, all entries are returned.
        """
        lines, self._lines = self._lines, []
        if self._began is None:
            return lines
        seconds = now - self._began
        if seconds < DENIAL_SECONDS and not is_last:
            return lines
        for is_known, denials in self._denials.items():
            lines += [_summary_entry(k, seconds) for k in denials.kinds.values() if k.count]
            if denials.left_out:
                lines.append(_left_out_entry(denials.left_out, is_known=is_known))
            self._denials[is_known] = _Denials()
        self._began = None
        return lines

    def lose(self, lines: Iterable[AuditEntry], now: float) -> None:
        """Count entries that could not be written."""
        for line in lines:
            self._denials[bool(line.actor)].left_out += 1
            self._began = now if self._began is None else self._began


def _denial_key(line: AuditEntry) -> tuple[str | None, ...]:
    """Return the kind of a denial. For a read by an unknown caller, the target is ignored."""
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
