"""Streams of items: how they are drawn into DAGs, and their invariant.

I19 of ``tests.sim.invariants``: each item becomes one child, in order, and is stored before it is
used. An operator's events are consumed in the commit that moves its task.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec

from aioflow.model.dag import Body as Place
from aioflow.model.dag import DagSpec, EventsSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import MARKED, TaskState, TriggerRule
from aioflow.protocol.commands import StartTask
from aioflow.protocol.effects import StartTry
from aioflow.protocol.reports import EventsHandled
from tests.sim.broken import Broken
from tests.sim.script import StreamPlan, carried
from tests.sim.workload import POOLS, SECOND

__all__ = (
    "end_of_stream",
    "follow",
    "handled",
    "has_streams",
    "hold",
    "marker",
    "plan_of_start",
    "source_of",
    "with_generators",
    "with_streams",
)

HANDLER = "handle_trigger_events"


# ── DAGs ────────────────────────────────────────────────────────────────────────────────


def with_streams(spec: DagSpec, rng: random.Random) -> DagSpec:
    """Return the DAG with some lists turned into streams, and some operators that handle events."""
    tasks = list(spec.tasks)
    for task_index, task in enumerate(tasks):
        takers = [t for t in tasks if _takes(t, task_index)]
        is_alone = all(t.mapped is not None and len(t.mapped.sources) == 1 for t in takers)
        if task.sensor is not None or rng.random() < 0.4:
            continue
        if task.start_trigger is not None or task.body is Place.FUNCTION or rng.random() < 0.3:
            if rng.random() < 0.5 or takers:
                task = msgspec.structs.replace(task, events=_events(task, rng))
        elif not takers:
            continue
        if takers and is_alone and task.mapped is None:
            task = msgspec.structs.replace(task, streams=True)
        tasks[task_index] = task
    for _ in range(rng.choice((0, 1, 1, 2))):
        _add_chain(tasks, rng)
    return msgspec.structs.replace(spec, tasks=tuple(tasks))


def with_generators(spec: DagSpec, rng: random.Random) -> DagSpec:
    """Return the DAG with some lists turned into streams of hosted generators."""
    tasks = list(spec.tasks)
    for task_index, task in enumerate(tasks):
        takers = [t for t in tasks if _takes(t, task_index)]
        is_alone = all(t.mapped is not None and len(t.mapped.sources) == 1 for t in takers)
        may = task.sensor is None and task.start_trigger is None and task.mapped is None
        if takers and is_alone and may and rng.random() < 0.6:
            tasks[task_index] = msgspec.structs.replace(task, body=Place.COROUTINE, streams=True)
    for _ in range(rng.choice((0, 1, 1, 2))):
        _add_chain(tasks, rng, has_operators=False)
    return msgspec.structs.replace(spec, tasks=tuple(tasks))


def _add_chain(tasks: list[TaskSpec], rng: random.Random, *, has_operators: bool = True) -> None:
    """Add a task that makes a stream, one or two tasks that expand over it, and a task after."""
    first = len(tasks)
    limit = rng.choice((3, 50_000, 50_000))
    maker = _any_task(first, _some(first, rng), rng, Place.COROUTINE)
    if has_operators and rng.random() < 0.4:
        maker = msgspec.structs.replace(maker, body=rng.choice(list(Place)))
        maker = msgspec.structs.replace(maker, events=_events(maker, rng))
    tasks.append(msgspec.structs.replace(maker, streams=True, feeds_limit=limit))
    takers = rng.choice((1, 1, 2))
    for _ in range(takers):
        taker = _any_task(len(tasks), (*_some(first, rng), first), rng, rng.choice(list(Place)))
        tasks.append(
            msgspec.structs.replace(
                taker,
                mapped=MapSpec((MapSource("x", first, -1),)),
                argument_parents=(first,),
                map_limit=limit,
                window=rng.choice((None, 1, 2, 4)),
            )
        )
    parents = tuple(range(first + 1, first + 1 + takers))
    tasks.append(_any_task(len(tasks), parents, rng, rng.choice(list(Place))))


def _some(below: int, rng: random.Random) -> tuple[int, ...]:
    return (rng.randrange(below),) if below and rng.random() < 0.3 else ()


def _any_task(
    task_index: int, parents: tuple[int, ...], rng: random.Random, body: Place
) -> TaskSpec:
    return TaskSpec(
        task_id=f"t{task_index}",
        body=body,
        parents=parents,
        rule=rng.choice((*[TriggerRule.ALL_SUCCESS] * 2, *TriggerRule)),
        retry=RetryPolicy(tries=rng.randint(1, 3), delay_us=rng.choice((0, 30)) * SECOND),
        pool=rng.choice(POOLS),
        execution_timeout_us=rng.choice((None, None, 300 * SECOND)),
        max_active_tis_per_dagrun=rng.choice((None, None, 1)),
    )


def _takes(task: TaskSpec, task_index: int) -> bool:
    return task.mapped is not None and any(s.task_index == task_index for s in task.mapped.sources)


def _events(task: TaskSpec, rng: random.Random) -> EventsSpec:
    has_method = task.start_trigger is None or bool(task.start_trigger.next_method)
    if has_method and rng.random() < 0.3:
        return EventsSpec(method="", window=rng.choice((1, 2, 64)))
    return EventsSpec(
        method=HANDLER,
        batch=rng.choice((1, 2, 5)),
        delay_us=rng.choice((0, 50_000, 3 * SECOND)),
        window=rng.choice((1, 2, 64)),
    )


def has_streams(spec: DagSpec) -> bool:
    """Return whether any task of the DAG streams."""
    return any(task.streams or task.events is not None for task in spec.tasks)


def follow(rng: random.Random) -> StreamPlan:
    """Draw the plan of an operator's trigger. Its events are distinguished by keys."""
    ends = rng.choice(("end", "end", "end", "fail"))
    return StreamPlan(keyed=True, count=rng.choice((0, 1, 3, 8)), ends=ends, window=64)


def plan_of_start(task_no: int, window: int) -> bytes:
    """Return the fields of a trigger that is made in its host. They are always the same."""
    dag_version = follow(random.Random(f"start {task_no}"))
    return carried((task_no,), msgspec.structs.replace(dag_version, window=window))


# ── actors ──────────────────────────────────────────────────────────────────────────────


def handled(body: Any, stage: Any, times: tuple[int, int, int, int]) -> EventsHandled:
    """Return an operator's report on its events, and check that these are the next events."""
    start = body.effect.start
    rows = [r for r in stage.tables.triggers.values() if r.task_no == start.task_no]
    # A host may still have the trigger from before the task was cleared. Use the newest one.
    row = max((r for r in rows if r.ordinal < 0), key=lambda r: r.trigger_no, default=None)
    if row is not None and not stage.tables.is_held(start.run_no):
        consumed = stage.tables.consumed[row.trigger_no]
        is_late = stage.tables.tasks[start.task_no].start_no != start.start_no
        if not is_late and start.upto != consumed + len(start.events):
            raise Broken("I6 streams", f"{start} is given other events than those after {consumed}")
    items = tuple(payload for payload, _ in start.events if stage.rng.random() < 0.7)
    stage.ledger.told.forget(start.task_no)
    return EventsHandled(*times, start.upto, items)


def end_of_stream(body: Any, stage: Any, times: tuple[int, int, int, int]) -> EventsHandled:
    """Return the report of a streaming operator when there are no more events."""
    start = body.effect.start
    stage.ledger.succeed(*body.key, None, None)
    last = msgspec.msgpack.encode(["item", start.task_no, "last"])
    return EventsHandled(*times, 0, (last,) if stage.rng.random() < 0.5 else (), is_last=True)


# ── invariants ──────────────────────────────────────────────────────────────────────────


def hold(node: Any, turn: Any) -> None:
    """Check all invariants of streams that a commit may have broken."""
    items_are_children(node, turn)
    children_are_given_their_items(node, turn.starts)
    events_are_consumed_with_a_move(node, turn)


def source_of(spec: DagSpec, task_index: int) -> int:
    """Return the task whose stream this task expands over, or -1 if there is none."""
    mapped = spec.tasks[task_index].mapped
    if mapped is None or len(mapped.sources) != 1:
        return -1
    source = mapped.sources[0].task_index
    return source if source >= 0 and spec.tasks[source].streams else -1


def marker(node: Any, run_no: int, task_index: int) -> TaskState | None:
    """Return the state that an expansion over a stream adds to the states of its children."""
    tables = node.tables
    row = tables.expansions.get((run_no, task_index))
    source = -1 if row is None else source_of(tables.spec_of_run(run_no), task_index)
    if row is None or source < 0:
        return None
    if row.is_open:
        return TaskState.PENDING
    made = _state_of(node, run_no, source)
    if made is TaskState.SUCCESS:
        return None if row.width else TaskState.SKIPPED
    return TaskState.SKIPPED if made is TaskState.SKIPPED else TaskState.UPSTREAM_FAILED


def _state_of(node: Any, run_no: int, task_index: int) -> TaskState:
    row = node.tables.tasks.get(node.tables.runs[run_no].first_task_no + task_index)
    return TaskState.PENDING if row is None else row.state


def items_are_children(node: Any, turn: Any) -> None:
    """I19: check that an expansion has one child per item, and is open while its stream runs."""
    tables = node.tables
    changed = [(row.run_no, row.task_index) for row in turn.batch.new_expansions]
    changed += [(row.run_no, row.task_index) for row in turn.batch.expansion_changes]
    for task_no in {row.task_no for row in turn.batch.new_items}:
        changed += _expansions_over(tables, task_no)
    for run_no, task_index in sorted(set(changed)):
        source = source_of(tables.spec_of_run(run_no), task_index)
        if source < 0:
            continue
        row = tables.expansions[run_no, task_index]
        maker = tables.runs[run_no].first_task_no + source
        state = _state_of(node, run_no, source)
        items = tables.items_of(maker)
        if row.width != len(items) and not _was_cut_short(tables, run_no, maker):
            raise Broken("I19 items", f"{row} of {len(items)} items")
        if row.is_open != state.is_live and tables.runs[run_no].state.is_live:
            raise Broken("I19 items", f"{row}, and its stream is {state.label}")
        if row.width > node.tables.spec_of_run(run_no).tasks[task_index].map_limit:
            raise Broken("I8 widths", f"{row} is wider than it may be")


def _was_cut_short(tables: Any, run_no: int, maker: int) -> bool:
    """Return whether a stream lost its items in a clear that never reached the expansion over it.

    A run that is marked or cancelled during a clear ends, and its tasks not yet cleared stay as
    they are. Marking the stream then closes the expansion, and no start of the stream can have
    yielded items.
    """
    row, run = tables.tasks[maker], tables.runs[run_no]
    is_marked = row.failure is not None and row.failure.reason == MARKED
    return is_marked and not run.state.is_live and not tables.items_of(maker)


def _expansions_over(tables: Any, maker: int) -> Iterator[tuple[int, int]]:
    """Yield the run and the task index of each expansion over the stream of a task."""
    run_no = tables.tasks[maker].run_no
    spec, first = tables.spec_of_run(run_no), tables.runs[run_no].first_task_no
    for task_index in range(len(spec.tasks)):
        if (run_no, task_index) in tables.expansions and first + source_of(
            spec, task_index
        ) == maker:
            yield run_no, task_index


def children_are_given_their_items(node: Any, starts: list[StartTry]) -> None:
    """I19: check that a child is given its own item, or is given none and requests it."""
    for effect in starts:
        start: StartTask = effect.start
        source = source_of(node.tables.spec_of_run(start.run_no), start.task_index)
        if source < 0 or start.map_index < 0:
            continue
        maker = node.tables.runs[start.run_no].first_task_no + source
        stored = node.tables.items.get((maker, start.map_index))
        if stored is None or start.item not in {None, stored.payload}:
            raise Broken("I19 items", f"{start} takes another item than {stored}")


def events_are_consumed_with_a_move(node: Any, turn: Any) -> None:
    """I6: check that an operator's events are consumed in a commit that moves its task."""
    moved = {task_no for task_no, _ in turn.batch.steps}
    for trigger_no, _ in turn.batch.consumed_events:
        row = node.tables.triggers.get(trigger_no)
        if row is not None and row.ordinal < 0 and row.task_no not in moved:
            raise Broken("I6 streams", f"{row} was consumed, and its task stayed where it was")
