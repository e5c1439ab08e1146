"""Backfills: the requests for them, and the invariant of their runs.

I25 of ``tests.sim.invariants``: each fire time of the range is handled once; the number of active
runs stays within the limit; and no task of a backfill starts while a task of another run could have
started instead.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from aioflow.core.scheduling import timetable
from aioflow.core.state.child_roles import async_role
from aioflow.core.state.task_instance import TaskInstance
from aioflow.model.dag import BackfillRow, Body, DagSpec, ScheduleSpec, TaskSpec
from aioflow.model.rows import RunRow
from aioflow.model.workers import LOCAL
from aioflow.protocol.effects import StartTry
from aioflow.protocol.requests import CancelBackfill, StartBackfill
from tests.sim import liveness
from tests.sim.broken import Broken
from tests.sim.themes import BACKFILLS, themes_of
from tests.sim.workload import SECOND

__all__ = (
    "Filler",
    "expects_more",
    "hold",
    "memory_is_what_rows_say",
    "nobody_else_waits",
    "restore",
    "with_schedules",
)

_MOST, _SMALL = 3, 8
_BAD = frozenset({"failed", "partial", "cancelled"})


def with_schedules(dags: list[DagSpec], seed: int) -> list[DagSpec]:
    """Give the DAGs of a backfill seed a schedule, and remove all limits except slots.

    Other limits would hide the order in which tasks start. Large DAGs are left unchanged, because
    many runs of them would take too long.
    """
    if BACKFILLS not in themes_of(seed):
        return dags
    every = ScheduleSpec(every_us=900 * SECOND)
    return [
        replace(_unlimited(dag), schedule=dag.schedule or every, if_paused="stay")
        if len(dag.tasks) <= _SMALL
        else dag
        for dag in dags
    ]


def _unlimited(dag: DagSpec) -> DagSpec:
    tasks = tuple(
        replace(task, max_active_tis_per_dagrun=None, max_active_tis_per_dag=None)
        for task in dag.tasks
    )
    return replace(dag, tasks=tasks, max_active_tasks=None, run_timeout_us=None)


class Filler:
    """A client that starts backfills, and sometimes cancels them."""

    def __init__(self, seed: int, dags: Sequence[DagSpec], tables: Any) -> None:
        self._rng = random.Random(f"backfills {seed}")
        self._tables = tables
        self._dags = [spec.dag_id for spec in dags if spec.schedule is not None]
        self._left = self._rng.choice((0, 1, _MOST)) if self._dags else 0
        if self._dags and BACKFILLS in themes_of(seed):
            self._left = _MOST

    def wish(self, now: int) -> StartBackfill | CancelBackfill | None:
        """Return a request to backfill the last hours or to cancel a backfill, or ``None``."""
        rng = self._rng
        going = [row.backfill_no for row in self._tables.backfills.values() if _is_going(row)]
        if going and rng.random() < 0.05:
            return CancelBackfill(backfill_no=rng.choice(going))
        if not self._left or rng.random() < 0.7:
            return None
        self._left -= 1
        last = now - rng.choice((0, 0, 3600)) * SECOND
        return StartBackfill(
            dag_id=rng.choice(self._dags),
            first=last - rng.choice((1800, 3600, 7200)) * SECOND,
            last=last,
            reprocess=rng.choice(("none", "none", "failed", "all")),
            max_active=rng.choice((0, 1, 2, 5)),
            is_reverse=rng.random() < 0.3,
        )


def _is_going(row: BackfillRow) -> bool:
    return row.state == "running"


def restore(memory: Any, tables: Any) -> None:
    """Restore what a restart restores into the memory."""
    going = (row for row in tables.backfills.values() if _is_going(row))
    memory.backfills = {row.backfill_no: row for row in going}


def memory_is_what_rows_say(node: Any) -> None:
    """Check that a restart would restore the same backfills."""
    going = {no: row for no, row in node.tables.backfills.items() if _is_going(row)}
    if node.memory.backfills != going:
        raise Broken("restore", f"backfills {node.memory.backfills}, stored {going}")


def expects_more(node: Any) -> bool:
    """Return whether a backfill is active. One whose DAG is deleted waits for the DAG."""
    dags = node.tables.dags
    return any(
        _is_going(row) and not dags[row.dag_id].gone for row in node.tables.backfills.values()
    )


# ── I25 ─────────────────────────────────────────────────────────────────────────────────


def hold(node: Any, turn: Any) -> None:
    """I25: check a commit."""
    fresh = [run for run in turn.batch.new_runs if run.backfill is not None]
    for run in fresh:
        _is_for_a_fire_time(node, run)
        _was_wanted(node, turn, run)
    for number in sorted({run.backfill for run in fresh if run.backfill is not None}):
        _has_no_more_than_it_may(node, number)
    for row in turn.batch.backfills:
        if row.state == "done":
            _has_dealt_with_all(node, row)
    for start in turn.starts:
        nobody_else_waits(node, start)


def _is_for_a_fire_time(node: Any, run: RunRow) -> None:
    row: BackfillRow = node.tables.backfills[run.backfill]
    spec: DagSpec = node.tables.specs[run.version, run.dag_id]
    date = run.logical_date
    assert date is not None
    assert spec.schedule is not None
    fire_time = timetable.next_fire_time(spec.schedule, spec.timezone, after=date - 1)
    if (row.dag_id, run.cause, fire_time) != (run.dag_id, "backfill", date):
        raise Broken("I25 backfills", f"{run} is for no fire time of {row}")
    if not row.first <= date <= row.last:
        raise Broken("I25 backfills", f"{run} is out of the range of {row}")
    if node.tables.filled[row.backfill_no, date] != 1:
        raise Broken("I25 backfills", f"{run} is for a fire time that {row} has filled")


def _was_wanted(node: Any, turn: Any, run: RunRow) -> None:
    """Check that the backfill wants a run, given the newest run of its fire time."""
    row = node.tables.backfills[run.backfill]
    new = {made.run_no for made in turn.batch.new_runs}
    before = [
        other
        for other in node.tables.seen()
        if (other.dag_id, other.logical_date) == (run.dag_id, run.logical_date)
        and other.run_no not in new
    ]
    if not before:
        return
    newest = max(before, key=lambda other: other.run_no)
    states = {newest.state, turn.before.run_states.get(newest.run_no, newest.state)}
    is_bad = any(state.label in _BAD for state in states)
    has_ended = newest.ended_at is not None or newest.run_no in turn.before.over
    is_wanted = has_ended and (row.reprocess == "all" or (row.reprocess == "failed" and is_bad))
    if not is_wanted:
        raise Broken("I25 backfills", f"{run} of {row} is made beside {newest}")


def _has_no_more_than_it_may(node: Any, number: int) -> None:
    tables = node.tables
    unfinished = [
        tables.runs[no] for no in tables.unfinished() if tables.runs[no].backfill == number
    ]
    began_anew = tables.cleared_runs | tables.marked_runs
    unfinished = [run for run in unfinished if run.state.is_live and run.run_no not in began_anew]
    unfinished = [run for run in unfinished if run.quarantine is None]
    if len(unfinished) > tables.backfills[number].max_active:
        raise Broken("I25 backfills", f"{tables.backfills[number]} has {len(unfinished)} live runs")


def _has_dealt_with_all(node: Any, row: BackfillRow) -> None:
    """Check that the counts of a backfill match its range, unless the schedule was changed."""
    tables = node.tables
    filled = sum(number == row.backfill_no for number, _ in tables.filled)
    if row.next_at is not None or row.made != filled:
        raise Broken("I25 backfills", f"{row} is done, with {filled} runs")
    specs = [spec for (_, dag_id), spec in tables.specs.items() if dag_id == row.dag_id]
    schedule = specs[0].schedule
    if schedule is None or any(spec.schedule != schedule for spec in specs):
        return
    fire_times = timetable.fire_times_between(
        schedule, specs[0].timezone, after=row.first - 1, until=row.last, limit=10_000
    )
    if row.made + row.skipped != len(fire_times):
        raise Broken("I25 backfills", f"{row} is done, and there are {len(fire_times)} fire times")


def _needs(task: TaskSpec) -> tuple[object, ...]:
    """Return a key that is equal for tasks that can start in the same slot."""
    return task.body, task.pool, task.executor, task.resources


def nobody_else_waits(node: Any, start: StartTry) -> None:
    """Check that no other task could have used the slot that a backfill's task starts in.

    A remote worker has the code of a single version, so there only tasks of this version count.
    """
    row = node.tables.runs[start.start.run_no]
    task = node.tables.tasks[start.start.task_no]
    if row.backfill is None or start.claimed or task.start_no > 1:
        return
    spec = node.spec_of(row.run_no, start.start.task_index)
    if spec.sensor is not None and spec.body is Body.COROUTINE:
        return  # it uses no slot
    for run in node.memory.runs.values():
        if run.row.backfill is not None or not run.state.is_live or liveness.has_limits(run):
            continue
        if run.row.quarantine is not None or run.clearing is not None:
            continue
        if spec.body is Body.COROUTINE and async_role(run.spec) not in node.memory.hosts_up:
            continue  # its DAG has its own host, which is not up yet
        for entry in liveness.admitted(run):
            other = run.spec.tasks[entry.task_index]
            is_like = _needs(other) == _needs(spec) and other.start_trigger is None
            is_like &= spec.executor == LOCAL or run.row.version == row.version
            is_kept = isinstance(entry, TaskInstance) and entry.task_no in node.slots.pool_holds
            is_free = not node.slots.ready.across.is_full(entry)
            if is_like and is_free and (is_kept or other.slots <= spec.slots):
                where = f"task {entry.task_index} of run {run.run_no}"
                raise Broken("I25 backfills", f"{start.start} begins before {where}")
