"""A DAG as its file defines it, with its schedule, tasks, options and mapping; and its backfills.

A backfill creates runs for a range of fire times for which the schedule itself no longer creates
runs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from aioflow.model.states import TriggerRule
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import DagTriggerSpec
from aioflow.model.workers import LOCAL

__all__ = (
    "CRON_NAMES",
    "DEFAULT_POOL",
    "BackfillRow",
    "BackfillState",
    "Body",
    "CallbackSpec",
    "Chooses",
    "DagSpec",
    "EdgeGroup",
    "EventsSpec",
    "IfPaused",
    "IntervalKind",
    "Join",
    "MapSource",
    "MapSpec",
    "MissedFireTimes",
    "ParamSpec",
    "Reprocess",
    "RetryPolicy",
    "ScheduleSpec",
    "SensorSpec",
    "StartTriggerSpec",
    "TaskSpec",
    "ValueKind",
)

CRON_NAMES = {
    "@annually": "0 0 1 1 *",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
    "@midnight": "0 0 * * *",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@weekly": "0 0 * * 0",
    "@yearly": "0 0 1 1 *",
}
"""Names that may replace the five fields. ``@once`` and ``@continuous`` are not among them."""

MissedFireTimes: TypeAlias = Literal["skip", "latest", "all"]
IntervalKind: TypeAlias = Literal["fire_time", "previous"]


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The start times of runs. Exactly one of ``cron`` to ``parts`` is set.

    Attributes:
        cron: Five fields, or six of which the first is for seconds.
        every_us: A fixed interval of elapsed time.
        anchor: A fire time of the interval. All other fire times are a whole number of intervals
            away from it.
        dates: Timestamps, ascending.
        once: Whether there is a single run, as soon as the DAG is known, or at its ``start_date``.
        gap_us: The minimum time between the starts of two runs. A run starts as soon as the
            previous one has ended and this time has passed.
        parts: Schedules whose fire times are combined. None of these is ``once`` or has a
            ``gap_us``.
        jitter_us: Maximum delay of a run after its fire time.
    """

    cron: str | None = None
    every_us: int | None = None
    anchor: int = 0
    dates: tuple[int, ...] | None = None
    once: bool = False
    gap_us: int | None = None
    parts: tuple[ScheduleSpec, ...] = ()
    jitter_us: int = 0

    @property
    def has_fire_times(self) -> bool:
        """Whether the schedule has fire times. ``once`` and ``gap_us`` depend on earlier runs."""
        return not self.once and self.gap_us is None


DEFAULT_POOL = "default"


# ── the content of a DAG file: created by a parser child, read by everyone ──────────────
class Body(StrEnum):
    """The kind of a task's code, which decides where it runs."""

    FUNCTION = "def"
    COROUTINE = "async"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The retry policy of a task. ``tries`` includes the first try.

    The delay before try n+1 is ``delay_us * factor**(n-1)``, at most ``max_delay_us``. If
    ``jitter`` is set, a random share of up to a half is subtracted.
    """

    tries: int = 3
    delay_us: int = 2_000_000
    factor: float = 2.0
    max_delay_us: int | None = None
    jitter: bool = True


class SensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How often and for how long a sensor pokes. The time is measured from its first poke."""

    interval_us: int = 60_000_000
    timeout_us: int = 43_200_000_000
    backoff: float = 1.0
    max_interval_us: int | None = None
    on_timeout: str = "fail"
    on_error: str = "retry"


Join: TypeAlias = Literal["", "zip", "zip_longest", "concat"]
"""How lists are joined: item by item up to the end of the shortest or longest, or concatenated."""

IfPaused: TypeAlias = Literal["stay", "stop"]
"""Whether triggers of deferred tasks keep running in their hosts while their DAG is paused."""


class MapSource(msgspec.Struct, frozen=True, array_like=True):
    """One argument of ``expand``: a literal of ``width`` items, a parent's result, or joined lists.

    Attributes:
        parameter: Name of the argument; empty for a part of a joined list.
        task_index: The parent that returns the list; -1 for a literal and for joined lists.
        width: Number of items of a literal, else -1.
        join: How the lists of ``parts`` are joined; empty for a single list.
    """

    parameter: str
    task_index: int
    width: int
    join: Join = ""
    parts: tuple[MapSource, ...] = ()


class MapSpec(msgspec.Struct, frozen=True):
    """The expansion of a mapped task. In a product, the last source varies fastest.

    Attributes:
        along: The other tasks of its mapped group. All have the same sources, and their children
            with the same map index belong together.
        until: The task that decides whether the loop has another iteration; -1 outside loops. In a
            loop, a map index is an iteration number, and ``map_limit`` is the maximum number of
            iterations.
    """

    sources: tuple[MapSource, ...]
    along: tuple[int, ...] = ()
    until: int = -1


class StartTriggerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The trigger of a task that is deferred from its start and needs no worker until it resumes.

    The host of the trigger creates it from the DAG file and the results of the task's parents.

    Attributes:
        class_path: For display.
        next_method: The method in which the task resumes; empty if the trigger itself ends the
            task.
        next_kwargs: msgpack, passed to ``next_method``.
        timeout_us: How long the task may wait.
    """

    class_path: str
    next_method: str = ""
    next_kwargs: bytes | None = None
    timeout_us: int | None = None


class EventsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How an operator consumes the events of a trigger that yields more than one event.

    Attributes:
        method: The method that handles a batch; empty if the method in which the task resumes is
            called for each event.
        batch: Maximum number of events per batch.
        delay_us: How long the first event of a batch waits for further events.
        window: The maximum number of events that the trigger may be ahead of the store.
    """

    method: str
    batch: int = 1
    delay_us: int = 0
    window: int = 64


class Chooses(StrEnum):
    """Which other tasks a task may skip with its result."""

    NOTHING = ""
    CHILDREN = "children"
    ALL = "all"
    """All downstream tasks."""
    ROUNDS = "rounds"
    """No tasks. The result decides whether the loop of the task has another iteration."""


class EdgeGroup(msgspec.Struct, frozen=True, array_like=True):
    """Parents of a task that are evaluated together by a separate trigger rule."""

    parents: tuple[int, ...]
    rule: TriggerRule


class ValueKind(StrEnum):
    """Kinds of values that are stored encrypted for tasks and triggers."""

    SECRET = "secret"  # noqa: S105 - a kind of value, not a secret
    CONNECTION = "connection"
    VARIABLE = "variable"


class CallbackSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The events of a task, or a run, for which its author has set a callback.

    Attributes:
        events: Some of ``success``, ``failure``, ``retry``, ``skip`` and ``deadline``.
        values: The secrets, connections and variables that the callback may read, each once.
    """

    events: tuple[str, ...]
    values: tuple[tuple[ValueKind, str], ...] = ()


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a DAG, as the engine needs it. Only child processes have its values and code.

    Attributes:
        parents: Indexes, ascending, each once.
        argument_parents: The indexes in ``parents`` whose result it takes as an argument.
        rule: The trigger rule for the parents that are not in ``groups``.
        min_success: The share of these parents that must succeed, which replaces ``rule``; ``None``
            to evaluate ``rule``.
        groups: Parents with other rules. The task runs only if all of the rules allow it.
        is_setup: Whether it creates resources for other tasks. Tasks between it and its teardowns
            run only if it has succeeded.
        is_teardown: Whether it removes the resources of its setups, which are among its parents.
            Its final state affects the run only if ``fails_run`` is set.
        chooses: For a branch or short circuit: the tasks that its result may skip.
        group: The id of the innermost task group it is in; empty for none.
        feeds_limit: The smallest ``map_limit`` of the tasks that expand over its result, which is
            then written as an indexed file; ``None`` if no task expands over it.
        slots: The number of pool slots it uses while it runs.
        window: Maximum number of unfinished children; ``None`` for no limit.
        execution_timeout_us: Timeout of one try, including both running and deferred time.
        deadline_us: The time after the creation of its run by which it should have ended.
        max_wait_us: The time after the start of its run, or after the last clear, at which it fails
            if it has not started.
        max_active_tis_per_dag: Maximum number of running instances in all runs of the DAG.
        depends_on_past: Whether it runs only after it has succeeded, or was skipped, in the
            previous run.
        wait_for_downstream: Whether its children, too, must have succeeded or been skipped in the
            previous run.
        events: Set for an operator that consumes every event of its triggers.
        streams: Whether tasks that expand over its result receive it item by item while it runs.
        outlets: Assets that are updated each time it succeeds, each with the ``extra`` of the
            update as msgpack.
        values: The secrets, connections and variables that it may read, each once.
        executor: Name of the executor that runs a ``def`` body; always the local one for a
            coroutine.
        resources: What it requires of a worker, see ``model.workers.WorkerSpec``.
        executor_options: Further options for the executor, see ``WorkerSpec.options``.
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
    max_wait_us: int | None = None
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
    executor: str = LOCAL
    resources: tuple[tuple[str, float], ...] = ()
    executor_options: bytes = b""
    doc: str = ""
    line: int = 0


class ParamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter with a schema.

    Attributes:
        schema: JSON Schema, as JSON.
        default: The default as JSON; ``None`` for a required parameter.
    """

    name: str
    schema: str
    default: str | None = None


class DagSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One DAG of one version.

    Attributes:
        tasks: In the order they were written. A task's index is its index here.
        catchup, skips_missed: Whether every missed fire time is run, or none. If neither is set,
            only the latest one is run.
        parameters: Names of the parameters that a run's conf may set.
        required: Parameters without a default.
        params: Parameters with a schema.
        types: Parameters with a type, as text.
        run_timeout_us: The time after its start at which a run fails.
        deadline_us: The time after its creation by which a run should have ended.
        retry_budget: Maximum number of retries of all tasks of a run; ``None`` for the daemon's
            setting.
        if_paused: While the DAG is paused, triggers of its deferred tasks ``stay`` in their hosts,
            or ``stop``.
        trigger: The trigger whose events start runs, instead of a schedule.
        isolated: Why the DAG has dedicated hosts; empty if it uses the shared hosts.
        interpreter: Name of the interpreter that runs its code; empty for the daemon's own.
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
    interpreter: str = ""
    parameters: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    params: tuple[ParamSpec, ...] = ()
    types: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    doc: str = ""
    line: int = 0

    @property
    def missed(self) -> MissedFireTimes:
        """The policy for missed fire times."""
        if self.catchup:
            return "all"
        return "skip" if self.skips_missed else "latest"


BackfillState: TypeAlias = Literal["running", "done", "cancelled", "failed"]

Reprocess: TypeAlias = Literal["none", "failed", "all"]
"""Which fire times that already have a run get another one.

``failed`` stands for fire times whose newest run did not succeed, ``all`` for all fire times whose
runs have ended. A fire time with an unfinished run never gets another one.
"""


class BackfillRow(msgspec.Struct, frozen=True, kw_only=True):
    """One backfill.

    Attributes:
        first, last: The range, both inclusive.
        max_active: Maximum number of its live runs. Scheduled runs and the DAG's
            ``max_active_runs`` do not matter.
        is_reverse: Whether the latest fire time comes first.
        conf: msgpack of the parameters of each run; ``None`` for their defaults.
        next_at: The next fire time that has not been handled; ``None`` when all have been.
        made: Number of runs created.
        skipped: Number of fire times whose existing run was reused.
        failure: Why the backfill could not continue.
        key: The idempotency key of the request that started it.
        started_by: The person who started it; see ``RunRow``.
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
    started_by: str | None = None
