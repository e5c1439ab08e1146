"""The hash chain of the audit log: a changed or missing entry is detectable.

Missing entries at the end are detected by the encrypted head, which requires the key to forge.
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
"""Digest that precedes the first entry ever."""

LOST = b"lost"
"""Digest that precedes the next entry if the last one is unknown. This is detectable, too."""

_encode = msgspec.msgpack.Encoder().encode


def chained(number: int, at: Timestamp, noted: AuditEntry, *, previous: bytes) -> AuditRow:
    """Return an audit row that is chained to the digest of its predecessor."""
    said = (previous, number, at, *msgspec.structs.astuple(noted))
    digest = hashlib.sha256(_encode(said)).digest()
    return AuditRow(audit_no=number, at=at, noted=noted, previous=previous, digest=digest)


def check_chain(rows: Iterable[AuditRow], *, before: AuditRow | None = None) -> list[str]:
    """Verify the hash chain and return one message per broken entry.

    The first entry is trusted: its predecessor may have been removed by retention.

    Args:
        rows: Entries in ascending order of number.
        before: Last entry of the previous page.
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
    """Return the audit head after these entries were appended."""
    if not rows:
        return head
    written = None if head.written is None else head.written + len(rows)
    return msgspec.structs.replace(head, written=written, last=rows[-1].digest)


def shortened(head: AuditHead, numbers: Iterable[int]) -> AuditHead:
    """Return the audit head after its oldest entries were deleted.

    Numbers that were deleted before are not counted again.
    """
    gone = [number for number in numbers if number > head.erased_until]
    if not gone:
        return head
    return msgspec.structs.replace(head, erased=head.erased + len(gone), erased_until=max(gone))


def check_head(head: AuditHead, numbers: Sequence[int], last: bytes) -> list[str]:
    """Verify the audit head and return the problems found.

    Args:
        numbers: Numbers of all entries, ascending.
        last: Digest of the last entry; ``BEGINNING`` if there is none.
    """
    if head.last == LOST:
        return ["where the audit ended is not known: that is gone, or no key of this home opens it"]
    kept = len(numbers) - bisect_right(numbers, head.erased_until)
    if numbers and head.last != last:
        return [f"the audit ends with {numbers[-1]}, and did not: lines are gone, or made up"]
    if head.written is not None and kept != head.written - head.erased:
        return [f"the audit has {kept} lines, and had {head.written - head.erased}"]
    return []
