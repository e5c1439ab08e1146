"""A DAG as its file defines it: the DAG, its tasks, their options and mapping."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from aioflow.model.dag_triggers import DagTriggerSpec
from aioflow.model.schedule import Missed, ScheduleSpec
from aioflow.model.states import TriggerRule
from aioflow.model.timestamps import Timestamp

__all__ = (
    "DEFAULT_POOL",
    "Body",
    "CallbackSpec",
    "Chooses",
    "DagSpec",
    "EdgeGroup",
    "EventsSpec",
    "IfPaused",
    "Join",
    "MapSource",
    "MapSpec",
    "ParamSpec",
    "RetryPolicy",
    "SensorSpec",
    "StartTriggerSpec",
    "TaskSpec",
    "ValueKind",
)

DEFAULT_POOL = "default"


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
    start_date: Timestamp | None = None
    end_date: Timestamp | None = None
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
