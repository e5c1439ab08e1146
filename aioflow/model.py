"""The vocabulary: states, waits, what a DAG file says, and what a database row holds.

Words used everywhere:

* A **DAG** is what an author wrote; a **version** is the hash of the code it came from.
* A **run** is one execution of a DAG. ``run_id`` is its public name, ``run_no`` its row.
* A **task** of a DAG has a ``task_id`` and a ``position`` (its index in the DAG's tasks).
  One execution of it inside a run is a row ``task_no``; a mapped task has one per index.
  Numbers are laid out so that a row need not exist to be addressed: the unmapped task at
  ``position`` is ``run.first_task_no + position``, child ``i`` of a mapped one is
  ``expansion.first_task_no + i``. **A task without a row is pending.**
* A **try** is one attempt as the author counts them; a **start** is one handing over to a
  process. ``start_no`` grows by one per start of a task and never restarts.

Instants are integers: microseconds since 1970-01-01 UTC. Lengths of time end in ``_us``.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TypeAlias

import msgspec

__all__ = (
    "DEFAULT_POOL",
    "LIVE_TASK_STATES",
    "Alert",
    "Batch",
    "Body",
    "DagFileRow",
    "DagRow",
    "DagSpec",
    "ExpansionRow",
    "Failure",
    "Instant",
    "JournalRow",
    "LiveRun",
    "MapSource",
    "MapSpec",
    "OutboxRow",
    "PoolRow",
    "ResultRow",
    "RetryPolicy",
    "RunChange",
    "RunNo",
    "RunRow",
    "RunState",
    "ScheduleSpec",
    "SensorSpec",
    "Snapshot",
    "StartNo",
    "TaskChange",
    "TaskNo",
    "TaskRow",
    "TaskSpec",
    "TaskState",
    "TriggerChange",
    "TriggerNo",
    "TriggerRow",
    "TriggerRule",
    "TriggerState",
    "TryRow",
    "VersionRow",
    "Wait",
    "WaitKind",
)

Instant: TypeAlias = int
RunNo: TypeAlias = int
TaskNo: TypeAlias = int
TriggerNo: TypeAlias = int
StartNo: TypeAlias = int

DEFAULT_POOL = "default"


class TaskState(IntEnum):
    """Where one task of one run stands. The live states come first, see ``is_live``."""

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
        """The name in JSON, logs and the page."""
        return self.name.lower()

    @property
    def is_live(self) -> bool:
        """Whether something can still happen to it."""
        return self < TaskState.SUCCESS


LIVE_TASK_STATES = tuple(state for state in TaskState if state.is_live)


class RunState(IntEnum):
    """Where one run stands. Live states come first."""

    QUEUED = 0
    RUNNING = 1
    SUCCESS = 2
    FAILED = 3
    PARTIAL = 4
    CANCELLED = 5

    @property
    def label(self) -> str:
        """The name in JSON, logs and the page."""
        return self.name.lower()

    @property
    def is_live(self) -> bool:
        """Whether something can still happen to it."""
        return self < RunState.SUCCESS


class TriggerState(IntEnum):
    """The life of a trigger row. It is deleted once its task has gone on from its event."""

    WAITING = 0
    """To be hosted, or hosted."""
    FIRED = 1
    """Its event is stored; the row stays until the resumed work is over."""
    ENDING = 2
    """Its task no longer waits for it; the row stays until its host has let go of it."""


class TriggerRule(StrEnum):
    """When a task runs, by the states of its parents. See ``core.rules`` for the table."""

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
    """Why something is not going on right now. Closed; derived by ``core.why``."""

    UPSTREAM = "upstream"
    SLOT = "slot"
    LIMIT = "limit"
    RETRY_AT = "retry_at"
    INTERVAL = "interval"
    TRIGGER = "trigger"
    EVENT = "event"
    TRIGGER_CAPACITY = "trigger_capacity"
    WINDOW = "window"
    DEPENDS_ON_PAST = "depends_on_past"
    PAUSED = "paused"
    HOST = "host"
    EXECUTOR = "executor"
    CODE_MISSING = "code_missing"
    UNDECRYPTABLE = "undecryptable"
    QUARANTINED = "quarantined"
    DATABASE = "database"


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """What something waits for.

    Attributes:
        detail: The concrete thing: parents by name, a pool, a trigger's class and number.
        since: When it began to wait for this, where that is known.
        until: When it goes on by itself at the latest, where that is known.
    """

    kind: WaitKind
    detail: str = ""
    since: Instant | None = None
    until: Instant | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a try ended badly, as stored and shown.

    Attributes:
        type: The exception's class name, or what stood in for one (``"Killed"``).
        message: One line, at most 4 KiB.
        reason: Machine-readable: ``raised``, ``timeout``, ``crashed``, ``oom``, ``exit``,
            ``result_too_large``, ``unserializable``, ``fanout_cap``, ``trigger``,
            ``interrupted``, ``sensor_timeout``, ``not_ready`` ...
    """

    type: str
    message: str
    reason: str


# ── what a DAG file says: made by a parser child, read by everyone ──────────────────────


class Body(StrEnum):
    """Where a task's code runs."""

    FUNCTION = "def"
    COROUTINE = "async"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed try runs again. ``tries`` counts the first one, too.

    The delay before try n+1 is ``delay_us * factor**(n-1)``, at most ``max_delay_us``, of
    which full jitter takes a random share away when ``jitter`` is set.
    """

    tries: int = 3
    delay_us: int = 2_000_000
    factor: float = 2.0
    max_delay_us: int | None = None
    jitter: bool = True


class SensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How often a sensor looks, and for how long, counted from its first look."""

    interval_us: int = 60_000_000
    timeout_us: int = 43_200_000_000
    backoff: float = 1.0
    max_interval_us: int | None = None
    on_timeout: str = "fail"
    on_error: str = "retry"


class MapSource(msgspec.Struct, frozen=True, array_like=True):
    """One argument of ``expand``: a literal of ``width`` items, or a parent's result.

    Attributes:
        parameter: The argument it fills.
        position: The parent whose list it is, or -1 for a literal.
        width: Items of a literal, or -1 for a parent's result.
    """

    parameter: str
    position: int
    width: int


class MapSpec(msgspec.Struct, frozen=True):
    """How a task fans out. The last source varies fastest in a product."""

    sources: tuple[MapSource, ...]


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a DAG, as the engine needs it. Values and code stay with the children.

    Attributes:
        parents: Positions, ascending, each once.
        argument_parents: Those of ``parents`` whose result it takes as an argument.
        feeds_limit: The smallest ``map_limit`` of the tasks that expand over its result, or
            ``None`` if none does. Its list is then written as an indexed file.
        slots: What it weighs in its pool while it runs.
        window: Children materialised and unfinished at once; ``None`` for no bound.
        execution_timeout_us: Of one try, running and deferred together.
    """

    task_id: str
    body: Body = Body.FUNCTION
    parents: tuple[int, ...] = ()
    argument_parents: tuple[int, ...] = ()
    rule: TriggerRule = TriggerRule.ALL_SUCCESS
    retry: RetryPolicy = RetryPolicy()
    pool: str = DEFAULT_POOL
    slots: int = 1
    priority: int = 0
    mapped: MapSpec | None = None
    map_limit: int = 50_000
    window: int | None = None
    feeds_limit: int | None = None
    sensor: SensorSpec | None = None
    execution_timeout_us: int | None = None
    max_active_tis_per_dagrun: int | None = None
    doc: str = ""
    line: int = 0


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """When runs start: a cron expression or a fixed interval, never both.

    Attributes:
        anchor: An instant that is a slot of the interval; the others are whole intervals away.
    """

    cron: str | None = None
    every_us: int | None = None
    anchor: Instant = 0


class DagSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One DAG of one version.

    Attributes:
        tasks: In the order they were written; a position is an index into it.
        parameters: Names of the parameters a run's conf may set.
        required: Those of them without a default.
    """

    dag_id: str
    file: str
    tasks: tuple[TaskSpec, ...]
    schedule: ScheduleSpec | None = None
    timezone: str = "UTC"
    start_date: Instant | None = None
    end_date: Instant | None = None
    catchup: bool = False
    max_active_runs: int = 16
    max_active_tasks: int | None = None
    parameters: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    doc: str = ""
    line: int = 0


# ── rows ────────────────────────────────────────────────────────────────────────────────


class DagFileRow(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a DAG folder, and what came of parsing it last.

    Attributes:
        version: Its last good version; kept while the file is broken.
        reason: ``None`` if the last parse went well, else machine-readable.
    """

    file: str
    version: str | None
    reason: str | None = None
    message: str | None = None
    parsed_at: Instant = 0


class DagRow(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG by name.

    Attributes:
        version: The newest good version; new runs use it.
        next_run_at: The slot of the schedule that comes next, if it has one.
        gone: Its file no longer defines it; it starts no run.
    """

    dag_id: str
    file: str
    version: str
    paused: bool = False
    next_run_at: Instant | None = None
    gone: bool = False


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One version of the code of one file, with the DAGs it defines.

    Attributes:
        version: Hex digest over the file and the local modules it imports.
        dags: What it defines.
        sources: Relative path -> content; what a snapshot folder is made of.
    """

    version: str
    file: str
    dags: tuple[DagSpec, ...]
    sources: dict[str, bytes]
    created_at: Instant


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        cause: ``manual`` or ``schedule``.
        logical_date: The slot it stands for; ``None`` if a person started it without one.
        conf: msgpack of the parameters that were given; ``None`` if none were.
        key: Idempotency key, unique in its DAG.
        quarantine: Why the engine holds it still; ``None`` for a healthy run.
    """

    run_no: RunNo
    run_id: str
    dag_id: str
    version: str
    state: RunState
    cause: str
    first_task_no: TaskNo
    logical_date: Instant | None = None
    conf: bytes | None = None
    key: str | None = None
    created_at: Instant = 0
    started_at: Instant | None = None
    ended_at: Instant | None = None
    quarantine: str | None = None


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """One task of one run in its current try.

    Attributes:
        map_index: -1 for an unmapped task, and for a mapped one that ended unexpanded.
        interruptions: Starts cut short by infrastructure; they cost no try.
        due_at: When it goes on: the retry's instant, or a sensor's next look.
        deadline_at: When a sensor gives up; set at its first look, the same in every try.
        queued_at: When it could first have run in this try.
        failure: Of the last failed try; kept when a later one succeeds.
    """

    task_no: TaskNo
    run_no: RunNo
    position: int
    map_index: int
    state: TaskState
    try_number: int
    start_no: StartNo
    interruptions: int = 0
    due_at: Instant | None = None
    deadline_at: Instant | None = None
    queued_at: Instant | None = None
    started_at: Instant | None = None
    ended_at: Instant | None = None
    failure: Failure | None = None


class ExpansionRow(msgspec.Struct, frozen=True, kw_only=True):
    """How wide a mapped task of a run is. Written once, before its first child."""

    run_no: RunNo
    position: int
    width: int
    first_task_no: TaskNo


class TryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A try that ended in anything but a first success, kept for people to read."""

    task_no: TaskNo
    start_no: StartNo
    run_no: RunNo
    try_number: int
    state: TaskState
    started_at: Instant | None
    ended_at: Instant
    failure: Failure | None


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a task returned. ``None`` has no row.

    Attributes:
        start_no: The start that returned it; with ``task_no`` it names the file.
        body: msgpack, at most 64 KiB; ``None`` if it is in a file.
        size: Bytes.
        width: Items, if it feeds an ``expand``; then it is an indexed file.
    """

    task_no: TaskNo
    run_no: RunNo
    start_no: StartNo
    body: bytes | None
    size: int
    width: int | None = None


class TriggerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A wait.

    Attributes:
        kwargs: msgpack of the trigger's fields. Sealed at rest: the store seals what it
            writes and unseals what it reads; ``None`` where no key at hand opens it.
        since: When its task began to wait.
        deadline_at: When the wait fails.
        next_method: Where the task resumes.
        next_kwargs: msgpack, handed to ``next_method``.
        event: msgpack of the payload, once it fired.
    """

    trigger_no: TriggerNo
    task_no: TaskNo
    run_no: RunNo
    state: TriggerState
    class_path: str
    kwargs: bytes | None
    since: Instant
    deadline_at: Instant | None = None
    next_method: str = ""
    next_kwargs: bytes | None = None
    event: bytes | None = None
    event_key: str | None = None


class PoolRow(msgspec.Struct, frozen=True, kw_only=True):
    """A named limit on running tasks. The default pool has no row and no limit."""

    name: str
    slots: int
    include_deferred: bool = False


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """An owed effect: done at least once, deleted by the input that reports it done."""

    outbox_no: int
    kind: str
    body: bytes


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An owed word to the people on call: the body of an outbox row of kind ``alert``."""

    reason: str
    dag_id: str
    run_id: str
    task_id: str
    message: str


class JournalRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch changed, compactly: the audit, and what a replay rebuilds tables from."""

    commit_no: int
    at: Instant
    body: bytes


# ── a batch: the net change of one turn ─────────────────────────────────────────────────


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


class Batch(msgspec.Struct, kw_only=True):
    """Everything one turn changes, applied in one transaction or not at all.

    Attributes:
        number: This node's commit number, one more than the last.
        at: When it was decided.
        steps: The ways between: ``(task_no, state)`` for each step a task took, in order,
            for the journal; the changes hold only the net.
        results: Replace what an earlier try of the task left.
        dags: Whole rows, inserted or replaced.
        dag_files: Whole rows, inserted or replaced.
        gone_files: Files whose row is deleted.
        pools: Whole rows, inserted or replaced.
        gone_pools: Names of pools whose row is deleted.
    """

    number: int
    at: Instant
    steps: list[tuple[TaskNo, TaskState]] = msgspec.field(default_factory=list)
    new_runs: list[RunRow] = msgspec.field(default_factory=list)
    run_changes: list[RunChange] = msgspec.field(default_factory=list)
    new_tasks: list[TaskRow] = msgspec.field(default_factory=list)
    task_changes: list[TaskChange] = msgspec.field(default_factory=list)
    new_expansions: list[ExpansionRow] = msgspec.field(default_factory=list)
    new_tries: list[TryRow] = msgspec.field(default_factory=list)
    results: list[ResultRow] = msgspec.field(default_factory=list)
    new_triggers: list[TriggerRow] = msgspec.field(default_factory=list)
    trigger_changes: list[TriggerChange] = msgspec.field(default_factory=list)
    new_versions: list[VersionRow] = msgspec.field(default_factory=list)
    dags: list[DagRow] = msgspec.field(default_factory=list)
    dag_files: list[DagFileRow] = msgspec.field(default_factory=list)
    gone_files: list[str] = msgspec.field(default_factory=list)
    new_outbox: list[OutboxRow] = msgspec.field(default_factory=list)
    done_outbox: list[int] = msgspec.field(default_factory=list)
    pools: list[PoolRow] = msgspec.field(default_factory=list)
    gone_pools: list[str] = msgspec.field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether committing it would change nothing."""
        return not any(
            getattr(self, name) for name in self.__struct_fields__ if name not in {"number", "at"}
        )


# ── what a restart reads ────────────────────────────────────────────────────────────────


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to go on with one run where it stands.

    Attributes:
        tasks: All its rows, ended ones too, by ``task_no``.
        widths: ``(task_no, width)`` of the results that feed an ``expand``.
        triggers: All its trigger rows.
    """

    run: RunRow
    tasks: list[TaskRow]
    expansions: list[ExpansionRow]
    widths: list[tuple[TaskNo, int]]
    triggers: list[TriggerRow]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything unfinished, read at start.

    Attributes:
        versions: The newest of each DAG and those of the live runs, without sources.
        runs: Those that have not ended. A cancelled run ends with its last task.
        stray_triggers: Rows of runs that have ended before a host had let go of them.
    """

    dags: list[DagRow]
    dag_files: list[DagFileRow]
    versions: list[VersionRow]
    runs: list[LiveRun]
    pools: list[PoolRow]
    outbox: list[OutboxRow]
    stray_triggers: list[TriggerRow] = []
