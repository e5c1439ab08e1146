"""What a DAG is owed: the runs that are due or asked for, and the limit across them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

import msgspec

from aioflow.core.idempotency import same_run
from aioflow.core.runs import deadline_alerts, previous, schedule_alerts
from aioflow.core.runs.conf import require_fit
from aioflow.core.runs.run import begin
from aioflow.core.runs.versions import arm_schedule, put_dag, slot_starts_at
from aioflow.core.scheduling import clock_steps, timetable
from aioflow.core.scheduling.slots import Slots
from aioflow.core.state.dag_version import DagVersion
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import Run
from aioflow.core.transaction import Transaction
from aioflow.errors import DagBroken, RequestError, UnknownDag
from aioflow.model.dag_triggers import BY_EVENT
from aioflow.model.ids import TriggerNo
from aioflow.model.rows import DagRow, RunRow
from aioflow.model.states import RunState
from aioflow.model.timestamps import EARLIEST_DATE, LATEST_DATE, Timestamp, to_datetime
from aioflow.protocol.inputs import ContinueBackfill, CreateMissingRuns
from aioflow.protocol.requests import CreateRun

__all__ = (
    "MISSED_SLOTS_AT_ONCE",
    "QUEUED_RUNS",
    "begin_queued",
    "check_conf",
    "count_runs",
    "create_run",
    "find",
    "has_slot_due",
    "is_running",
    "make_run",
    "make_slots",
    "rests",
    "run_ended",
    "run_reopened",
    "set_paused",
    "slot_due",
    "step_back",
)

MISSED_SLOTS_AT_ONCE = 10
"""Runs made in one turn for slots that were missed; the rest follow in later turns."""

QUEUED_RUNS = 32
"""Runs of one DAG that may wait for ``max_active_runs`` before its schedule holds back."""

_MADE_ID = re.compile(r".*\.[0-9]{8}T[0-9]{6}Z\.[0-9]+")
"""The form of the ids made here: nobody may take one before it is made."""


def set_paused(dag_id: str, *, paused: bool, tx: Transaction) -> bool:
    """Pause or resume a DAG's schedule.

    Raises:
        UnknownDag: If there is none of that name.
    """
    row = tx.memory.dags.get(dag_id)
    if row is None:
        raise UnknownDag(dag_id)
    if row.paused != paused:
        # What comes late because people had it rest is late for nobody.
        told = row.told_late if paused else tx.now
        row = msgspec.structs.replace(row, paused=paused, told_late=told)
        put_dag(row, tx)
        arm_schedule(row, tx)
        tx.held_dags.add(dag_id)  # what events have started meanwhile may begin
    return paused


# ── runs ────────────────────────────────────────────────────────────────────────────────


def create_run(request: CreateRun, tx: Transaction, slots: Slots) -> tuple[str, bool]:
    """Make a run for a person. Returns its id and whether it is new.

    Raises:
        RequestError: If there is no such DAG, or the conf does not fit it, or the id is
            taken by a run of something else, or that run is being deleted.
    """
    same = same_run(request, tx)
    if same is not None:
        return same, False
    if request.run_id is not None and _MADE_ID.fullmatch(request.run_id):
        raise RequestError(f"run id {request.run_id!r} has the form of a made one; choose another")
    return make_run(request, tx, slots, cause="manual").row.run_id, True


def make_run(
    request: CreateRun,
    tx: Transaction,
    slots: Slots,
    *,
    cause: str,
    caller: TriggerNo | None = None,
    backfill: int | None = None,
) -> Run:
    """Make a run that nobody has asked for before.

    Args:
        cause: See ``model.rows.RunRow``, as for ``caller`` and ``backfill``.

    Raises:
        RequestError: If there is no such DAG, the conf does not fit it, or no calendar has its
            logical date. Nothing has changed.
    """
    _check_date(request.logical_date)
    return _add_run(
        check_conf(request, tx),
        tx,
        slots,
        cause=cause,
        run_id=request.run_id,
        logical_date=request.logical_date,
        conf=request.conf,
        key=request.key,
        caller=caller,
        backfill=backfill,
    )


def find(dag_id: str, memory: Memory) -> tuple[DagRow, DagVersion]:
    """Return a DAG as the newest version of its file has it.

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
    """Return what a run would be made of, if it could be.

    Raises:
        RequestError: As ``make_run``.
    """
    _, dag_version = find(request.dag_id, tx.memory)
    require_fit(dag_version.graph.spec, request.conf)
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
    slots: Slots,
    *,
    cause: str,
    run_id: str | None = None,
    logical_date: Timestamp | None = None,
    conf: bytes | None = None,
    key: str | None = None,
    caller: TriggerNo | None = None,
    backfill: int | None = None,
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
    )
    run = Run(row, dag_version)
    tx.memory.add_run(run)
    tx.new_run(run)
    _remember_run(run, tx.memory)
    deadline_alerts.owe(run, tx)
    previous.came_before(run, tx)
    if not rests(run, tx.memory):
        begin_queued(run.queue, tx, slots)
    return run


def _run_id(dag_id: str, at: Timestamp, run_no: int) -> str:
    """Readable, and unique over all DAGs because of the row's number."""
    moment = to_datetime(at)
    return f"{dag_id}.{moment.year:04}{moment:%m%dT%H%M%SZ}.{run_no}"


def count_runs(memory: Memory) -> None:
    """Count the runs of all DAGs anew."""
    memory.queued_runs.clear()
    memory.active_runs.clear()
    for dag_version, count in memory.runs.dag_versions.counts():
        dag_id = dag_version.graph.spec.dag_id
        memory.active_runs[dag_id] = memory.active_runs.get(dag_id, 0) + count
    for _, run in sorted(memory.runs.objects.items()):
        _remember_run(run, memory)


def _remember_run(run: Run, memory: Memory) -> None:
    """Count a run into its DAG: among those that run, or that wait to."""
    queue = run.queue
    if run.clearing is not None and run.state is RunState.QUEUED:
        return  # it has its turn when all has been cleared
    if run.state is RunState.QUEUED:
        memory.queued_runs.setdefault(queue, deque()).append(run)
    elif run.state is RunState.RUNNING:
        memory.active_runs[queue] = memory.active_runs.get(queue, 0) + 1


def run_ended(run: Run, *, was: RunState, tx: Transaction, slots: Slots) -> None:
    """A run of the DAG ended: the next that waits may begin."""
    memory, dag_id = tx.memory, run.row.dag_id
    if was is RunState.RUNNING:
        memory.active_runs[run.queue] -= 1
    else:
        step_back(run, tx)
    deadline_alerts.write_off(run.run_no, tx)
    tx.eased_dags.add(dag_id)
    begin_queued(run.queue, tx, slots)
    if run.row.backfill is not None:
        tx.effects.append(ContinueBackfill(run.row.backfill))
    row = memory.dags.get(dag_id)
    if row is None or row.next_run_at is None:
        return
    is_continuous = _is_continuous(row, memory)
    if row.next_run_at > tx.now and not is_continuous:
        return  # most ends: when the run of the slot would start takes a calendar
    at = slot_starts_at(row, memory, tx.now)
    if at is not None and at <= tx.now:
        slot_due(dag_id, row.next_run_at, tx, slots)  # it had to wait for room
    elif at is not None and is_continuous:
        arm_schedule(row, tx)


def step_back(run: Run, tx: Transaction) -> None:
    """Take a run out of the queue of its DAG, if it is there."""
    waiting = tx.memory.queued_runs.get(run.queue, deque())
    if run in waiting:
        waiting.remove(run)
        tx.eased_dags.add(run.row.dag_id)


def run_reopened(run: Run, tx: Transaction, slots: Slots) -> None:
    """A run whose tasks were cleared is to go on: it waits behind those that wait already."""
    _remember_run(run, tx.memory)
    begin_queued(run.queue, tx, slots)


def begin_queued(queue: str, tx: Transaction, slots: Slots) -> None:
    """Begin the oldest waiting runs of a DAG, as many as its limit admits.

    And one more, where those that are active wait for it. Those of a backfill all begin: no more
    are made than it may have.
    """
    memory = tx.memory
    waiting = memory.queued_runs.get(queue, deque())
    while waiting and _has_turn(waiting[0], memory):
        run = next((run for run in waiting if not rests(run, memory)), None)
        if run is None:
            break
        waiting.remove(run)
        _begin(run, tx, slots)
    needed = previous.needed_run(queue, memory) if waiting else None
    if needed is not None:
        waiting.remove(needed)
        _begin(needed, tx, slots)


def rests(run: Run, memory: Memory) -> bool:
    """Whether a run waits until its DAG is resumed: what events start while it is paused."""
    row = memory.dags.get(run.row.dag_id)
    is_waiting = run.state is RunState.QUEUED and run.row.cause == BY_EVENT
    return is_waiting and row is not None and row.paused


def _has_turn(run: Run, memory: Memory) -> bool:
    active = memory.active_runs.get(run.queue, 0)
    return run.row.backfill is not None or active < run.spec.max_active_runs


def _begin(run: Run, tx: Transaction, slots: Slots) -> None:
    active, queue = tx.memory.active_runs, run.queue
    active[queue] = active.get(queue, 0) + 1
    tx.eased_dags.add(run.row.dag_id)
    begin(run, tx, slots)


def slot_due(dag_id: str, at: Timestamp, tx: Transaction, slots: Slots) -> None:
    """A slot of a schedule has come: make its run, arm the next.

    While too many runs of the DAG wait already nothing is made; the end of a run asks again.
    """
    row = tx.memory.dags.get(dag_id)
    if row is None or row.gone or row.paused or row.next_run_at != at:
        return  # armed for another slot
    dag_version = tx.memory.dag_versions[row.version, dag_id]
    schedule = dag_version.graph.spec.schedule
    if schedule is None:
        return
    if schedule.gap_us is not None:
        _run_on(row, dag_version, schedule.gap_us, tx, slots)
        return
    starts = slot_starts_at(row, tx.memory, tx.now)
    if starts is None:
        return  # the schedule has ended
    if starts > tx.now:
        arm_schedule(row, tx)  # the clock was set back
        return
    room = QUEUED_RUNS - len(tx.memory.queued_runs.get(dag_id, ()))
    if room <= 0:
        schedule_alerts.held_back(row, dag_version.graph.spec, starts, tx)
        return
    row = schedule_alerts.told(row, dag_version.graph.spec, starts, tx)
    _make_due(row, dag_version, min(room, MISSED_SLOTS_AT_ONCE), tx, slots)


def _make_due(
    row: DagRow, dag_version: DagVersion, limit: int, tx: Transaction, slots: Slots
) -> None:
    """Make the runs of slots that have come, as the DAG says of those that were missed."""
    spec, cursor = dag_version.graph.spec, row.next_run_at
    assert spec.schedule is not None  # noqa: S101 - the caller has looked
    assert cursor is not None  # noqa: S101
    due, following = [cursor], None
    if not spec.schedule.once:
        due, following = timetable.missed(
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
    _put_made(row, dag_version, due, following, dealt, tx, slots)


def _put_made(
    row: DagRow,
    dag_version: DagVersion,
    due: Sequence[Timestamp],
    following: Timestamp | None,
    dealt: Timestamp,
    tx: Transaction,
    slots: Slots,
) -> None:
    last = max(dealt, row.last_slot) if clock_steps.is_ahead(row) and row.last_slot else dealt
    row = msgspec.structs.replace(row, next_run_at=following, last_slot=last)
    put_dag(row, tx)
    for slot in due:
        _add_run(dag_version, tx, slots, cause="schedule", logical_date=slot)
    arm_schedule(row, tx)


def make_slots(entry: CreateMissingRuns, tx: Transaction, slots: Slots) -> None:
    """Make the runs of slots that were due, but for those that had one."""
    row = tx.memory.dags.get(entry.dag_id)
    known = tx.memory.found_ahead.get(entry.dag_id)
    if row is None or row.gone or row.paused or row.next_run_at != entry.cursor or known is None:
        return  # its cursor was moved, and whatever did so has armed the next slot
    dag_version = tx.memory.dag_versions[row.version, entry.dag_id]
    due = [slot for slot in entry.slots if slot not in known]
    _put_made(row, dag_version, due, entry.following, entry.slots[-1], tx, slots)


def _run_on(
    row: DagRow, dag_version: DagVersion, gap_us: int, tx: Transaction, slots: Slots
) -> None:
    """Make the next run of a DAG of which one follows the other, if none is left of it."""
    memory, end = tx.memory, dag_version.graph.spec.end_date
    assert row.next_run_at is not None  # noqa: S101 - the caller has looked
    slot = max(row.next_run_at, tx.now)
    if is_running(row.dag_id, memory):
        return  # the end of it asks again
    if (end is not None and slot > end) or _has_run_enough(row, memory):
        return
    row = msgspec.structs.replace(row, next_run_at=slot + gap_us, last_slot=slot)
    put_dag(row, tx)
    _add_run(dag_version, tx, slots, cause="schedule", logical_date=slot)
    arm_schedule(row, tx)


def is_running(dag_id: str, memory: Memory) -> bool:
    """Whether a run of a DAG goes on or waits for its turn; those of backfills do not count."""
    return bool(memory.active_runs.get(dag_id) or memory.queued_runs.get(dag_id))


def _is_continuous(row: DagRow, memory: Memory) -> bool:
    dag_version = memory.dag_versions.get((row.version, row.dag_id))
    schedule = None if dag_version is None else dag_version.graph.spec.schedule
    return schedule is not None and schedule.gap_us is not None


def _has_run_enough(row: DagRow, memory: Memory) -> bool:
    """Whether a daemon that ends when it is idle has had its one run of a DAG without an end."""
    rests, last = memory.rests_after, row.last_slot
    return rests is not None and last is not None and last >= rests


def has_slot_due(memory: Memory, now: Timestamp) -> bool:
    """Whether the run of some slot is still to be made that should have started by now."""
    return any(
        at <= now and not (_is_continuous(row, memory) and _has_run_enough(row, memory))
        for row in memory.dags.values()
        if (at := slot_starts_at(row, memory, now)) is not None
    )
