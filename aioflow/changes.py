"""What a batch changes of rows that are there: where each stands, and where it goes."""

from __future__ import annotations

import msgspec

from aioflow.model import (
    Failure,
    Instant,
    RecordState,
    RunNo,
    RunState,
    StartNo,
    TaskNo,
    TaskState,
    TriggerNo,
    TriggerState,
)

__all__ = (
    "ExpansionChange",
    "RecordChange",
    "RunChange",
    "TaskChange",
    "TriggerChange",
)


class RunChange(msgspec.Struct, frozen=True, array_like=True):
    """A run moves from ``was`` to ``state``; the other columns take these values."""

    run_no: RunNo
    was: RunState
    state: RunState
    started_at: Instant | None
    ended_at: Instant | None
    quarantine: str | None


class TaskChange(msgspec.Struct, frozen=True, array_like=True):
    """A task row moves on. Guarded by ``was`` and ``was_start_no``; the rest are new values."""

    task_no: TaskNo
    was: TaskState
    was_start_no: StartNo
    state: TaskState
    try_number: int
    start_no: StartNo
    interruptions: int
    due_at: Instant | None
    deadline_at: Instant | None
    queued_at: Instant | None
    started_at: Instant | None
    ended_at: Instant | None
    failure: Failure | None


class TriggerChange(msgspec.Struct, frozen=True, array_like=True):
    """A trigger row moves from ``was`` to ``state``; ``None`` for the state deletes it."""

    trigger_no: TriggerNo
    was: TriggerState
    state: TriggerState | None
    event: bytes | None
    event_key: str | None
    failure: Failure | None = None


class RecordChange(msgspec.Struct, frozen=True, array_like=True):
    """An open record is answered, or failed."""

    task_no: TaskNo
    ordinal: int
    state: RecordState
    answer: bytes | None
    failure: Failure | None


class ExpansionChange(msgspec.Struct, frozen=True, array_like=True):
    """An open expansion grows from ``was`` to ``width``, or is closed."""

    run_no: RunNo
    position: int
    was: int
    width: int
    is_open: bool
