"""Tasks that depend on the previous run: how they are drawn, and their invariants.

The invariants are evaluated from the rows alone.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import msgspec

from aioflow.core.runs.previous import blocker, wanted
from aioflow.core.state.run_sequence import (
    GOOD,
    NEXT,
    EndedRun,
    NotLoaded,
    RunKey,
    last_rounds,
    run_key,
    stored_as,
)
from aioflow.core.tasks.trigger_rules import Verdict, verdict
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec
from aioflow.model.rows import RunRow, TaskRow
from aioflow.model.states import RunState, TaskState
from aioflow.protocol.inputs import Input
from tests.sim import loops, streaming
from tests.sim.broken import Broken
from tests.sim.following import indexed
from tests.sim.workload import SECOND

__all__ = (
    "draw_date",
    "is_excused",
    "learn",
    "lines_are_what_rows_say",
    "nobody_waits_for_what_ended_well",
    "note_begun",
    "nothing_starts_before_its_past",
    "stuck",
    "with_past",
)

_FIRST_DATE = 1_700_000_000 * SECOND
_STEP_US = 600 * SECOND


def with_past(spec: DagSpec, rng: random.Random) -> DagSpec:
    """Return the DAG with some tasks that depend on the previous run, and perhaps few retries."""
    tasks = list(spec.tasks)
    for task_index, task in enumerate(tasks):
        if rng.random() < 0.3 and not indexed(spec, task_index):
            further = rng.random() < 0.3
            tasks[task_index] = msgspec.structs.replace(
                task, depends_on_past=True, wait_for_downstream=further
            )
    budget = rng.choice((None, None, 0, 2, 8))
    return msgspec.structs.replace(spec, tasks=tuple(tasks), retry_budget=budget)


def draw_date(rng: random.Random) -> int | None:
    """Return a random logical date for a requested run, or ``None``."""
    return rng.choice((None, _FIRST_DATE + _STEP_US * rng.randint(-3, 9)))


# ── queries to the database ─────────────────────────────────────────────────────────────


def learn(tables: Any, memory: Any, inputs: Collection[Input]) -> None:
    """Load the previous runs that a turn needs, as the engine does."""
    for dag_id, orders in wanted(list(inputs), memory):
        for order in orders:
            row = _run_before(tables, dag_id, order)
            is_over = row is not None and row.run_no not in memory.runs
            memory.run_sequences[dag_id].learn(
                order, _ended(tables, row) if is_over and row else None
            )


def _run_before(
    tables: Any, dag_id: str, order: RunKey, without: Collection[int] = ()
) -> RunRow | None:
    dated = [(run_key(row), row) for row in tables.seen() if row.dag_id == dag_id]
    found = [
        (at, row) for at, row in dated if at is not None and at < order and at[1] not in without
    ]
    return max(found, default=(NEXT, None), key=lambda one: one[0])[1]


def _ended(tables: Any, row: RunRow) -> EndedRun:
    counts: defaultdict[tuple[int, TaskState], int] = defaultdict(int)
    for task in tables.present(row.run_no):
        counts[task.task_index, task.state] += 1
    expansions = [e for (number, _), e in tables.expansions.items() if number == row.run_no]
    rows = [(*key, count) for key, count in counts.items()]
    spec = tables.spec_of_run(row.run_no)
    rounds = [tables.tasks[no] for no in last_rounds(spec, expansions) if no in tables.tasks]
    return stored_as(row, spec, rows, expansions, rounds)


# ── evaluated independently ─────────────────────────────────────────────────────────────


def _held(node: Any, run_no: int, task_index: int, without: Collection[int] = ()) -> RunRow | None:
    """Return the previous run if it holds up the task according to the rows, or ``None``."""
    tables = node.tables
    row, spec = tables.runs[run_no], tables.spec_of_run(run_no)
    order = run_key(row)
    if order is None or not spec.tasks[task_index].depends_on_past:
        return None
    before: RunRow | None = _run_before(tables, row.dag_id, order, without)
    if before is None:
        return None
    after = [task for task in spec.tasks if task_index in task.parents]
    awaited = [
        spec.tasks[task_index],
        *(after if spec.tasks[task_index].wait_for_downstream else ()),
    ]
    there = [task.task_id for task in tables.spec_of_run(before.run_no).tasks]
    for task in awaited:
        if task.task_id in there and not _went_well(node, before, there.index(task.task_id)):
            return before
    return None


def _went_well(node: Any, run: RunRow, task_index: int) -> bool:
    if task_index in node.tables.clearing_of(run.run_no):
        return False
    rows: list[TaskRow] = node.tables.present(run.run_no)
    is_said = run.state is RunState.SUCCESS and run.ended_at is not None  # of everything unfinished
    if loops.is_round(node.tables.spec_of_run(run.run_no), task_index):
        whole = loops.whole(node, run.run_no, task_index)
        if whole is not None:
            return whole in GOOD or (is_said and whole.is_live)
    states = [row.state for row in rows if row.task_index == task_index]
    width = node.tables.widths.get((run.run_no, task_index), 1)
    mark = streaming.marker(node, run.run_no, task_index)
    found = {*states, *(() if mark is None else (mark,))}
    if is_said:
        return all(state in GOOD or state.is_live for state in found)
    return len(states) >= width and found <= GOOD


def is_excused(node: Any, run_no: int, task_index: int) -> bool:
    """Return whether a task that its rule allows to run may wait for the previous run."""
    run = node.memory.runs.get(run_no)
    if run is not None and run.row.quarantine is not None and task_index in run.graph.past:
        return True  # the previous run is not looked up for a quarantined run
    if run is not None and (found := blocker(run, task_index, node.memory)) is not None:
        return not found.is_known or _held(node, run_no, task_index) is not None
    return False


def nothing_starts_before_its_past(node: Any, batch: Batch) -> None:
    """I21: check that the previous run does not hold up a task that begins.

    A run created in the same turn is ignored, because it may have been created after the task
    began.
    """
    made = {row.run_no for row in batch.new_runs}
    for run_no, task_index in sorted(_begun(node, batch)):
        held = _held(node, run_no, task_index, made - {run_no})
        if held is not None:
            raise Broken(
                "I21 past", f"task {task_index} of run {run_no} begins before {held.run_id}"
            )


def _begun(node: Any, batch: Batch) -> set[tuple[int, int]]:
    first = {(r.run_no, r.task_index) for r in batch.new_tasks if r.map_index < 0 and r.try_number}
    return first | {(row.run_no, row.task_index) for row in batch.new_expansions}


def nobody_waits_for_what_ended_well(node: Any) -> None:
    """L4: with an empty inbox, check that tasks wait only for a previous run that blocks them."""
    for run in list(node.memory.runs.values()):
        if run.state is not RunState.RUNNING or run.row.quarantine is not None:
            continue
        for task_index in run.graph.past:
            is_pending = run.states[task_index] == TaskState.PENDING
            if not is_pending or verdict(run, task_index) is not Verdict.RUN:
                continue
            found = blocker(run, task_index, node.memory)
            is_held = found is not None and found.is_known
            is_held = is_held and _held(node, run.run_no, task_index) is not None
            if not is_held and _lacks_nothing(run, task_index):
                raise Broken("L4 past", f"task {task_index} of run {run.run_no} waits: {found}")


def _lacks_nothing(run: Any, task_index: int) -> bool:
    """Return whether all parents have ended, so that only the previous run can hold up the task."""
    parents = run.graph.parents[task_index]
    return all(run.states[parent] >= TaskState.SUCCESS for parent in parents)


def lines_are_what_rows_say(node: Any) -> None:
    """Check that the order of runs in memory matches the rows."""
    memory, tables = node.memory, node.tables
    for dag_id, sequence in memory.run_sequences.items():
        task = (run.row for run in memory.runs.values() if run.row.dag_id == dag_id)
        dated = sorted(key for row in task if (key := run_key(row)) is not None)
        if sequence._keys != [*dated, NEXT]:
            raise Broken("lines", f"{sequence._keys} are in the sequence, {dated} live")
        for key in sequence._keys:
            _same_before(tables, memory, dag_id, key)


def _same_before(tables: Any, memory: Any, dag_id: str, key: RunKey) -> None:
    found = memory.run_sequences[dag_id].before(key)
    if isinstance(found, NotLoaded):
        return
    row = _run_before(tables, dag_id, key)
    said = None if row is None else row.run_no
    if isinstance(found, EndedRun):
        if row is None or row.run_no in memory.runs or _differ(found, _ended(tables, row)):
            raise Broken("lines", f"{found} is remembered before {key}, stored is {row}")
    elif found != said:
        raise Broken("lines", f"run {found} is remembered before {key}, stored is {said}")


def _differ(one: EndedRun, other: EndedRun) -> bool:
    """Return whether two ended runs differ in anything but their state.

    A run that was cut short is bad, whatever state was recorded for it.
    """
    return (one.key, one.run_id, set(one.bad)) != (other.key, other.run_id, set(other.bad))


# ── limits, and ends ────────────────────────────────────────────────────────────────────


def note_begun(tables: Any, batch: Batch) -> None:
    """Record the runs of a stored batch that may begin beyond the limit of their DAG.

    Such a run is the oldest unfinished one of its DAG, while a running run of the DAG has tasks
    that depend on the previous run. Older runs that the same turn created after it do not count,
    because it was the oldest when it began.
    """
    made = {row.run_no for row in batch.new_runs}
    begun = made | {row.run_no for row in batch.run_changes}
    for run_no in begun & set(tables.live_run_nos()):
        unfinished = [tables.runs[no] for no in tables.unfinished()]
        line = sorted(
            (order, other)
            for other in unfinished
            if other.dag_id == tables.runs[run_no].dag_id and (order := run_key(other)) is not None
        )
        numbers = [other.run_no for _, other in line]
        if run_no not in numbers:
            continue
        at = numbers.index(run_no)
        later = made if run_no not in made else {no for no in made if no > run_no}
        running = [other for _, other in line[at + 1 :] if other.state is RunState.RUNNING]
        specs = [tables.spec_of_run(other.run_no) for other in running]
        is_needed = any(task.depends_on_past for spec in specs for task in spec.tasks)
        if is_needed and later.issuperset(numbers[:at]):
            tables.may_be_beyond.add(run_no)


def stuck(node: Any) -> list[int]:
    """Return the runs that wait for a previous run that failed or is stuck itself.

    They have to be cancelled, because no client here clears the tasks they wait for.
    """
    tables, found = node.tables, dict[int, None]()
    unfinished = [tables.runs[no] for no in tables.unfinished()]
    for row in sorted(unfinished, key=lambda row: run_key(row) or NEXT):
        for task_index in range(len(tables.spec_of_run(row.run_no).tasks)):
            held = _held(node, row.run_no, task_index)
            if held is not None and (held.ended_at is not None or held.run_no in found):
                found[row.run_no] = None
    return list(found)
