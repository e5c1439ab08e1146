"""What a backfill is: runs for the slots of a range that its schedule does not owe any more."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from aioflow.model.timestamps import Timestamp

__all__ = ("BackfillRow", "BackfillState", "Reprocess")

BackfillState: TypeAlias = Literal["running", "done", "cancelled", "failed"]

Reprocess: TypeAlias = Literal["none", "failed", "all"]
"""Which slots get another run that have one already: those whose newest run has ended badly, or
whichever has ended. A slot whose run goes on never gets another."""


class BackfillRow(msgspec.Struct, frozen=True, kw_only=True):
    """One backfill.

    Attributes:
        first, last: The range, both inclusive.
        max_active: How many of its runs are live at once; those of the DAG's schedule, and its
            ``max_active_runs``, do not count.
        is_reverse: Whether the latest slot comes first.
        conf: msgpack of the parameters of each run; ``None`` for their defaults.
        next_at: The next slot that has not been dealt with; ``None`` when all have been.
        made: How many runs it has made.
        skipped: How many slots had a run that was to stay.
        failure: Why it could not go on.
        key: The idempotency key of the request that began it.
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
