"""JSON schemas of waits, and of chains of their causes."""

from __future__ import annotations

import msgspec

from aioflow.model.states import Failure, RunState, TaskState, Wait, WaitKind
from aioflow.model.timestamps import Timestamp, to_datetime

__all__ = (
    "CauseView",
    "ChainView",
    "ErrorView",
    "PolledWait",
    "WaitView",
    "error_view",
    "iso",
    "shown_state",
    "wait_view",
)

_OF_SLOTS = frozenset({WaitKind.SLOT, WaitKind.LIMIT, WaitKind.HOST})


class PolledWait(Wait, frozen=True, kw_only=True):
    """A wait for something that is polled.

    Attributes:
        last_check_at, next_check_at: Times of the polls, if known.
    """

    last_check_at: Timestamp | None = None
    next_check_at: Timestamp | None = None


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """What a task or run waits for; see ``model.Wait``.

    Attributes:
        trigger_id: The trigger that it waits for; ``None`` if it waits for none.
        last_check_at, next_check_at: Times of its checks, if known.
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
        depth: Distance from the start of the chain. A link waits for the links that follow with
            a depth greater by one, or never ran because these failed.
        run_id: Another run if a task waits for a task of the previous run.
        waiting_on: ``None`` for a task that is not waiting now.
        count: Number of children it represents, in the same state for the same cause.
        error: The error of a task that failed itself.
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
    """Why a run or one of its tasks does not continue.

    Attributes:
        more: Number of omitted links.
    """

    run_id: str
    dag_id: str
    state: str
    causes: list[CauseView]
    more: int


def shown_state(state: TaskState, run_state: RunState, wait: Wait | None) -> TaskState:
    """Return the state of a task; ``QUEUED`` for a pending child that only waits for a slot."""
    is_waiting = state is TaskState.PENDING and run_state is RunState.RUNNING
    if is_waiting and wait is not None and wait.kind in _OF_SLOTS:
        return TaskState.QUEUED
    return state


def iso(at: Timestamp | None) -> str | None:
    """Format a timestamp as ISO 8601 in UTC; ``None`` if it is out of the calendar's range."""
    if at is None:
        return None
    try:
        moment = to_datetime(at)
    except OverflowError:
        return None
    return moment.replace(tzinfo=None).isoformat() + "Z"


def error_view(failure: Failure | None) -> ErrorView | None:
    """Return why a try ended badly as JSON shows it."""
    if failure is None:
        return None
    return ErrorView(type=failure.type, message=failure.message, reason=failure.reason)


def wait_view(wait: Wait | None, state: TaskState | None = None) -> WaitView | None:
    """Return a wait as JSON shows it.

    Args:
        state: The state of the waiting task. For a running one, a wait for the database is
            omitted: it only means that the engine did not respond.
    """
    is_unknown = wait is not None and wait.kind is WaitKind.DATABASE
    if wait is None or (state is TaskState.RUNNING and is_unknown):
        return None
    last, following = None, None
    if isinstance(wait, PolledWait):
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
