"""The legal state transitions, and the causes that permit each of them.

The two tables below are complete. A step that they do not contain is a defect, whether it comes
from a turn or from a manual change of the database. Ended states are final unless a person clears
the task or run. If a person marks a task, it is first cleared, and then ends in the requested
state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from aioflow.errors import AioflowError
from aioflow.model.states import RunState, TaskState

__all__ = (
    "RUN_MOVES",
    "TASK_MOVES",
    "Cause",
    "IllegalMove",
    "is_legal",
    "is_legal_run",
)


class IllegalMove(AioflowError):
    """An attempted step of a task or run that the tables do not contain: a defect of aioflow."""

    code = "defect.illegal_move"


class Cause(Enum):
    """The cause of a step of a task. In the descriptions, "it" is the task."""

    READY = "ready"
    """Its trigger rule was evaluated over its parents and decided that it runs."""
    UPSTREAM = "upstream"
    """Its trigger rule decided that it will never run."""
    EXPAND = "expand"
    """It is a mapped task or child, and the expansion is empty, too wide, or narrower than before.
    """
    GRANTED = "granted"
    """It got a slot, or was assigned to a host."""
    BEGAN = "began"
    """A worker started a try that it had received while it ran an earlier try."""
    RECALLED = "recalled"
    """A worker returned it without starting it."""
    INTERRUPTED = "interrupted"
    """Its process died."""
    SUCCEEDED = "succeeded"
    """It returned."""
    FAILED = "failed"
    """It raised, timed out, or returned a result that cannot be stored."""
    SKIPPED = "skipped"
    """It requested to be skipped."""
    SENSE = "sense"
    """It is a sensor that is not satisfied yet, or that ignores the error of its poke."""
    DEFERRED = "deferred"
    """It waits for a trigger."""
    EVENT = "event"
    """Its trigger fired."""
    TRIGGER_FAILED = "trigger_failed"
    """Its trigger raised, or ended without an event."""
    POKE_DUE = "poke_due"
    """The next poke of a sensor is due."""
    RETRY_DUE = "retry_due"
    """Its next try is due."""
    DEADLINE = "deadline"
    """A sensor, a wait or a try timed out, or the task did not start within its ``max_wait``."""
    CANCELLED = "cancelled"
    """A person cancelled it, or its run."""
    CLEARED = "cleared"
    """A person cleared it, so that it runs again."""
    MARKED = "marked"
    """A person marked its final state."""


_S = TaskState
_C = Cause

_MOVES: Mapping[TaskState, Mapping[TaskState, frozenset[Cause]]] = {
    _S.PENDING: {
        _S.QUEUED: frozenset({_C.READY}),
        _S.RUNNING: frozenset({_C.GRANTED}),
        # Deferred from its start, without a worker.
        _S.DEFERRED: frozenset({_C.READY}),
        _S.SUCCESS: frozenset({_C.MARKED}),
        _S.FAILED: frozenset({_C.EXPAND, _C.MARKED, _C.DEADLINE}),
        _S.UPSTREAM_FAILED: frozenset({_C.UPSTREAM}),
        _S.SKIPPED: frozenset({_C.UPSTREAM, _C.EXPAND}),
        _S.CANCELLED: frozenset({_C.CANCELLED}),
        _S.REMOVED: frozenset({_C.EXPAND}),
    },
    _S.QUEUED: {
        _S.RUNNING: frozenset({_C.GRANTED, _C.BEGAN}),
        # A hosted sensor alternates between running and being suspended; both count as sensing.
        _S.SENSING: frozenset({_C.GRANTED}),
        # Deferred from its start, without a worker; this also happens at later tries.
        _S.DEFERRED: frozenset({_C.GRANTED}),
        # A sensor, or a try that resumes, can time out while it waits for a slot.
        _S.RETRYING: frozenset({_C.DEADLINE}),
        _S.FAILED: frozenset({_C.DEADLINE}),
        _S.SKIPPED: frozenset({_C.DEADLINE}),
        _S.CANCELLED: frozenset({_C.CANCELLED}),
    },
    _S.RUNNING: {
        _S.QUEUED: frozenset({_C.INTERRUPTED, _C.RECALLED}),
        _S.SENSING: frozenset({_C.SENSE}),
        _S.DEFERRED: frozenset({_C.DEFERRED}),
        _S.RETRYING: frozenset({_C.FAILED, _C.INTERRUPTED, _C.DEADLINE}),
        _S.SUCCESS: frozenset({_C.SUCCEEDED}),
        _S.FAILED: frozenset({_C.FAILED, _C.INTERRUPTED, _C.DEADLINE}),
        _S.SKIPPED: frozenset({_C.SKIPPED, _C.FAILED, _C.DEADLINE}),
        _S.CANCELLED: frozenset({_C.CANCELLED}),
    },
    _S.SENSING: {
        _S.QUEUED: frozenset({_C.POKE_DUE, _C.EVENT, _C.INTERRUPTED}),
        _S.RUNNING: frozenset({_C.POKE_DUE, _C.EVENT}),
        _S.DEFERRED: frozenset({_C.DEFERRED}),
        _S.RETRYING: frozenset({_C.TRIGGER_FAILED, _C.FAILED, _C.INTERRUPTED}),
        _S.SUCCESS: frozenset({_C.EVENT, _C.SUCCEEDED}),
        _S.FAILED: frozenset({_C.DEADLINE, _C.TRIGGER_FAILED, _C.FAILED, _C.INTERRUPTED, _C.EVENT}),
        _S.SKIPPED: frozenset({_C.DEADLINE, _C.TRIGGER_FAILED, _C.FAILED, _C.SKIPPED, _C.EVENT}),
        _S.CANCELLED: frozenset({_C.CANCELLED}),
    },
    _S.DEFERRED: {
        # After a timeout, the task may resume in its timeout method.
        _S.QUEUED: frozenset({_C.EVENT, _C.DEADLINE}),
        # A sensor may ignore the error of its trigger.
        _S.SENSING: frozenset({_C.TRIGGER_FAILED}),
        _S.RETRYING: frozenset({_C.TRIGGER_FAILED, _C.DEADLINE, _C.EVENT}),
        _S.SUCCESS: frozenset({_C.EVENT}),
        _S.FAILED: frozenset({_C.TRIGGER_FAILED, _C.DEADLINE, _C.EVENT}),
        _S.SKIPPED: frozenset({_C.EVENT, _C.DEADLINE}),
        _S.CANCELLED: frozenset({_C.CANCELLED}),
    },
    _S.RETRYING: {
        _S.QUEUED: frozenset({_C.RETRY_DUE}),
        # A sensor has a single deadline for all of its tries.
        _S.FAILED: frozenset({_C.DEADLINE}),
        _S.SKIPPED: frozenset({_C.DEADLINE}),
        _S.CANCELLED: frozenset({_C.CANCELLED}),
    },
}

_RUN_MOVES: Mapping[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.CANCELLED}),
    RunState.RUNNING: frozenset(
        {RunState.SUCCESS, RunState.FAILED, RunState.PARTIAL, RunState.CANCELLED}
    ),
    # Its tasks were cleared.
    **{state: frozenset({RunState.QUEUED}) for state in RunState if not state.is_live},
}

_CLEARING: dict[tuple[TaskState, TaskState], frozenset[Cause]] = {
    (was, _S.PENDING): frozenset({_C.CLEARED}) for was in TaskState if was is not _S.PENDING
}

TASK_MOVES: Mapping[tuple[TaskState, TaskState], frozenset[Cause]] = _CLEARING | {
    (was, state): _MOVES[was][state] for was in TaskState for state in sorted(_MOVES.get(was, ()))
}
"""Every legal step of a task as ``(was, state)``, in order, with its causes.

The states are integers, so that SQL can use them.
"""

RUN_MOVES: tuple[tuple[RunState, RunState], ...] = tuple(
    (was, state) for was in RunState for state in sorted(_RUN_MOVES.get(was, ()))
)
"""Every legal step of a run, in order."""


def is_legal(was: TaskState, state: TaskState) -> bool:
    """Return whether a task may take this one step. Staying in a state is not a step."""
    return _STEP[was][state]


def is_legal_run(was: RunState, state: RunState) -> bool:
    """Return whether a run may take this one step. Staying in a state is not a step."""
    return _RUN_STEP[was][state]


def _matrix(size: int, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[bool, ...], ...]:
    """Return a table of pairs in which a lookup costs two index operations."""
    known = frozenset(pairs)
    return tuple(tuple((was, state) in known for state in range(size)) for was in range(size))


_STEP = _matrix(len(TaskState), TASK_MOVES)
_RUN_STEP = _matrix(len(RunState), RUN_MOVES)
