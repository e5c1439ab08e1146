"""Backfills: runs for the fire times of a date range, alongside the scheduled runs.

A backfill has its own limit of live runs, and its tasks queue behind the tasks of all other live
runs, so it never delays a scheduled run. Each fire time is processed exactly once, because the
commit that creates runs also stores the next fire time to process. A backfill skips fire times for
which the schedule itself has yet to create runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from aioflow.core.runs.cancel import cancel
from aioflow.core.runs.create import check_conf, find, make_run, requester
from aioflow.core.scheduling import timetable
from aioflow.core.scheduling.catchup import missed
from aioflow.core.state.memory import Memory
from aioflow.core.state.task_instance import backfill_queue
from aioflow.core.transaction import Transaction
from aioflow.errors import BackfillRefused, RequestError, UnknownBackfill
from aioflow.model.dag import BackfillRow, BackfillState, DagSpec, Reprocess
from aioflow.model.rows import DagRow, RunRow
from aioflow.model.states import RunState
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.inputs import ContinueBackfill, Input, RequestReceived
from aioflow.protocol.requests import CreateRun, StartBackfill

__all__ = (
    "FIRE_TIMES_AT_ONCE",
    "cancel_backfill",
    "check_order",
    "continue_backfill",
    "fail",
    "fire_times_of",
    "found",
    "is_wanted",
    "keys",
    "proposed",
    "start",
    "wanted",
)

FIRE_TIMES_AT_ONCE = 50
"""Maximum number of fire times processed in one turn. The rest follow in later turns."""

BACK_AT_ONCE = 10
"""Maximum number of fire times processed in one turn of a reverse backfill."""

_BAD = frozenset({RunState.FAILED, RunState.PARTIAL, RunState.CANCELLED})


def start(request: StartBackfill, tx: Transaction) -> tuple[int, bool]:
    """Start a backfill. Return its number, and whether it is new.

    If the request equals that of the active backfill, return the active one.

    Raises:
        RequestError: If the DAG does not exist, the conf is not valid for it, another backfill of
            the DAG is active, or there is nothing to fill.
    """
    before = _keyed(request, tx.memory)
    if before is not None:
        return before, False
    row, dag_version = find(request.dag_id, tx.memory)
    spec = dag_version.graph.spec
    wished = proposed(request, row, spec, tx.now)
    for known in tx.memory.backfills.values():
        if known.dag_id == request.dag_id:
            if _is_same(known, wished):
                return known.backfill_no, False
            raise BackfillRefused(
                f"backfill {known.backfill_no} of {request.dag_id!r} is active; "
                "wait for it, or cancel it"
            )
    check_order(wished, spec)
    check_conf(CreateRun(dag_id=request.dag_id, conf=request.conf), tx)
    if spec.schedule is None:
        raise BackfillRefused(
            f"{request.dag_id!r} has no schedule, so it has no fire times to fill"
        )
    if request.last < request.first:
        raise BackfillRefused("the range ends before it begins: its first day comes first")
    if not fire_times_of(wished, spec, 1):
        raise BackfillRefused(
            f"the schedule of {request.dag_id!r} has no past fire time in that range "
            "that lacks a run of the schedule; see `aioflow dags next`"
        )
    number = tx.numbers.take()
    tx.put_backfill(replace(wished, backfill_no=number, started_by=requester(tx)))
    tx.effects.append(ContinueBackfill(number))
    return number, True


def keys(inputs: Iterable[Input]) -> list[tuple[str, str]]:
    """Return the DAGs and idempotency keys of the inputs that request a backfill."""
    asked = (entry.request for entry in inputs if isinstance(entry, RequestReceived))
    begun = (request for request in asked if isinstance(request, StartBackfill))
    return [(request.dag_id, request.key) for request in begun if request.key is not None]


def _keyed(request: StartBackfill, memory: Memory) -> int | None:
    if request.key is None:
        return None
    for known in memory.backfills.values():
        if (known.dag_id, known.key) == (request.dag_id, request.key):
            return known.backfill_no
    return memory.keyed_backfills.get((request.dag_id, request.key))


def check_order(row: BackfillRow, spec: DagSpec) -> None:
    """Check that the DAG of a backfill allows its order and its reprocessing.

    Raises:
        BackfillRefused: If a task depends on the previous run, and the backfill is in reverse order
            or repeats runs.
    """
    is_in_line = any(task.depends_on_past or task.wait_for_downstream for task in spec.tasks)
    if is_in_line and (row.is_reverse or row.reprocess != "none"):
        raise BackfillRefused(
            f"tasks of {row.dag_id!r} wait for the run before: its runs are made in order, "
            "once each; clear those that are to run again"
        )


def proposed(request: StartBackfill, row: DagRow, spec: DagSpec, now: Timestamp) -> BackfillRow:
    """Return the backfill that a request would start, with no number yet.

    Its range is limited to the past.
    """
    last = min(request.last, now)
    scheduled = _next_scheduled(row, spec, now)
    if scheduled is not None:
        last = min(last, scheduled - 1)
    return BackfillRow(
        backfill_no=-1,
        dag_id=request.dag_id,
        first=request.first,
        last=last,
        reprocess=request.reprocess,
        max_active=request.max_active or spec.max_active_runs,
        is_reverse=request.is_reverse,
        conf=request.conf,
        next_at=last if request.is_reverse else request.first,
        created_at=now,
        key=request.key,
    )


def _next_scheduled(row: DagRow, spec: DagSpec, now: Timestamp) -> Timestamp | None:
    """Return the first past fire time for which the schedule has yet to create a run.

    Return ``None`` if there is no such fire time.
    """
    cursor, schedule = row.next_run_at, spec.schedule
    if schedule is None or cursor is None or cursor > now:
        return None
    if not schedule.has_fire_times:
        return cursor
    due, _ = missed(
        schedule,
        spec.timezone,
        cursor=cursor,
        now=now,
        policy=spec.missed,
        limit=1,
        last=spec.end_date,
        salt=spec.dag_id,
    )
    return due[0] if due else None


def _is_same(known: BackfillRow, wished: BackfillRow) -> bool:
    """Return whether a request repeats the request of a backfill.

    The range of the repeated request may end later, because a range that reaches into the future is
    limited to the time of the request.
    """
    fields = ("first", "reprocess", "max_active", "is_reverse", "conf")
    is_alike = all(getattr(known, name) == getattr(wished, name) for name in fields)
    return is_alike and known.last <= wished.last


def fire_times_of(row: BackfillRow, spec: DagSpec, limit: int) -> list[Timestamp]:
    """Return the next unprocessed fire times, in the order of the backfill."""
    schedule = spec.schedule
    if row.next_at is None or schedule is None:
        return []
    if not row.is_reverse:
        return timetable.fire_times_between(
            schedule, spec.timezone, after=row.next_at - 1, until=row.last, limit=limit
        )
    fire_times: list[Timestamp] = []
    until = row.next_at
    while len(fire_times) < limit:
        fire_time = timetable.latest_fire_time(
            schedule, spec.timezone, after=row.first - 1, until=until
        )
        if fire_time is None:
            break
        fire_times.append(fire_time)
        until = fire_time - 1
    return fire_times


def is_wanted(found: RunRow | None, reprocess: Reprocess) -> bool:
    """Return whether a fire time needs a run, given its newest run."""
    if found is None:
        return True
    if found.ended_at is None:
        return False
    return reprocess == "all" or (reprocess == "failed" and found.state in _BAD)


def wanted(
    inputs: Iterable[Input], memory: Memory
) -> Iterator[tuple[BackfillRow, list[Timestamp]]]:
    """Yield the active backfills of these inputs with their next fire times.

    The newest runs of these fire times must be passed to ``found`` before the inputs are handled.
    One fire time more than a turn processes may be yielded; the next turn starts with it.
    """
    for number in dict.fromkeys(e.backfill_no for e in inputs if isinstance(e, ContinueBackfill)):
        row = memory.backfills.get(number)
        spec = None if row is None else memory.newest(row.dag_id)
        if row is not None and spec is not None:
            yield row, fire_times_of(row, spec, _at_once(row) + 1)


def found(
    row: BackfillRow, fire_times: Iterable[Timestamp], runs: Iterable[RunRow], memory: Memory
) -> None:
    """Record the newest run of each fire time, for this turn and the current version of the DAG."""
    known: dict[Timestamp, RunRow | None] = dict.fromkeys(fire_times)
    known |= {run.logical_date: run for run in runs if run.logical_date is not None}
    memory.found_fire_times[row.backfill_no] = memory.dags[row.dag_id].version, known


def _at_once(row: BackfillRow) -> int:
    """Return how many fire times a turn processes.

    Ten backward searches cost as much as fifty forward ones.
    """
    return BACK_AT_ONCE if row.is_reverse else FIRE_TIMES_AT_ONCE


def continue_backfill(entry: ContinueBackfill, tx: Transaction) -> None:
    """Create the next runs of a backfill up to its limit, or end it."""
    row = tx.memory.backfills.get(entry.backfill_no)
    spec = None if row is None else tx.memory.newest(row.dag_id)
    loaded = tx.memory.found_fire_times.pop(entry.backfill_no, None)
    if row is None or spec is None or loaded is None:
        return  # the backfill or its DAG is gone, or the input was repeated in one turn
    version, fire_times_found = loaded
    if version != tx.memory.dags[row.dag_id].version:
        tx.effects.append(entry)  # the DAG has changed: the next turn repeats the query
        return
    if spec.schedule is None:
        _end(row, "failed", tx, failure="the DAG has no schedule any more")
        return
    try:
        row = _fill(row, fire_times_found, tx)
    except RequestError as exc:
        _end(row, "failed", tx, failure=str(exc))
        return
    capacity = _capacity(row, tx.memory)
    if row.next_at is None and capacity == row.max_active:
        _end(row, "done", tx)
    elif row.next_at is not None and capacity > 0:
        tx.effects.append(entry)


def _fill(
    row: BackfillRow, loaded: Mapping[Timestamp, RunRow | None], tx: Transaction
) -> BackfillRow:
    """Process the next fire times while the limit allows it.

    Raises:
        RequestError: If the DAG no longer accepts these runs. It then rejects all of them.
    """
    upcoming = list(loaded)
    count = 0
    for fire_time in upcoming[: _at_once(row)]:
        if is_wanted(loaded[fire_time], row.reprocess):
            if _capacity(row, tx.memory) <= 0:
                break
            made = CreateRun(dag_id=row.dag_id, conf=row.conf, logical_date=fire_time)
            made_by = row.started_by
            make_run(made, tx, cause="backfill", backfill=row.backfill_no, started_by=made_by)
            row = replace(row, made=row.made + 1)
        else:
            row = replace(row, skipped=row.skipped + 1)
        count += 1
    row = replace(row, next_at=upcoming[count] if count < len(upcoming) else None)
    tx.put_backfill(row)
    return row


def _capacity(row: BackfillRow, memory: Memory) -> int:
    queue = backfill_queue(row.backfill_no)
    waiting = len(memory.queued_runs.get(queue, ()))
    return row.max_active - memory.active_runs.get(queue, 0) - waiting


def cancel_backfill(backfill_no: int, tx: Transaction) -> None:
    """Stop creating runs for a backfill, and cancel its live runs.

    Raises:
        UnknownBackfill: If there is no active backfill with this number.
    """
    row = tx.memory.backfills.get(backfill_no)
    if row is None:
        raise UnknownBackfill(backfill_no)
    _end(row, "cancelled", tx)
    for run in list(tx.memory.runs.objects.values()):
        if run.row.backfill == backfill_no:
            cancel(run, tx)


def fail(backfill_no: int, reason: str, tx: Transaction) -> None:
    """End a backfill that cannot continue because of a defect. Its existing runs continue."""
    row = tx.memory.backfills.get(backfill_no)
    if row is not None:
        _end(row, "failed", tx, failure=reason[:1_000])


def _end(
    row: BackfillRow, state: BackfillState, tx: Transaction, failure: str | None = None
) -> None:
    tx.put_backfill(replace(row, state=state, ended_at=tx.now, failure=failure))
