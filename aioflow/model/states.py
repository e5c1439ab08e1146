"""States of tasks, runs, triggers and recorded calls; trigger rules; reasons to wait or fail."""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec

from aioflow.model.timestamps import Timestamp

__all__ = (
    "CODE_MISSING",
    "IMPORT_ERROR",
    "LIVE_TASK_STATES",
    "MARKED",
    "Failure",
    "NodeState",
    "RecordState",
    "RunState",
    "TaskState",
    "TriggerRule",
    "TriggerState",
    "Wait",
    "WaitKind",
)


class TaskState(IntEnum):
    """The state of one task of one run. The live states come first, see ``is_live``."""

    PENDING = 0
    QUEUED = 1
    RUNNING = 2
    SENSING = 3
    DEFERRED = 4
    RETRYING = 5
    SUCCESS = 6
    FAILED = 7
    UPSTREAM_FAILED = 8
    SKIPPED = 9
    CANCELLED = 10
    REMOVED = 11

    @property
    def label(self) -> str:
        """The name in JSON, logs and the web UI."""
        return self.name.lower()

    @property
    def is_live(self) -> bool:
        """Whether the task has not reached a final state."""
        return self < TaskState.SUCCESS


LIVE_TASK_STATES = tuple(state for state in TaskState if state.is_live)


class RunState(IntEnum):
    """The state of one run. Live states come first."""

    QUEUED = 0
    RUNNING = 1
    SUCCESS = 2
    FAILED = 3
    PARTIAL = 4
    CANCELLED = 5

    @property
    def label(self) -> str:
        """The name in JSON, logs and the web UI."""
        return self.name.lower()

    @property
    def is_live(self) -> bool:
        """Whether the run has not reached a final state."""
        return self < RunState.SUCCESS


class TriggerState(IntEnum):
    """The state of a trigger row. After ``FIRED`` or ``ENDING`` the row is deleted."""

    WAITING = 0
    """It waits to be assigned to a host, or runs in a host."""
    FIRED = 1
    """Its event is stored. The row stays until the resumed work has ended."""
    ENDING = 2
    """Its task no longer waits for it. The row stays until its host has released it."""


class NodeState(IntEnum):
    """The state of a node. Only the active node may commit, and there is at most one."""

    STANDBY = 0
    ACTIVE = 1
    LEFT = 2
    """It has shut down cleanly."""
    DEAD = 3
    """Another node took over from it."""

    @property
    def label(self) -> str:
        """The name of the state in messages and JSON."""
        return self.name.lower()


class RecordState(IntEnum):
    """The state of a recorded call of a coroutine."""

    OPEN = 0
    """The call waits for its answer."""
    ANSWERED = 1
    FAILED = 2
    """The call raised an exception, and raises it again if the coroutine is re-run in the same try.
    """


class TriggerRule(StrEnum):
    """The rule that decides from the states of the parents whether a task runs.

    See ``core.tasks.trigger_rules``.
    """

    ALL_SUCCESS = "all_success"
    ALL_FAILED = "all_failed"
    ALL_DONE = "all_done"
    ALL_DONE_MIN_ONE_SUCCESS = "all_done_min_one_success"
    ALL_DONE_SETUP_SUCCESS = "all_done_setup_success"
    ALL_SKIPPED = "all_skipped"
    ONE_SUCCESS = "one_success"
    ONE_FAILED = "one_failed"
    ONE_DONE = "one_done"
    NONE_FAILED = "none_failed"
    NONE_FAILED_MIN_ONE_SUCCESS = "none_failed_min_one_success"
    NONE_SKIPPED = "none_skipped"
    ALWAYS = "always"


class WaitKind(StrEnum):
    """The kind of reason for which a task, run or trigger waits, as ``core.why`` determines it."""

    UPSTREAM = "upstream"
    SLOT = "slot"
    LIMIT = "limit"
    RETRY_AT = "retry_at"
    INTERVAL = "interval"
    TRIGGER = "trigger"
    EVENT = "event"
    DECISION = "decision"
    TRIGGER_CAPACITY = "trigger_capacity"
    WINDOW = "window"
    DEPENDS_ON_PAST = "depends_on_past"
    PAUSED = "paused"
    HOST = "host"
    EXECUTOR = "executor"
    CODE_MISSING = "code_missing"
    UNDECRYPTABLE = "undecryptable"
    QUARANTINED = "quarantined"
    CLEARING = "clearing"
    DATABASE = "database"


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a task, run or trigger waits.

    Attributes:
        detail: The specific reason: parents by name, a pool, a trigger's class and number.
        since: When it began to wait for this, if known.
        until: The latest time at which it continues by itself, if known.
        behind: If it waits for another live run, the ids of that run and of a task in it.
        checked_by: The number of the trigger, or of the hosted sensor, that checks the condition.
        pool: The pool that has no free slots for it.
        interval_us: How often the condition is checked, if always at the same interval.
    """

    kind: WaitKind
    detail: str = ""
    since: Timestamp | None = None
    until: Timestamp | None = None
    behind: tuple[str, str] | None = None
    checked_by: int | None = None
    pool: str | None = None
    interval_us: int | None = None


MARKED = "marked"
"""The failure reason of a task that a person marked."""


CODE_MISSING, IMPORT_ERROR = "code_missing", "import_error"
"""Failure reasons of tries that did not start, because code was missing or not importable."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The failure of a try, as stored and shown.

    Attributes:
        type: The exception's class name, or a substitute such as ``"Killed"``.
        message: One line, at most 4 KiB.
        reason: Machine-readable: ``raised``, ``timeout``, ``crashed``, ``marked`` ...
    """

    type: str
    message: str
    reason: str
