"""The lines of the audit, each bound to the one before: one that is changed or gone shows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from aioflow.access import AuditRow, Noted
from aioflow.model import Instant

__all__ = ("BEGINNING", "chained", "check_chain")

BEGINNING = b""
"""What the first line of all is bound to."""

_encode = msgspec.msgpack.Encoder().encode


def chained(number: int, at: Instant, noted: Noted, *, previous: bytes) -> AuditRow:
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
