"""Backfills: runs for a range of slots that the schedule no longer creates."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from aioflow.model.timestamps import Timestamp

__all__ = ("BackfillRow", "BackfillState", "Reprocess")

BackfillState: TypeAlias = Literal["running", "done", "cancelled", "failed"]

Reprocess: TypeAlias = Literal["none", "failed", "all"]
"""Which slots with a run get another one: those whose newest run has ended badly, or those whose
runs have all ended. A slot with a live run never gets another."""


class BackfillRow(msgspec.Struct, frozen=True, kw_only=True):
    """One backfill.

    Attributes:
        first, last: The range, both inclusive.
        max_active: Maximum number of its live runs. Runs of the DAG's schedule, and its
            ``max_active_runs``, do not count.
        is_reverse: Whether the latest slot comes first.
        conf: msgpack of the parameters of each run; ``None`` for their defaults.
        next_at: The next slot that has not been handled; ``None`` when all have been.
        made: Number of runs created.
        skipped: Number of slots whose existing run was retained.
        failure: Why it could not continue.
        key: The idempotency key of the request that started it.
    """

    backfill_no: int
    dag_id: str
    first: Timestamp
    last: Timestamp
    reprocess: Reprocess
    max_active: int
    is_reverse: bool
    state: BackfillState = "running"
    conf: bytes | None = None
    next_at: Timestamp | None = None
    made: int = 0
    skipped: int = 0
    created_at: Timestamp = 0
    ended_at: Timestamp | None = None
    failure: str | None = None
    key: str | None = None
