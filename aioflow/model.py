"""The vocabulary: ids, states, waits, and what a DAG file says.

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
from typing import Literal, TypeAlias

import msgspec

from aioflow.dag_triggers import DagTriggerSpec
from aioflow.schedules import Missed, ScheduleSpec

__all__ = (
    "CODE_MISSING",
    "DEFAULT_POOL",
    "IMPORT_ERROR",
    "LIVE_TASK_STATES",
    "MARKED",
    "Body",
    "CallbackSpec",
    "Chooses",
    "DagSpec",
    "EdgeGroup",
    "EventsSpec",
    "Failure",
    "IfPaused",
    "Instant",
    "Join",
    "MapSource",
    "MapSpec",
    "ParamSpec",
    "RecordState",
    "RetryPolicy",
    "RunNo",
    "RunState",
    "SensorSpec",
    "StartNo",
    "StartTriggerSpec",
    "TaskNo",
    "TaskSpec",
    "TaskState",
    "TriggerNo",
    "TriggerRule",
    "TriggerState",
    "ValueKind",
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


class RecordState(IntEnum):
    """How far a recorded call of a coroutine has come."""

    OPEN = 0
    """It waits."""
    ANSWERED = 1
    FAILED = 2
    """It raised, and does so again when the coroutine runs again within the same try."""


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
    CLEARING = "clearing"
    DATABASE = "database"


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """What something waits for.

    Attributes:
        detail: The concrete thing: parents by name, a pool, a trigger's class and number.
        since: When it began to wait for this, where that is known.
        until: When it goes on by itself at the latest, where that is known.
        behind: The id of another run that has not ended, and of its task, which this waits for.
        looks_no: The number of the trigger, or of the hosted sensor, that looks for it.
    """

    kind: WaitKind
    detail: str = ""
    since: Instant | None = None
    until: Instant | None = None
    behind: tuple[str, str] | None = None
    looks_no: int | None = None


MARKED = "marked"
"""The reason where a person said how a task ended."""
CODE_MISSING, IMPORT_ERROR = "code_missing", "import_error"
"""Those of what did not begin: the code of its version was not there, or not to be imported."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a try ended badly, as stored and shown.

    Attributes:
        type: The exception's class name, or what stood in for one (``"Killed"``).
        message: One line, at most 4 KiB.
        reason: Machine-readable: ``raised``, ``timeout``, ``crashed``, ``marked`` ...
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
    which a random share of up to a half is taken away when ``jitter`` is set.
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


Join: TypeAlias = Literal["", "zip", "zip_longest", "concat"]
IfPaused: TypeAlias = Literal["stay", "stop"]
"""Items side by side up to the end of the shortest list, or of the longest; or one list behind
the other."""


class MapSource(msgspec.Struct, frozen=True, array_like=True):
    """One argument of ``expand``: a literal of ``width`` items, a parent's result, or lists joined.

    Attributes:
        parameter: The argument it fills; empty for a part of what is joined.
        position: The parent whose list it is, or -1 for a literal and for what is joined.
        width: Items of a literal, else -1.
        join: How the lists of ``parts`` become one; empty for one list.
    """

    parameter: str
    position: int
    width: int
    join: Join = ""
    parts: tuple[MapSource, ...] = ()


class MapSpec(msgspec.Struct, frozen=True):
    """How a task fans out. The last source varies fastest in a product.

    Attributes:
        along: The other tasks of the mapped group it is in: all have the same sources, and their
            children at one index belong together.
        until: Of a group that is a loop, the one of its tasks that decides whether it goes round
            again; -1 for what is none. A map index is a round then, and ``map_limit`` says how
            many there may be.
    """

    sources: tuple[MapSource, ...]
    along: tuple[int, ...] = ()
    until: int = -1


class StartTriggerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A task that waits straight from its start: no worker is touched until it is resumed.

    Its trigger is made where it is hosted, from the DAG file and what its parents returned.

    Attributes:
        class_path: For people to read.
        next_method: Where the task resumes; empty if the trigger itself ends it.
        next_kwargs: msgpack, handed to ``next_method``.
        timeout_us: How long it may wait.
    """

    class_path: str
    next_method: str = ""
    next_kwargs: bytes | None = None
    timeout_us: int | None = None


class EventsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How an operator takes the events of a trigger that goes on.

    Attributes:
        method: What takes a batch of them; empty where the method it resumes in takes each alone.
        batch: How many it takes at once.
        delay_us: How long the first of a batch waits for others.
        window: How far the trigger may run ahead of the store.
    """

    method: str
    batch: int = 1
    delay_us: int = 0
    window: int = 64


class Chooses(StrEnum):
    """Which others a task may have skipped by what it returns."""

    NOTHING = ""
    CHILDREN = "children"
    ALL = "all"
    """Whatever comes after it."""
    ROUNDS = "rounds"
    """None, but whether the loop it is in goes round again."""


class EdgeGroup(msgspec.Struct, frozen=True, array_like=True):
    """Parents of a task that are judged together, by a rule of their own."""

    parents: tuple[int, ...]
    rule: TriggerRule


class ValueKind(StrEnum):
    """What people keep here for tasks and triggers, sealed."""

    SECRET = "secret"  # noqa: S105 - a kind, and none itself
    CONNECTION = "connection"
    VARIABLE = "variable"


class CallbackSpec(msgspec.Struct, frozen=True, kw_only=True):
    """For which events of a task, or a run, its author wants something called.

    Attributes:
        events: Of ``success``, ``failure``, ``retry``, ``skip`` and ``deadline``.
        values: Which secrets, connections and variables what is called may be told, each once.
    """

    events: tuple[str, ...]
    values: tuple[tuple[ValueKind, str], ...] = ()


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a DAG, as the engine needs it. Values and code stay with the children.

    Attributes:
        parents: Positions, ascending, each once.
        argument_parents: Those of ``parents`` whose result it takes as an argument.
        rule: What is asked of those parents that no group names.
        min_success: What share of them has to succeed, which is a rule of its own; ``None`` to
            judge by ``rule``.
        groups: Parents that other rules are asked of. All of them have to say run.
        is_setup: It makes what others need; those that come after it and before its teardowns do
            not run unless it has succeeded.
        is_teardown: It takes away what its setups, which are among its parents, have made. How
            it ends does not matter to the run, unless ``fails_run``.
        chooses: Of a branch or short circuit: whom its result may skip.
        group: The id of the innermost task group it is in; empty for none.
        feeds_limit: The smallest ``map_limit`` of the tasks that expand over its result, or
            ``None`` if none does. Its list is then written as an indexed file.
        slots: What it weighs in its pool while it runs.
        window: Children materialised and unfinished at once; ``None`` for no bound.
        execution_timeout_us: Of one try, running and deferred together.
        deadline_us: By when it should have ended, counted from when its run was made.
        max_active_tis_per_dag: How many of it run at once in all runs of the DAG.
        depends_on_past: It runs once it has succeeded, or was skipped, in the run before.
        wait_for_downstream: And so have the tasks that come right after it.
        events: Of an operator that takes every event of its triggers.
        streams: Those that expand over its result take item by item, while it goes on.
        outlets: Assets that each success of it makes anew, with what it tells along, msgpack.
        values: Which secrets, connections and variables it may be told, each once.
    """

    task_id: str
    body: Body = Body.FUNCTION
    parents: tuple[int, ...] = ()
    argument_parents: tuple[int, ...] = ()
    rule: TriggerRule = TriggerRule.ALL_SUCCESS
    min_success: float | None = None
    groups: tuple[EdgeGroup, ...] = ()
    group: str = ""
    is_setup: bool = False
    is_teardown: bool = False
    fails_run: bool = False
    chooses: Chooses = Chooses.NOTHING
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
    deadline_us: int | None = None
    max_active_tis_per_dagrun: int | None = None
    max_active_tis_per_dag: int | None = None
    depends_on_past: bool = False
    wait_for_downstream: bool = False
    start_trigger: StartTriggerSpec | None = None
    events: EventsSpec | None = None
    streams: bool = False
    values: tuple[tuple[ValueKind, str], ...] = ()
    callbacks: CallbackSpec | None = None
    outlets: tuple[tuple[str, bytes], ...] = ()
    doc: str = ""
    line: int = 0


class ParamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter that says what it may be.

    Attributes:
        schema: JSON Schema, as JSON.
        default: As JSON; ``None`` for a required one.
    """

    name: str
    schema: str
    default: str | None = None


class DagSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One DAG of one version.

    Attributes:
        tasks: In the order they were written; a position is an index into it.
        catchup, skips_missed: Whether each slot that was missed runs, or none; else the latest.
        parameters: Names of the parameters a run's conf may set.
        required, params, types: Those without a default, with a schema, with a type as text.
        run_timeout_us: How long a run may take from its start; then it fails.
        deadline_us: By when a run should have ended, counted from when it was made.
        retry_budget: How often its tasks may run again in all; ``None`` for what the daemon says.
        if_paused: Whether its parked triggers ``stay`` with their hosts then, or ``stop``.
        trigger: Whose events start runs, in place of a schedule.
        isolated: Why it has hosts of its own; empty where it shares those of all DAGs.
    """

    dag_id: str
    file: str
    tasks: tuple[TaskSpec, ...]
    schedule: ScheduleSpec | None = None
    trigger: DagTriggerSpec | None = None
    timezone: str = "UTC"
    start_date: Instant | None = None
    end_date: Instant | None = None
    catchup: bool = False
    skips_missed: bool = False
    max_active_runs: int = 16
    max_active_tasks: int | None = None
    run_timeout_us: int | None = None
    deadline_us: int | None = None
    callbacks: CallbackSpec | None = None
    retry_budget: int | None = None
    if_paused: IfPaused = "stay"
    isolated: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    params: tuple[ParamSpec, ...] = ()
    types: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    doc: str = ""
    line: int = 0

    @property
    def missed(self) -> Missed:
        """Which of the slots that were missed run."""
        if self.catchup:
            return "all"
        return "skip" if self.skips_missed else "latest"
