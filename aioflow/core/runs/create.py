"""Creation of scheduled and requested runs. For repeated requests see ``idempotency``.

When a task ends, the tasks of the next run that wait for it are evaluated. When a run ends, queued
runs of its DAG start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from aioflow.core.dag_registry import arm_schedule, next_run_starts_at, put_dag
from aioflow.core.runs import deadlines, previous, run_queue
from aioflow.core.runs.idempotency import same_run
from aioflow.core.runs.progress import step
from aioflow.core.scheduling import clock_steps
from aioflow.core.scheduling.catchup import missed
from aioflow.core.state.accounts import person_of
from aioflow.core.state.graph import DagVersion
from aioflow.core.state.memory import Memory
from aioflow.core.state.run_sequence import run_key
from aioflow.core.state.task_instance import Run, queue_of
from aioflow.core.transaction import Transaction
from aioflow.errors import BadConf, DagBroken, RequestError, UnknownDag
from aioflow.model.dag import DagSpec
from aioflow.model.ids import TriggerNo
from aioflow.model.rows import DagRow, RunRow
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import EARLIEST_DATE, LATEST_DATE, Timestamp, to_datetime
from aioflow.protocol.inputs import (
    ContinueBackfill,
    CreateMissingRuns,
    PreviousRunLoaded,
)
from aioflow.protocol.requests import CreateRun

__all__ = (
    "MISSED_FIRE_TIMES_AT_ONCE",
    "QUEUED_RUNS",
    "advance_next_runs",
    "check_conf",
    "create_missing_runs",
    "create_run",
    "find",
    "fire_time_due",
    "has_fire_time_due",
    "make_run",
    "previous_run_loaded",
    "requester",
    "run_ended",
    "set_paused",
    "start_next",
    "validate_conf",
)


def validate_conf(spec: DagSpec, conf: bytes | None) -> None:
    """Check a conf against the parameters of a DAG.

    Raises:
        BadConf: If the conf is not a mapping, lacks a required parameter, or contains a parameter
            that the DAG does not define.
    """
    try:
        given: object = {} if conf is None else msgspec.msgpack.decode(conf)
    except msgspec.DecodeError as exc:
        raise BadConf(f"the conf of {spec.dag_id!r} cannot be read: {exc}") from exc
    if not isinstance(given, dict):
        raise BadConf(f"the conf of {spec.dag_id!r} must be a JSON object of its parameters")
    allowed = ", ".join(spec.parameters) or "none"
    for name in given:
        if name not in spec.parameters:
            raise BadConf(f"DAG {spec.dag_id!r} has no parameter {name!r}; it has: {allowed}")
    missing = [name for name in spec.required if name not in given]
    if missing:
        raise BadConf(f"DAG {spec.dag_id!r} needs {', '.join(missing)}; give it with --conf")


MISSED_FIRE_TIMES_AT_ONCE = 10
"""Maximum number of runs created in one turn for missed fire times. The rest follow later."""

QUEUED_RUNS = 32
"""Number of queued runs at which the schedule of a DAG stops creating runs."""

_MADE_ID = re.compile(r".*\.[0-9]{8}T[0-9]{6}Z\.[0-9]+")
"""Form of generated run ids, which requests may not choose."""


def set_paused(dag_id: str, *, paused: bool, tx: Transaction) -> bool:
    """Pause or resume a DAG's schedule.

    Raises:
        UnknownDag: If the DAG does not exist.
    """
    row = tx.memory.dags.get(dag_id)
    if row is None:
        raise UnknownDag(dag_id)
    if row.paused != paused:
        # A delay caused by the pause is not reported as late.
        told = row.late_alert_for if paused else tx.now
        row = msgspec.structs.replace(row, paused=paused, late_alert_for=told)
        put_dag(row, tx)
        arm_schedule(row, tx)
        tx.recheck_dags.add(dag_id)  # runs that events created during the pause may start
    return paused


# ── runs ────────────────────────────────────────────────────────────────────────────────


def create_run(request: CreateRun, tx: Transaction) -> tuple[str, bool]:
    """Create a run for a request. Return its id and whether it is new.

    Raises:
        RequestError: If the DAG does not exist, the conf is not valid for it, the id belongs to
            another run, or the run with that id is being deleted.
    """
    same = same_run(request, tx)
    if same is not None:
        return same, False
    if request.run_id is not None and _MADE_ID.fullmatch(request.run_id):
        raise RequestError(
            f"run id {request.run_id!r} has the form of a generated one; choose another"
        )
    run = make_run(request, tx, cause="manual", started_by=requester(tx))
    return run.row.run_id, True


def requester(tx: Transaction) -> str | None:
    """Return the person whose request is being executed, if any."""
    return None if tx.actor is None else person_of(tx.actor.name, tx.memory.accounts)


def make_run(
    request: CreateRun,
    tx: Transaction,
    *,
    cause: str,
    caller: TriggerNo | None = None,
    backfill: int | None = None,
    started_by: str | None = None,
) -> Run:
    """Create a run without checking whether an equal request has already created it.

    Args:
        cause, caller, backfill, started_by: See ``model.rows.RunRow``.

    Raises:
        RequestError: If the DAG does not exist, the conf is not valid for it, or the logical date
            is out of range. Nothing has changed.
    """
    _check_date(request.logical_date)
    return _add_run(
        check_conf(request, tx),
        tx,
        cause=cause,
        run_id=request.run_id,
        logical_date=request.logical_date,
        conf=request.conf,
        key=request.key,
        caller=caller,
        backfill=backfill,
        started_by=started_by,
    )


def find(dag_id: str, memory: Memory) -> tuple[DagRow, DagVersion]:
    """Return a DAG and its newest version.

    Raises:
        RequestError: If no file defines it.
    """
    row = memory.dags.get(dag_id)
    if row is None:
        raise UnknownDag(dag_id)
    if row.gone:
        raise DagBroken(dag_id, f"{row.file} no longer defines it")
    return row, memory.dag_versions[row.version, dag_id]


def check_conf(request: CreateRun, tx: Transaction) -> DagVersion:
    """Check that a run could be created, and return its DAG version.

    Raises:
        RequestError: As in ``make_run``.
    """
    _, dag_version = find(request.dag_id, tx.memory)
    validate_conf(dag_version.graph.spec, request.conf)
    return dag_version


def _check_date(logical_date: Timestamp | None) -> None:
    if logical_date is not None and not EARLIEST_DATE <= logical_date <= LATEST_DATE:
        raise RequestError(
            "a logical date lies between 0001-01-02 and 9999-12-30 in UTC, so that every time "
            "zone has it"
        )


def _add_run(
    dag_version: DagVersion,
    tx: Transaction,
    *,
    cause: str,
    run_id: str | None = None,
    logical_date: Timestamp | None = None,
    conf: bytes | None = None,
    key: str | None = None,
    caller: TriggerNo | None = None,
    backfill: int | None = None,
    started_by: str | None = None,
) -> Run:
    spec = dag_version.graph.spec
    run_no = tx.numbers.take()
    at = tx.now if logical_date is None else logical_date
    row = RunRow(
        run_no=run_no,
        run_id=run_id or _run_id(spec.dag_id, at, run_no),
        dag_id=spec.dag_id,
        version=dag_version.version,
        state=RunState.QUEUED,
        cause=cause,
        first_task_no=tx.numbers.take(len(spec.tasks)),
        logical_date=logical_date,
        conf=conf,
        key=key,
        created_at=tx.now,
        caller=caller,
        backfill=backfill,
        started_by=started_by,
    )
    run = Run(row, dag_version)
    tx.memory.add_run(run)
    tx.new_run(run)
    run_queue.remember(run, tx.memory)
    deadlines.schedule_deadlines(run, tx)
    previous.came_before(run, tx)
    if not run_queue.waits_while_paused(run, tx.memory):
        run_queue.begin_queued(run.queue, tx)
    return run


def _run_id(dag_id: str, at: Timestamp, run_no: int) -> str:
    """Return a readable run id. The row number makes it unique across all DAGs."""
    moment = to_datetime(at)
    return f"{dag_id}.{moment.year:04}{moment:%m%dT%H%M%SZ}.{run_no}"


def run_ended(run: Run, *, was: RunState, tx: Transaction) -> None:
    """Update counts and the schedule after a run has ended, and start queued runs."""
    run_queue.withdraw(run, was, tx)
    deadlines.delete_deadlines(run.run_no, tx)
    start_next(run.row, tx)


def start_next(run: RunRow, tx: Transaction) -> None:
    """Start the runs that may start because a run has ended or is quarantined."""
    memory, dag_id = tx.memory, run.dag_id
    tx.eased_dags.add(dag_id)
    run_queue.begin_queued(queue_of(run), tx)
    if run.backfill is not None:
        tx.effects.append(ContinueBackfill(run.backfill))
    row = memory.dags.get(dag_id)
    if row is None or row.next_run_at is None:
        return
    is_continuous = _is_continuous(row, memory)
    if row.next_run_at > tx.now and not is_continuous:
        return  # true of most ends, and avoids computing the start time, which is slow
    at = next_run_starts_at(row, memory, tx.now)
    if at is not None and at <= tx.now:
        fire_time_due(dag_id, row.next_run_at, tx)  # too many runs were queued until now
    elif at is not None and is_continuous:
        arm_schedule(row, tx)


def fire_time_due(dag_id: str, at: Timestamp, tx: Transaction) -> None:
    """Create the run of a fire time that has been reached, and arm the next fire time.

    If too many runs of the DAG are queued, no run is created. The end of a run causes another
    attempt.
    """
    row = tx.memory.dags.get(dag_id)
    if row is None or row.gone or row.paused or row.next_run_at != at:
        return  # the timer was armed for another fire time
    dag_version = tx.memory.dag_versions[row.version, dag_id]
    schedule = dag_version.graph.spec.schedule
    if schedule is None:
        return
    if schedule.gap_us is not None:
        _run_on(row, dag_version, schedule.gap_us, tx)
        return
    starts = next_run_starts_at(row, tx.memory, tx.now)
    if starts is None:
        return  # the schedule has ended
    if starts > tx.now:
        arm_schedule(row, tx)  # the clock was set back
        return
    capacity = QUEUED_RUNS - len(tx.memory.queued_runs.get(dag_id, ()))
    if capacity <= 0:
        deadlines.alert_if_blocked(row, dag_version.graph.spec, starts, tx)
        return
    row = deadlines.alert_if_late(row, dag_version.graph.spec, starts, tx)
    _make_due(row, dag_version, min(capacity, MISSED_FIRE_TIMES_AT_ONCE), tx)


def _make_due(row: DagRow, dag_version: DagVersion, limit: int, tx: Transaction) -> None:
    """Create runs for fire times that have been reached. The DAG's policy selects missed ones."""
    spec, cursor = dag_version.graph.spec, row.next_run_at
    assert spec.schedule is not None  # noqa: S101 - checked by the caller
    assert cursor is not None  # noqa: S101
    due, following = [cursor], None
    if not spec.schedule.once:
        due, following = missed(
            spec.schedule,
            spec.timezone,
            cursor=cursor,
            now=tx.now,
            policy=spec.missed,
            limit=limit,
            last=spec.end_date,
            salt=spec.dag_id,
        )
    if due and clock_steps.is_ahead(row):
        tx.effects.append(CreateMissingRuns(row.dag_id, cursor, tuple(due), following))
        return
    dealt = due[-1] if due else min(tx.now, (following or tx.now) - 1)
    _put_made(row, dag_version, due, following, dealt, tx)


def _put_made(
    row: DagRow,
    dag_version: DagVersion,
    due: Sequence[Timestamp],
    following: Timestamp | None,
    dealt: Timestamp,
    tx: Transaction,
) -> None:
    last = (
        max(dealt, row.last_fire_time)
        if clock_steps.is_ahead(row) and row.last_fire_time
        else dealt
    )
    row = msgspec.structs.replace(row, next_run_at=following, last_fire_time=last)
    put_dag(row, tx)
    for fire_time in due:
        _add_run(dag_version, tx, cause="schedule", logical_date=fire_time)
    arm_schedule(row, tx)


def create_missing_runs(entry: CreateMissingRuns, tx: Transaction) -> None:
    """Create runs for due fire times, except fire times that already have a run."""
    row = tx.memory.dags.get(entry.dag_id)
    known = tx.memory.found_ahead.get(entry.dag_id)
    if row is None or row.gone or row.paused or row.next_run_at != entry.cursor or known is None:
        return  # the cursor has moved since, which armed the next fire time
    dag_version = tx.memory.dag_versions[row.version, entry.dag_id]
    due = [fire_time for fire_time in entry.fire_times if fire_time not in known]
    _put_made(row, dag_version, due, entry.following, entry.fire_times[-1], tx)


def _run_on(row: DagRow, dag_version: DagVersion, gap_us: int, tx: Transaction) -> None:
    """Create the next run of a DAG with a continuous schedule, unless one is active or queued."""
    memory, end = tx.memory, dag_version.graph.spec.end_date
    assert row.next_run_at is not None  # noqa: S101 - checked by the caller
    fire_time = max(row.next_run_at, tx.now)
    if run_queue.is_running(row.dag_id, memory):
        return  # the end of that run tries again
    if (end is not None and fire_time > end) or _has_run_enough(row, memory):
        return
    row = msgspec.structs.replace(row, next_run_at=fire_time + gap_us, last_fire_time=fire_time)
    put_dag(row, tx)
    _add_run(dag_version, tx, cause="schedule", logical_date=fire_time)
    arm_schedule(row, tx)


def _is_continuous(row: DagRow, memory: Memory) -> bool:
    dag_version = memory.dag_versions.get((row.version, row.dag_id))
    schedule = None if dag_version is None else dag_version.graph.spec.schedule
    return schedule is not None and schedule.gap_us is not None


def _has_run_enough(row: DagRow, memory: Memory) -> bool:
    """Return whether a continuous DAG has had its single run in a daemon that exits when idle."""
    rests, last = memory.rests_after, row.last_fire_time
    return rests is not None and last is not None and last >= rests


def has_fire_time_due(memory: Memory, now: Timestamp) -> bool:
    """Return whether the run of any fire time should have started by now but does not exist yet."""
    return any(
        at <= now and not (_is_continuous(row, memory) and _has_run_enough(row, memory))
        for row in memory.dags.values()
        if (at := next_run_starts_at(row, memory, now)) is not None
    )


def advance_next_runs(tx: Transaction) -> None:
    """Evaluate the tasks of next runs that waited for tasks ended in this turn.

    Also start queued runs.
    """
    while tx.ended_tasks or tx.recheck_dags:
        while tx.ended_tasks:
            run, task_index = tx.ended_tasks.pop()
            _advance_next_run(run, task_index, tx)
        for dag_id in sorted(tx.recheck_dags):
            tx.recheck_dags.discard(dag_id)
            run_queue.begin_queued(dag_id, tx)


def _advance_next_run(run: Run, task_index: int, tx: Transaction) -> None:
    """Evaluate the tasks of the next run that depend on this task. ``run`` may have ended."""
    memory, key = tx.memory, run_key(run.row)
    sequence = memory.run_sequences.get(run.row.dag_id)
    number = None if sequence is None or key is None else sequence.next_run(key)
    next_run = None if number is None else memory.runs.get(number)
    if next_run is None or not _is_advancing(next_run):
        return
    at = next_run.graph.index_of.get(run.spec.tasks[task_index].task_id)
    if at is not None:
        _evaluate_pending(next_run, next_run.graph.past_of[at], tx)


def previous_run_loaded(entry: PreviousRunLoaded, tx: Transaction) -> None:
    """Evaluate the tasks of a run that waited for its previous run, which is now loaded."""
    run = tx.memory.runs.get(entry.run_no)
    if run is not None and _is_advancing(run):
        _evaluate_pending(run, tuple(sorted(run.graph.past)), tx)


def _is_advancing(run: Run) -> bool:
    return run.state is RunState.RUNNING and run.row.quarantine is None


def _evaluate_pending(run: Run, task_indexes: tuple[int, ...], tx: Transaction) -> None:
    pending = [at for at in task_indexes if run.states[at] == TaskState.PENDING]
    if pending:
        tx.runs[run.run_no] = run  # so that the run is restored if the turn is rolled back
        step(run, pending, tx)
