"""The reason why a task or run waits, derived from memory and never stored.

The children of a mapped task are sampled and grouped by cause, so that the cost is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from aioflow.core.runs import previous
from aioflow.core.runs.run_queue import waits_while_paused
from aioflow.core.runs.task_counts import fresh_queued
from aioflow.core.scheduling.ready import body_kind, is_start
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.child_roles import (
    dag_of,
    interpreter_of,
    is_own,
    shown_interpreter,
    slot_role,
)
from aioflow.core.state.crash_trials import DAEMON, is_barred, may_host
from aioflow.core.state.dag_triggers import DagTrigger
from aioflow.core.state.graph import TALLY
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import MappedTask, Run, TaskInstance, TriggerInstance
from aioflow.core.tasks import stream_expand
from aioflow.core.tasks.streams import full_window
from aioflow.core.tasks.tries import awaits_code
from aioflow.core.tasks.trigger_rules import Verdict, parent_states, verdict
from aioflow.core.triggers.asset_conditions import awaited_assets
from aioflow.core.triggers.assignment import HOSTLESS, RUN, is_stopped
from aioflow.core.triggers.dag_triggers import spec_of
from aioflow.model.dag import DEFAULT_POOL, Body, TaskSpec
from aioflow.model.decisions import PERSON, question_of
from aioflow.model.ids import RunNo, TriggerNo
from aioflow.model.states import (
    LIVE_TASK_STATES,
    RunState,
    TaskState,
    TriggerState,
    Wait,
    WaitKind,
)
from aioflow.model.workers import LOCAL, WorkerSpec
from aioflow.protocol.outbox import Trial

__all__ = (
    "NAMED_CHILDREN",
    "SAMPLED_CHILDREN",
    "ChildrenCause",
    "explain_children",
    "explain_dag_trigger",
    "explain_run",
    "explain_task",
    "is_unwatched",
    "still_waits",
)

BARRED = (
    "it killed the daemon each time that it ran alone; it is hosted again when its DAG file changes"
)
DISK_FULL = "the disk is full: {} results wait to be written, and no task starts until they are"
BACKLOG = "{} results wait to be stored, and no task starts until they are"
DRAINED = "the node is drained; see `aioflow nodes undrain`"
HELD = "the web server does not answer yet; tasks start when it does"
STORING = "its result is being stored"
STOPPING = "the daemon is stopping; it continues after the next start"


def explain_run(run: Run, memory: Memory) -> Wait | None:
    """Return why a run as a whole does not proceed; ``None`` if it does or has ended."""
    if run.row.quarantine is not None:
        return Wait(kind=WaitKind.QUARANTINED, detail=run.row.quarantine)
    if run.clearing is not None:
        is_mark = run.clearing.mark is not None
        detail = (
            "tasks of it that are being marked" if is_mark else "tasks of it that are being cleared"
        )
        return Wait(kind=WaitKind.CLEARING, detail=detail)
    if waits_while_paused(run, memory):
        detail = f"DAG {run.row.dag_id} is paused, and an event has started the run"
        return Wait(kind=WaitKind.PAUSED, detail=detail, since=run.row.created_at)
    if run.state is RunState.QUEUED:
        active = memory.active_runs.get(run.queue, 0)
        detail = f"{active} of {run.spec.max_active_runs} runs of {run.row.dag_id} are active"
        return Wait(kind=WaitKind.LIMIT, detail=detail, since=run.row.created_at)
    return None


def explain_dag_trigger(one: DagTrigger, memory: Memory) -> Wait | None:
    """Return what the trigger of a DAG waits for; ``None`` if the DAG declares none."""
    row = one.row
    if spec_of(one, memory) is None:
        return None
    kind, detail, until = WaitKind.TRIGGER, f"{row.class_path} #{row.trigger_no}", None
    if row.kwargs is None:
        kind = WaitKind.UNDECRYPTABLE
    elif one.condition is not None:
        kind, detail = WaitKind.EVENT, awaited_assets(one)
    elif is_stopped(row.dag_id, memory):
        kind, detail = WaitKind.PAUSED, f"DAG {row.dag_id} is paused"
    elif one.assignment_id:
        kind = WaitKind.TRIGGER if one.has_capacity else WaitKind.TRIGGER_CAPACITY
    elif row.trigger_no in memory.lacking_code:
        kind = WaitKind.CODE_MISSING
    elif one.retry_at is not None:
        kind, until = WaitKind.RETRY_AT, memory.on_wall(one.retry_at)
        detail = "it had come to its end" if one.failure is None else one.failure.message
    elif is_barred(row.trigger_no, memory):
        kind, detail = WaitKind.QUARANTINED, BARRED
    else:
        kind = WaitKind.HOST
        if (apart := _explain_hosting(row.trigger_no, memory)) is not None:
            detail = apart
    return Wait(kind=kind, detail=detail, since=row.since, until=until)


def explain_task(
    run: Run, task_index: int, map_index: int, memory: Memory, slots: Slots
) -> Wait | None:
    """Return what one task waits for; ``None`` if it runs or has ended.

    Args:
        map_index: -1 for an unmapped task, or for a mapped task as a whole.
    """
    whole = explain_run(run, memory)
    if whole is not None:
        return whole
    group = run.groups.get(task_index)
    if group is not None and run.states[task_index] != TaskState.PENDING:
        return _explain_child(group, map_index, memory, slots)
    if group is not None:  # the task was cleared and waits for its trigger rule again
        is_over = map_index >= 0 and group.states[map_index] != TaskState.PENDING
        return None if is_over else _explain_pending(run, task_index, memory)
    task = memory.packing.peek_task(run.task_no(task_index, -1))
    if task is not None:
        return _explain_live(task, memory, slots)
    if run.states[task_index] == TaskState.PENDING:
        return _explain_pending(run, task_index, memory)
    return None


def still_waits(memory: Memory, run_no: RunNo, task_index: int, map_index: int) -> bool:
    """Return whether a task waits for a trigger or a poke, not for a slot."""
    run = memory.runs.get(run_no)
    if run is None or (map_index >= 0 and task_index not in run.groups):
        return False
    task = memory.packing.peek_task(run.task_no(task_index, map_index))
    return task is not None and (task.state is TaskState.DEFERRED or task.is_hosted)


def _explain_child(group: MappedTask, map_index: int, memory: Memory, slots: Slots) -> Wait | None:
    if 0 <= map_index < group.width:
        task = memory.packing.peek_task(group.first_task_no + map_index)
        if task is not None:
            return _explain_live(task, memory, slots)
        if group.states[map_index] != TaskState.PENDING:
            return None
    one_to_one = group.one_to_one if 0 <= map_index < group.width else None
    if one_to_one is not None and not one_to_one.may_start(map_index):
        return _explain_follower(group, map_index)
    if not group.has_fresh:
        return None
    spec = group.run.spec.tasks[group.task_index]
    if spec.window is not None and group.unfinished >= spec.window:
        detail = f"{group.unfinished} of at most {spec.window} children are unfinished"
        return Wait(kind=WaitKind.WINDOW, detail=detail)
    return _explain_slot(group, memory, slots)


def _explain_follower(group: MappedTask, map_index: int) -> Wait:
    """Return a wait that names the parents whose instances at this map index have not ended."""
    run = group.run
    names = [
        run.spec.tasks[parent].task_id
        for parent in sorted(run.graph.indexed[group.task_index])
        if any(
            s < TaskState.SUCCESS for s in parent_states(run, group.task_index, parent, map_index)
        )
    ]
    return Wait(kind=WaitKind.UPSTREAM, detail=f"{', '.join(names)} at its index")


def _explain_live(task: TaskInstance, memory: Memory, slots: Slots) -> Wait | None:
    match task.state:
        case TaskState.QUEUED:
            return _explain_slot(task, memory, slots)
        case TaskState.RETRYING:
            detail = "" if task.failure is None else task.failure.message
            kind = WaitKind.CODE_MISSING if awaits_code(task) else WaitKind.RETRY_AT
            return Wait(kind=kind, detail=detail, until=memory.on_wall(task.due_at))
        case TaskState.SENSING:
            if task.due_at is None and not task.is_hosted:
                detail = _missing_host(task.run.async_role, memory)
                return Wait(kind=WaitKind.HOST, detail=detail, since=task.queued_at)
            return Wait(
                kind=WaitKind.INTERVAL,
                detail="the next check" if task.due_at is not None else _looks(task),
                since=task.started_at,
                until=memory.on_wall(task.due_at or task.deadline_at),
                checked_by=task.task_no if task.is_hosted else None,
                interval_us=_interval_us(task),
            )
        case TaskState.DEFERRED:
            return _explain_window(task, memory, slots) or _explain_wait(task, memory)
        case _:
            blocked = _explain_silence(task, slots) or _explain_window(task, memory, slots)
            if blocked is None and task.worker < 0 and not task.is_hosted:
                return Wait(kind=WaitKind.EXECUTOR, detail=STORING)
            return blocked


def _explain_silence(task: TaskInstance, slots: Slots) -> Wait | None:
    """Return since when the process of a running task neither responds nor uses CPU, if so."""
    worker = slots.worker(task.worker) if task.worker >= 0 else None
    silence = None if worker is None else worker.silence
    if worker is None or silence is None:
        return None
    if worker.spec.executor == LOCAL:
        detail = f"the worker of slot {silence.worker} neither answers nor uses CPU"
    else:
        detail = silence.why or f"worker {silence.worker} of {worker.spec.executor} is lost"
    return Wait(kind=WaitKind.EXECUTOR, detail=detail, since=silence.since, until=silence.until)


def _looks(task: TaskInstance) -> str:
    """Describe how often the host pokes. Only the host knows the time of the next poke."""
    interval_us = _interval_us(task)
    if interval_us is None:
        return "continuous checks"
    return f"a check every {interval_us / 1_000_000:g} s"


def _interval_us(task: TaskInstance) -> int | None:
    """Return the interval of a sensor; ``None`` if it grows."""
    sensor = task.run.spec.tasks[task.task_index].sensor
    return None if sensor is None or sensor.backoff != 1 else sensor.interval_us


def _explain_window(task: TaskInstance, memory: Memory, slots: Slots) -> Wait | None:
    """Return the wait of a producer for its consumer's full window; ``None`` if it has capacity."""
    full = full_window(task, slots) if task.task_no in memory.backpressured else None
    if full is None:
        return None
    taker = task.run.spec.tasks[full.task_index]
    unfinished = full.width - full.ended
    detail = f"{taker.task_id}: {unfinished} of at most {taker.window} children are unfinished"
    return Wait(kind=WaitKind.WINDOW, detail=detail)


def _explain_wait(task: TaskInstance, memory: Memory) -> Wait | None:
    waits = (w for w in task.waits if w.state is TriggerState.WAITING or w.is_handled)
    wait = next(waits, None)
    if wait is None:
        return None
    kind = WaitKind.TRIGGER
    if wait.row.kwargs is None:
        kind = WaitKind.UNDECRYPTABLE
    elif (
        wait.assignment_id
        or wait.row.class_path in HOSTLESS
        or wait.state is not TriggerState.WAITING
    ):
        kind = WaitKind.TRIGGER if wait.has_capacity else WaitKind.TRIGGER_CAPACITY
    elif wait.row.trigger_no in memory.lacking_code:
        kind = WaitKind.CODE_MISSING
    else:
        kind = WaitKind.HOST
    detail = f"{wait.row.class_path} #{wait.row.trigger_no}"
    if kind is WaitKind.HOST and memory.is_drained:
        detail = f"{detail}: {DRAINED}"
    elif kind is WaitKind.HOST and (apart := _explain_hosting(wait.row.trigger_no, memory)):
        detail = f"{detail}: {apart}"
    dag_id = task.run.row.dag_id
    if kind is not WaitKind.UNDECRYPTABLE and is_unwatched(wait, memory):
        kind, detail = WaitKind.PAUSED, f"{detail}, since DAG {dag_id} is paused"
    if wait.row.class_path == RUN and wait.row.kwargs is not None:
        detail = _called(msgspec.msgpack.decode(wait.row.kwargs), memory)
    if wait.row.class_path == PERSON and wait.row.kwargs is not None:
        kind, detail = WaitKind.DECISION, _asked(wait.row.kwargs)
    until = task.deadline_at if wait.is_handled else wait.row.deadline_at
    since, until = memory.on_wall(wait.row.since), memory.on_wall(until)
    number = wait.row.trigger_no
    return Wait(kind=kind, detail=detail, since=since, until=until, checked_by=number)


def is_unwatched(wait: TriggerInstance, memory: Memory) -> bool:
    """Return whether no host runs this trigger because its DAG is paused."""
    is_its_own = wait.row.class_path in HOSTLESS or wait.state is not TriggerState.WAITING
    return not is_its_own and is_stopped(wait.run.row.dag_id, memory)


def _asked(fields: bytes) -> str:
    """Return the question of a decision. Damaged fields must not make the turn fail."""
    try:
        return f'a decision: "{question_of(fields).question}"'
    except msgspec.MsgspecError:
        return "a decision whose question is unreadable"


def _called(fields: dict[str, str], memory: Memory) -> str:
    """Return the name and state of the called run that a task waits for."""
    run = memory.find_run(fields["run_id"])
    state = "" if run is None else f", which is {run.state.label}"
    return f"run {fields['run_id']} of {fields['dag']}{state}"


def _explain_results(memory: Memory, slots: Slots) -> str:
    """Return which results must be stored before any task may start; empty if there are none."""
    if unwritten := slots.count_unwritten(memory):
        return DISK_FULL.format(unwritten)
    unstored = slots.count_unstored(memory)
    return BACKLOG.format(unstored) if unstored else ""


def _explain_slot(entry: TaskInstance | MappedTask, memory: Memory, slots: Slots) -> Wait:
    run = entry.run
    spec = run.spec.tasks[entry.task_index]
    since = entry.queued_at if isinstance(entry, TaskInstance) else None
    if memory.is_drained or not slots.is_open or slots.is_suspended:
        detail = HELD if slots.is_suspended else STOPPING
        detail = DRAINED if memory.is_drained else detail
        return Wait(kind=WaitKind.SLOT, detail=detail, since=since)
    if held := _explain_results(memory, slots):
        return Wait(kind=WaitKind.SLOT, detail=held, since=since)
    if (trial := _explain_trial(entry, memory)) is not None:
        return Wait(kind=WaitKind.SLOT, detail=trial, since=since)
    has_capacity = isinstance(entry, TaskInstance) and entry.task_no in slots.pool_holds
    full = None if has_capacity else _explain_pool(spec, memory, slots)
    if full is not None and is_start(entry) and slots.counts_deferred(spec):
        return Wait(kind=WaitKind.SLOT, detail=full, since=since, pool=spec.pool)
    at_once = spec.max_active_tis_per_dagrun
    if at_once is not None and run.running_at.get(entry.task_index, 0) >= at_once:
        return Wait(kind=WaitKind.LIMIT, detail=f"{at_once} at once in this run", since=since)
    if slots.ready.across.is_full(entry):
        detail = f"{spec.max_active_tis_per_dag} at once in all runs of {run.row.dag_id}"
        return Wait(kind=WaitKind.LIMIT, detail=detail, since=since)
    in_all = run.spec.max_active_tasks
    if in_all is not None and run.running >= in_all:
        return Wait(kind=WaitKind.LIMIT, detail=f"{in_all} tasks at once", since=since)
    if full is not None:
        return Wait(kind=WaitKind.SLOT, detail=full, since=since, pool=spec.pool)
    if spec.body is Body.COROUTINE and run.async_role not in memory.hosts_up:
        detail = _missing_host(run.async_role, memory)
        return Wait(kind=WaitKind.HOST, detail=detail, since=since)
    if isinstance(kind := body_kind(entry), WorkerSpec):
        return Wait(kind=WaitKind.EXECUTOR, detail=_explain_executor(kind, slots), since=since)
    role = slot_role(run.spec)
    if role and spec.body is Body.FUNCTION and role not in memory.hosts_up:
        detail = _problem(role, memory) or f"{shown_interpreter(role)} is being checked"
        return Wait(kind=WaitKind.EXECUTOR, detail=detail, since=since)
    total = len(slots.workers) if spec.body.value == "def" else slots.coroutines
    name = "" if spec.pool == DEFAULT_POOL else f" of pool {spec.pool}"
    return Wait(kind=WaitKind.SLOT, detail=f"all {total} slots{name} are taken", since=since)


def _explain_executor(spec: WorkerSpec, slots: Slots) -> str:
    """Return why no worker of a spec is free, as reported by its executor if it gave a reason."""
    why = slots.remote.unavailable.get(spec)
    if why is not None:
        return why
    required = ", ".join(f"{name}={amount:.15g}" for name, amount in spec.resources)
    with_those = f" with {required}" if required else ""
    total = len(slots.remote.of_spec(spec))
    if total:
        return f"all {total} workers of {spec.executor}{with_those} are taken"
    return f"{spec.executor} has been asked for a worker{with_those}"


def _explain_trial(entry: TaskInstance | MappedTask, memory: Memory) -> str | None:
    """Return how many tasks start before this one because one of them may kill its process."""
    trial = memory.trial
    if trial is None or not trial.groups or is_start(entry):
        return None
    if isinstance(entry, TaskInstance) and entry.task_no in trial.groups[0]:
        return None
    role = entry.run.async_role if entry.spec.body is Body.COROUTINE else ""
    return _begins_first(trial) if trial.process in {DAEMON, role} else None


def _explain_hosting(number: TriggerNo, memory: Memory) -> str | None:
    """Return how many suspects of the daemon's death start before a trigger is assigned."""
    trial = memory.trial
    return None if trial is None or may_host(number, memory) else _begins_first(trial)


def _begins_first(trial: Trial) -> str:
    tasks, triggers = sum(map(len, trial.groups)), sum(span.count for span in trial.spans)
    if trial.process != DAEMON:
        whose = _async_host(trial.process)
        return f"{tasks} tasks ran when the {whose} died again; they begin first, in groups"
    if not triggers:
        return f"{tasks} tasks ran when the daemon died again; they begin first, in groups"
    what = f"{triggers} triggers were hosted"
    if tasks:
        what = f"{tasks} tasks ran and {what}"
    return f"{what} when the daemon died again; they begin first, in groups"


def _async_host(role: str) -> str:
    whose = [dag_of(role)] if is_own(role) else []
    whose += [shown_interpreter(role)] if interpreter_of(role) else []
    return f"async host of {' in '.join(whose)}" if whose else "async host"


def _missing_host(role: str, memory: Memory) -> str:
    """Return the host that a task waits for and, if known, why the host cannot be started."""
    problem = _problem(role, memory)
    return f"{_async_host(role)}: {problem}" if problem else _async_host(role)


def _problem(role: str, memory: Memory) -> str:
    return memory.interpreter_problems.get(interpreter_of(role), "")


def _explain_pool(spec: TaskSpec, memory: Memory, slots: Slots) -> str | None:
    """Return why a pool does not admit a task; ``None`` if it does."""
    pool = slots.pools.get(spec.pool)
    if pool is None:
        return None
    if spec.slots > pool.slots:
        return f"pool {spec.pool} has {pool.slots} slots, and it needs {spec.slots}"
    used = slots.used(spec.pool)
    if used + spec.slots <= pool.slots:
        return None
    pool_holds = slots.used_by_deferred(spec.pool)
    waiting = f", {pool_holds} of them by deferred tasks" if pool_holds else ""
    held = sum(one.weight for one in slots.remote if one.is_held and one.pool == spec.pool)
    lost = f", {held} of them by workers that are lost with an ended try" if held else ""
    return f"pool {spec.pool}: {used} of {pool.slots} slots are taken{waiting}{lost}"


def _explain_pending(run: Run, task_index: int, memory: Memory) -> Wait:
    tasks = run.spec.tasks
    held = (
        previous.blocker(run, task_index, memory)
        if verdict(run, task_index) is Verdict.RUN
        else None
    )
    if held is not None:
        behind = None if held.live is None else (held.run_id, held.task_id)
        return Wait(kind=WaitKind.DEPENDS_ON_PAST, detail=_past(held), behind=behind)
    open_parents = [
        parent for parent in run.graph.parents[task_index] if run.states[parent] < TaskState.SUCCESS
    ]
    tallies = [look.tally * TALLY for look in run.graph.evaluated[task_index]]
    done = sum(sum(run.tallies[at + 1 : at + TALLY]) for at in tallies)
    total = sum(run.tallies[at] for at in tallies)
    names = ", ".join(tasks[parent].task_id for parent in open_parents[:5])
    names += " ..." if len(open_parents) > 5 else ""
    endless = _streams(run, open_parents)
    return Wait(kind=WaitKind.UPSTREAM, detail=f"{names} ({done} of {total} ended){endless}")


def _streams(run: Run, parents: Sequence[int]) -> str:
    """Name the event streams among these tasks, or among the sources of these mapped tasks."""
    tasks = run.spec.tasks
    sources = dict.fromkeys(
        (*parents, *(stream_expand.source_of(run, parent) for parent in parents))
    )
    names = [
        tasks[at].task_id
        for at in sources
        if at >= 0 and tasks[at].events is not None and run.states[at] < TaskState.SUCCESS
    ]
    if not names:
        return ""
    shown = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
    return f"; of {shown} events are accepted until its trigger ends"


def _past(held: previous.Blocker) -> str:
    if not held.is_known:
        return "the run before is being looked up"
    how = "has not ended" if held.state.is_live else f"is {held.state.label}"
    return f"{held.task_id} of run {held.run_id}, which {how}"


SAMPLED_CHILDREN = 100
"""Maximum number of children in each state that are examined."""

NAMED_CHILDREN = 3
"""Maximum number of map indexes returned per cause."""

_SHARED_CAUSES = frozenset(
    {
        WaitKind.SLOT,
        WaitKind.LIMIT,
        WaitKind.WINDOW,
        WaitKind.UPSTREAM,
        WaitKind.DEPENDS_ON_PAST,
    }
)
"""Kinds of waits with details that may apply to many children.

The details of other kinds, such as errors, apply to a single child.
"""


class ChildrenCause(msgspec.Struct, frozen=True, kw_only=True):
    """Children of one task that are in the same state for the same cause.

    Attributes:
        state: ``QUEUED`` for children without a row that wait only for a slot.
        wait: The wait of the first child; ``None`` if that child is in progress.
        indices: The map indexes of the first children.
        count: Number of these children. If a state other than ``QUEUED`` has more than
            ``SAMPLED_CHILDREN`` children, the rest of them are not counted. The exception is
            deferred children: if all sampled ones have the same cause, the rest count as well.
    """

    state: TaskState
    wait: Wait | None
    indices: tuple[int, ...]
    count: int


def explain_children(
    run: Run, task_index: int, memory: Memory, slots: Slots
) -> list[ChildrenCause] | None:
    """Return the causes, most frequent first; ``None`` if the task has no children."""
    group = run.groups.get(task_index)
    if group is None:
        return None
    found: dict[object, ChildrenCause] = {}
    for index, state, count in _sampled_children(group):
        wait = explain_task(run, task_index, index, memory, slots)
        key = (state, None if wait is None else (wait.kind, _shared_part(wait)))
        known = found.get(key)
        if known is None:
            found[key] = ChildrenCause(state=state, wait=wait, indices=(index,), count=count)
            continue
        indices = known.indices if len(known.indices) == NAMED_CHILDREN else (*known.indices, index)
        found[key] = msgspec.structs.replace(known, indices=indices, count=known.count + count)
    causes = _with_the_rest(list(found.values()), group)
    return sorted(causes, key=lambda cause: (-cause.count, cause.indices))


def _with_the_rest(causes: list[ChildrenCause], group: MappedTask) -> list[ChildrenCause]:
    """Count the deferred children that were not sampled, if all sampled ones have one cause."""
    rest = group.counts[TaskState.DEFERRED] - SAMPLED_CHILDREN
    deferred = [cause for cause in causes if cause.state is TaskState.DEFERRED]
    if rest <= 0 or len(deferred) != 1:
        return causes
    (cause,) = deferred
    whole = msgspec.structs.replace(cause, count=cause.count + rest)
    return [whole if one is cause else one for one in causes]


def _shared_part(wait: Wait) -> str:
    """Return the part of a wait by which causes are grouped: its detail, or a trigger's class."""
    if wait.kind in _SHARED_CAUSES:
        return wait.detail
    class_path, number, _ = wait.detail.partition(" #")
    return class_path if number and wait.checked_by is not None else ""


def _sampled_children(group: MappedTask) -> Iterator[tuple[int, TaskState, int]]:
    """Yield sampled children, the state to display, and how many children each one represents."""
    for state in (state for state in LIVE_TASK_STATES if state is not TaskState.PENDING):
        for at, index in enumerate(_indices_of(group, state), start=1):
            # All queued children wait for the same pool and behind the same limits, so one sample
            # represents the rest.
            is_for_rest = state is TaskState.QUEUED and at == SAMPLED_CHILDREN
            yield index, state, 1 + group.counts[state] - at if is_for_rest else 1
    yield from _sampled_fresh(group)


def _sampled_fresh(group: MappedTask) -> Iterator[tuple[int, TaskState, int]]:
    """Yield samples of the children without a row, like ``_sampled_children``."""
    queued, one_to_one = fresh_queued(group), group.one_to_one
    if one_to_one is not None:
        for index in _indices_of(group, TaskState.PENDING):
            is_queued = queued > 0 and one_to_one.may_start(index)
            yield index, TaskState.QUEUED if is_queued else TaskState.PENDING, 1
        return
    # All children that wait for their first start have the same cause, so the last sample
    # represents the others.
    named = list(islice(_indices_of(group, TaskState.PENDING), NAMED_CHILDREN))
    for at, index in enumerate(named, start=1):
        stands_for = 1 + group.fresh - at if at == len(named) else 1
        yield index, TaskState.QUEUED if queued else TaskState.PENDING, stands_for


def _indices_of(group: MappedTask, state: TaskState) -> Iterator[int]:
    """Yield the map indexes of children in a state, without a Python step for each other child."""
    index, left = -1, min(SAMPLED_CHILDREN, group.counts[state])
    while left > 0 and (index := group.states.find(state, index + 1)) >= 0:
        yield index
        left -= 1
