"""The lines of the audit, each bound to the one before: one that is changed or gone shows.

That the last ones are gone shows by its head, which is sealed: who has no key makes none.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from aioflow.model.access import AuditEntry, AuditHead, AuditRow
from aioflow.model.timestamps import Timestamp

__all__ = ("BEGINNING", "LOST", "chained", "check_chain", "check_head", "grown", "shortened")

BEGINNING = b""
"""What the first line of all is bound to."""

LOST = b"lost"
"""What the next line is bound to where nobody can say which was the last: that shows, too."""

_encode = msgspec.msgpack.Encoder().encode


def chained(number: int, at: Timestamp, noted: AuditEntry, *, previous: bytes) -> AuditRow:
    """Return a line, bound to the digest of the line before."""
    said = (previous, number, at, *msgspec.structs.astuple(noted))
    digest = hashlib.sha256(_encode(said)).digest()
    return AuditRow(audit_no=number, at=at, noted=noted, previous=previous, digest=digest)


def check_chain(rows: Iterable[AuditRow], *, before: AuditRow | None = None) -> list[str]:
    """Return what is wrong with lines by number; nothing if all is well.

    What is kept begins anywhere: its first line is believed to follow one that has gone.

    Args:
        before: The last line of the page before.
    """
    faults = []
    for row in rows:
        if chained(row.audit_no, row.at, row.noted, previous=row.previous) != row:
            faults.append(f"audit {row.audit_no} is not as it was written")
        elif before is not None and row.previous != before.digest:
            faults.append(f"audit {row.audit_no} does not follow {before.audit_no}: lines are gone")
        before = row
    return faults


def grown(head: AuditHead, rows: Sequence[AuditRow]) -> AuditHead:
    """Return where the audit ends with these lines."""
    if not rows:
        return head
    written = None if head.written is None else head.written + len(rows)
    return msgspec.structs.replace(head, written=written, last=rows[-1].digest)


def shortened(head: AuditHead, numbers: Iterable[int]) -> AuditHead:
    """Return it without these, its oldest lines; one that has gone before counts once."""
    gone = [number for number in numbers if number > head.erased_until]
    if not gone:
        return head
    return msgspec.structs.replace(head, erased=head.erased + len(gone), erased_until=max(gone))


def check_head(head: AuditHead, numbers: Sequence[int], last: bytes) -> list[str]:
    """Return what is wrong with the audit's ends.

    Args:
        numbers: Of all its lines, in order.
        last: The digest of the last one; ``BEGINNING`` if there is none.
    """
    if head.last == LOST:
        return ["where the audit ended is not known: that is gone, or no key of this home opens it"]
    kept = len(numbers) - bisect_right(numbers, head.erased_until)
    if numbers and head.last != last:
        return [f"the audit ends with {numbers[-1]}, and did not: lines are gone, or made up"]
    if head.written is not None and kept != head.written - head.erased:
        return [f"the audit has {kept} lines, and had {head.written - head.erased}"]
    return []
