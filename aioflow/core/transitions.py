"""Which state may follow which, and who may say so.

The two tables below are closed: a step that is not in them is a defect, wherever it comes from -
a turn, a journal that is replayed, a hand in the database. Ended states are final, unless a
person clears them. A task that a person marks is cleared before it ends as that says.

A *step* is one move of the tables. The *net* change of a batch joins several steps into one,
so it may be any chain of them (``net_is_reachable``). Of a task that was cleared only the steps
tell how it came to where it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
    "net_is_reachable",
    "net_is_reachable_run",
)


class IllegalMove(AioflowError):
    """A defect of ours: a state was to follow that may not."""

    code = "defect.illegal_move"


class Cause(Enum):
    """Who says that a task moves on."""

    READY = "ready"
    """Its trigger rule, judged over its parents, says run."""
    UPSTREAM = "upstream"
    """Its trigger rule says that it will never run."""
    EXPAND = "expand"
    """Its fan-out turned out empty, too wide, or narrower than before."""
    GRANTED = "granted"
    """It was given a slot, or its place in a host."""
    BEGAN = "began"
    """A worker began a try that had been claimed behind another."""
    RECALLED = "recalled"
    """A worker gave it back before it had begun."""
    INTERRUPTED = "interrupted"
    """The process it was in died."""
    SUCCEEDED = "succeeded"
    """It returned."""
    FAILED = "failed"
    """It raised, ran into its timeout, or left nothing that can be stored."""
    SKIPPED = "skipped"
    """It asked to be skipped."""
    SENSE = "sense"
    """It is a sensor that found nothing yet, or ignores what its check raised."""
    DEFERRED = "deferred"
    """It waits for a trigger."""
    EVENT = "event"
    """Its trigger fired."""
    TRIGGER_FAILED = "trigger_failed"
    """Its trigger raised, or ended without an event."""
    LOOK_DUE = "look_due"
    """The instant of a sensor's next look has come."""
    RETRY_DUE = "retry_due"
    """The instant of its next try has come."""
    DEADLINE = "deadline"
    """The instant has come at which a sensor, a wait or a try is given up."""
    CANCELLED = "cancelled"
    """A person ended it, or its run."""
    CLEARED = "cleared"
    """A person has it begin anew."""
    MARKED = "marked"
    """A person says how it ended."""


_S = TaskState
_C = Cause

_MOVES: Mapping[TaskState, Mapping[TaskState, frozenset[Cause]]] = {
    _S.PENDING: {
        _S.QUEUED: frozenset({_C.READY}),
        _S.RUNNING: frozenset({_C.GRANTED}),
        # Straight from the start: no worker is touched.
        _S.DEFERRED: frozenset({_C.READY}),
        _S.SUCCESS: frozenset({_C.MARKED}),
        _S.FAILED: frozenset({_C.EXPAND, _C.MARKED}),
        _S.UPSTREAM_FAILED: frozenset({_C.UPSTREAM}),
        _S.SKIPPED: frozenset({_C.UPSTREAM, _C.EXPAND}),
        _S.CANCELLED: frozenset({_C.CANCELLED}),
        _S.REMOVED: frozenset({_C.EXPAND}),
    },
    _S.QUEUED: {
        _S.RUNNING: frozenset({_C.GRANTED, _C.BEGAN}),
        # A hosted sensor runs and parks by turns; all of that is sensing.
        _S.SENSING: frozenset({_C.GRANTED}),
        # Straight from the start, also of a further try.
        _S.DEFERRED: frozenset({_C.GRANTED}),
        # A sensor, or a try that resumes, can run out of time while no slot is free.
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
        _S.QUEUED: frozenset({_C.LOOK_DUE, _C.EVENT, _C.INTERRUPTED}),
        _S.RUNNING: frozenset({_C.LOOK_DUE, _C.EVENT}),
        _S.DEFERRED: frozenset({_C.DEFERRED}),
        _S.RETRYING: frozenset({_C.TRIGGER_FAILED, _C.FAILED, _C.INTERRUPTED}),
        _S.SUCCESS: frozenset({_C.EVENT, _C.SUCCEEDED}),
        _S.FAILED: frozenset({_C.DEADLINE, _C.TRIGGER_FAILED, _C.FAILED, _C.INTERRUPTED, _C.EVENT}),
        _S.SKIPPED: frozenset({_C.DEADLINE, _C.TRIGGER_FAILED, _C.FAILED, _C.SKIPPED, _C.EVENT}),
        _S.CANCELLED: frozenset({_C.CANCELLED}),
    },
    _S.DEFERRED: {
        # A wait that ran out of time may have a method for that, too.
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
        # A sensor's deadline is that of all its tries together.
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
    # Tasks of it were cleared.
    **{state: frozenset({RunState.QUEUED}) for state in RunState if not state.is_live},
}

_CLEARING: dict[tuple[TaskState, TaskState], frozenset[Cause]] = {
    (was, _S.PENDING): frozenset({_C.CLEARED}) for was in TaskState if was is not _S.PENDING
}

TASK_MOVES: Mapping[tuple[TaskState, TaskState], frozenset[Cause]] = _CLEARING | {
    (was, state): _MOVES[was][state] for was in TaskState for state in sorted(_MOVES.get(was, ()))
}
"""Every legal step of a task as ``(was, state)``, in order, and who may say so. The states are
integers, so SQL can be told them."""

RUN_MOVES: tuple[tuple[RunState, RunState], ...] = tuple(
    (was, state) for was in RunState for state in sorted(_RUN_MOVES.get(was, ()))
)
"""Every legal step of a run, in order."""


def is_legal(was: TaskState, state: TaskState) -> bool:
    """Return whether a task may take this one step. Staying is no step."""
    return _STEP[was][state]


def is_legal_run(was: RunState, state: RunState) -> bool:
    """Return whether a run may take this one step. Staying is no step."""
    return _RUN_STEP[was][state]


def net_is_reachable(was: TaskState, state: TaskState) -> bool:
    """Return whether legal steps lead from ``was`` to ``state`` without a clear in between.

    A live task may also stay where it is, with other columns changed. An ended one may not.
    """
    return _NET[was][state]


def net_is_reachable_run(was: RunState, state: RunState) -> bool:
    """See ``net_is_reachable``; a run may have been cleared in between."""
    return _RUN_NET[was][state]


def _matrix(size: int, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[bool, ...], ...]:
    """Return a table in which looking a pair up costs two index operations."""
    known = frozenset(pairs)
    return tuple(tuple((was, state) in known for state in range(size)) for was in range(size))


def _chained(task: Iterable[int], moves: Collection[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the pairs that chains of moves join, among them each live state with itself."""
    reached = {(state, state) for state in task}
    before = -1
    while len(reached) > before:
        before = len(reached)
        reached |= {(a, d) for a, b in reached for c, d in moves if b == c}
    return reached


_STEP = _matrix(len(TaskState), TASK_MOVES)
_RUN_STEP = _matrix(len(RunState), RUN_MOVES)
_NET = _matrix(len(TaskState), _chained(_MOVES, TASK_MOVES.keys() - _CLEARING.keys()))
_RUN_NET = _matrix(len(RunState), _chained(_RUN_MOVES, RUN_MOVES))
