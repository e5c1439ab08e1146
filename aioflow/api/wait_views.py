"""What something waits for, and the chain of its causes, as requests are answered."""

from __future__ import annotations

import msgspec

from aioflow.model.states import Failure, RunState, TaskState, Wait, WaitKind
from aioflow.model.timestamps import Timestamp, to_datetime

__all__ = (
    "CauseView",
    "ChainView",
    "ErrorView",
    "LookedWait",
    "WaitView",
    "error_view",
    "iso",
    "shown_state",
    "wait_view",
)

_OF_SLOTS = frozenset({WaitKind.SLOT, WaitKind.LIMIT, WaitKind.HOST})


class LookedWait(Wait, frozen=True, kw_only=True):
    """A wait for something that is looked at from time to time.

    Attributes:
        last_check_at, next_check_at: When it is, where that is known.
    """

    last_check_at: Timestamp | None = None
    next_check_at: Timestamp | None = None


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """What something waits for; see ``model.Wait``.

    Attributes:
        trigger_id: The trigger that it waits for; ``None`` if it waits for none.
        last_check_at, next_check_at: When this looks, where that is known.
    """

    kind: str
    detail: str
    since: str | None
    until: str | None
    trigger_id: int | None = None
    last_check_at: str | None = None
    next_check_at: str | None = None


class ErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """Why a try ended badly; see ``model.Failure``."""

    type: str
    message: str
    reason: str


class CauseView(msgspec.Struct, frozen=True, kw_only=True):
    """A link of a chain.

    Attributes:
        depth: How far from what was asked about; a link waits for those one deeper that follow,
            or never ran because these failed.
        run_id: That of another run where a task waits for one of the run before.
        waiting_on: ``None`` for what is going on right now.
        count: Of how many children this is one: they are in the same state for the same cause.
        error: Of a task that has ended badly, where it was its own.
    """

    depth: int
    run_id: str
    task_id: str
    map_index: int
    round: int
    map_label: str | None = None
    state: str
    waiting_on: WaitView | None
    count: int = 1
    error: ErrorView | None = None


class ChainView(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run, or one of its tasks, does not go on.

    Attributes:
        more: How many links were left out.
    """

    run_id: str
    dag_id: str
    state: str
    causes: list[CauseView]
    more: int


def shown_state(state: TaskState, run_state: RunState, wait: Wait | None) -> TaskState:
    """Return the state of a task; of a pending child that waits for a slot alone ``QUEUED``."""
    is_waiting = state is TaskState.PENDING and run_state is RunState.RUNNING
    if is_waiting and wait is not None and wait.kind in _OF_SLOTS:
        return TaskState.QUEUED
    return state


def iso(at: Timestamp | None) -> str | None:
    """Return an instant as ISO 8601 in UTC; ``None`` for one a calendar does not have, too."""
    if at is None:
        return None
    try:
        moment = to_datetime(at)
    except OverflowError:
        return None
    return moment.replace(tzinfo=None).isoformat() + "Z"


def error_view(failure: Failure | None) -> ErrorView | None:
    """Return why a try ended badly as JSON has it."""
    if failure is None:
        return None
    return ErrorView(type=failure.type, message=failure.message, reason=failure.reason)


def wait_view(wait: Wait | None, state: TaskState | None = None) -> WaitView | None:
    """Return a wait as JSON has it.

    Args:
        state: Of the task that waits: one that runs does so without an answer of the engine.
    """
    is_unknown = wait is not None and wait.kind is WaitKind.DATABASE
    if wait is None or (state is TaskState.RUNNING and is_unknown):
        return None
    last, following = None, None
    if isinstance(wait, LookedWait):
        last, following = wait.last_check_at, wait.next_check_at
    return WaitView(
        kind=wait.kind.value,
        detail=wait.detail,
        since=iso(wait.since),
        until=iso(wait.until),
        trigger_id=None if wait.kind is WaitKind.INTERVAL else wait.looks_no,
        last_check_at=iso(last),
        next_check_at=iso(following),
    )
