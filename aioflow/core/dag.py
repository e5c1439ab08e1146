"""What a DAG is owed: its newest version, the runs that are due, the limit across runs."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from aioflow.core import timetable
from aioflow.core.draft import Draft
from aioflow.core.memory import Memory, Plan, Run
from aioflow.core.run import begin
from aioflow.core.slots import Slots
from aioflow.errors import BadConf, DagBroken, DuplicateDag, RunExists, UnknownDag
from aioflow.inputs import CreateRun, Due, FileBroken, FileGone, FileParsed
from aioflow.model import DagSpec, Instant, RunState
from aioflow.rows import DagFileRow, DagRow, RunRow, VersionRow

__all__ = (
    "MISSED_SLOTS_AT_ONCE",
    "begin_queued",
    "create_run",
    "file_broken",
    "file_gone",
    "file_parsed",
    "remember_run",
    "run_ended",
    "set_paused",
    "slot_due",
)

MISSED_SLOTS_AT_ONCE = 10
"""Runs made in one turn for slots that were missed; the rest follow in later turns."""


# ── versions ────────────────────────────────────────────────────────────────────────────


def file_parsed(parsed: FileParsed, draft: Draft) -> None:
    """Make a file's DAGs the newest; those it no longer has start no more runs.

    A DAG that another file defines already stays that file's; this one is told.
    """
    memory = draft.memory
    failures = [(failure.reason, failure.message) for failure in parsed.failures]
    mine = []
    for spec in parsed.dags:
        known = memory.dags.get(spec.dag_id)
        if known is not None and known.file != parsed.file and not known.gone:
            duplicate = DuplicateDag(spec.dag_id, known.file)
            failures.append((duplicate.code, str(duplicate)))
        else:
            mine.append(spec)
    _keep_version(parsed, mine, draft)
    for spec in mine:
        _adopt(spec, parsed, draft)
    _retire(parsed.file, {spec.dag_id for spec in mine}, draft)
    reason, message = failures[0] if failures else (None, None)
    _put_file(
        DagFileRow(
            file=parsed.file,
            version=parsed.version,
            reason=reason,
            message=message,
            parsed_at=draft.now,
        ),
        draft,
    )


def _keep_version(parsed: FileParsed, mine: list[DagSpec], draft: Draft) -> None:
    memory = draft.memory
    if parsed.version not in memory.stored_versions:
        memory.stored_versions.add(parsed.version)
        draft.batch.new_versions.append(
            VersionRow(
                version=parsed.version,
                file=parsed.file,
                dags=parsed.dags,
                sources=parsed.sources,
                created_at=draft.now,
            )
        )
    for spec in mine:
        memory.add_plan(parsed.version, spec)


def _adopt(spec: DagSpec, parsed: FileParsed, draft: Draft) -> None:
    known = draft.memory.dags.get(spec.dag_id)
    next_run_at = _first_slot(spec, known, draft)
    _put_dag(
        DagRow(
            dag_id=spec.dag_id,
            file=parsed.file,
            version=parsed.version,
            paused=known is not None and known.paused,
            next_run_at=next_run_at,
        ),
        draft,
    )
    draft.wake(next_run_at, Due(dag_id=spec.dag_id))


def _first_slot(spec: DagSpec, known: DagRow | None, draft: Draft) -> Instant | None:
    """A schedule that did not change keeps its next slot, so that none is skipped."""
    if spec.schedule is None:
        return None
    if known is not None and not known.gone:
        before = draft.memory.plans.get((known.version, spec.dag_id))
        if before is not None and known.next_run_at is not None:
            old = before.graph.spec
            if (old.schedule, old.timezone) == (spec.schedule, spec.timezone):
                return known.next_run_at
    after = draft.now
    if spec.start_date is not None:
        after = max(after, spec.start_date - 1)
        if spec.catchup:
            after = spec.start_date - 1
    return _until_end(spec, timetable.next_slot(spec.schedule, spec.timezone, after=after))


def _until_end(spec: DagSpec, slot: Instant | None) -> Instant | None:
    if slot is None or (spec.end_date is not None and slot > spec.end_date):
        return None
    return slot


def file_broken(broken: FileBroken, draft: Draft) -> None:
    """A file gives nothing; its last good version stays active."""
    known = draft.memory.files.get(broken.file)
    _put_file(
        DagFileRow(
            file=broken.file,
            version=None if known is None else known.version,
            reason=broken.reason,
            message=broken.message,
            parsed_at=draft.now,
        ),
        draft,
    )


def file_gone(gone: FileGone, draft: Draft) -> None:
    """A file was deleted. Live runs of its DAGs go on."""
    if draft.memory.files.pop(gone.file, None) is not None:
        draft.batch.gone_files.append(gone.file)
    _retire(gone.file, set(), draft)


def _retire(file: str, kept: set[str], draft: Draft) -> None:
    for row in list(draft.memory.dags.values()):
        if row.file == file and row.dag_id not in kept and not row.gone:
            _put_dag(msgspec.structs.replace(row, gone=True, next_run_at=None), draft)


def _put_dag(row: DagRow, draft: Draft) -> None:
    draft.memory.dags[row.dag_id] = row
    draft.batch.dags.append(row)


def _put_file(row: DagFileRow, draft: Draft) -> None:
    draft.memory.files[row.file] = row
    draft.batch.dag_files.append(row)


def set_paused(dag_id: str, *, paused: bool, draft: Draft) -> bool:
    """Pause or resume a DAG's schedule.

    Raises:
        UnknownDag: If there is none of that name.
    """
    row = draft.memory.dags.get(dag_id)
    if row is None:
        raise UnknownDag(dag_id)
    if row.paused != paused:
        _put_dag(msgspec.structs.replace(row, paused=paused), draft)
        if not paused:
            draft.wake(row.next_run_at, Due(dag_id=dag_id))
    return paused


# ── runs ────────────────────────────────────────────────────────────────────────────────


def create_run(request: CreateRun, draft: Draft, slots: Slots) -> tuple[str, bool]:
    """Make a run for a person. Returns its id and whether it is new.

    Raises:
        RequestError: If there is no such DAG, or the conf does not fit it, or the id is
            taken by a run of something else.
    """
    memory = draft.memory
    same = _same_run(request, memory)
    if same is not None:
        return same.row.run_id, False
    row = memory.dags.get(request.dag_id)
    if row is None:
        raise UnknownDag(request.dag_id)
    if row.gone:
        raise DagBroken(request.dag_id, f"{row.file} no longer defines it")
    plan = memory.plans[row.version, row.dag_id]
    _check_conf(plan.graph.spec, request.conf)
    run = _add_run(
        plan,
        draft,
        slots,
        cause="manual",
        run_id=request.run_id,
        logical_date=request.logical_date,
        conf=request.conf,
        key=request.key,
    )
    return run.row.run_id, True


def _same_run(request: CreateRun, memory: Memory) -> Run | None:
    """Return the live run that this request, asked before, has made."""
    if request.key is not None:
        same = memory.run_keys.get((request.dag_id, request.key))
        if same is not None:
            return same
    if request.run_id is None:
        return None
    same = memory.runs_by_id.get(request.run_id)
    if same is not None and (same.row.dag_id, same.row.conf) != (request.dag_id, request.conf):
        raise RunExists(request.run_id)
    return same


def _check_conf(spec: DagSpec, conf: bytes | None) -> None:
    given: object = {} if conf is None else msgspec.msgpack.decode(conf)
    if not isinstance(given, dict):
        raise BadConf(f"the conf of {spec.dag_id!r} must be a JSON object of its parameters")
    allowed = ", ".join(spec.parameters) or "none"
    for name in given:
        if name not in spec.parameters:
            raise BadConf(f"DAG {spec.dag_id!r} has no parameter {name!r}; it has: {allowed}")
    missing = [name for name in spec.required if name not in given]
    if missing:
        raise BadConf(f"DAG {spec.dag_id!r} needs {', '.join(missing)}; give it with --conf")


def _add_run(
    plan: Plan,
    draft: Draft,
    slots: Slots,
    *,
    cause: str,
    run_id: str | None = None,
    logical_date: Instant | None = None,
    conf: bytes | None = None,
    key: str | None = None,
) -> Run:
    spec = plan.graph.spec
    run_no = draft.numbers.take()
    at = draft.now if logical_date is None else logical_date
    row = RunRow(
        run_no=run_no,
        run_id=run_id or _run_id(spec.dag_id, at, run_no, cause),
        dag_id=spec.dag_id,
        version=plan.version,
        state=RunState.QUEUED,
        cause=cause,
        first_task_no=draft.numbers.take(len(spec.tasks)),
        logical_date=logical_date,
        conf=conf,
        key=key,
        created_at=draft.now,
    )
    run = Run(row, plan)
    draft.memory.add_run(run)
    draft.new_run(run)
    remember_run(run, draft.memory)
    begin_queued(spec.dag_id, draft, slots)
    return run


def _run_id(dag_id: str, at: Instant, run_no: int, cause: str) -> str:
    """Readable and unique over all DAGs: a slot has one run, and a row number is unique."""
    stamp = datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{dag_id}.{stamp}" if cause == "schedule" else f"{dag_id}.{stamp}.{run_no}"


def remember_run(run: Run, memory: Memory) -> None:
    """Count a run into its DAG: among those that run, or that wait to."""
    dag_id = run.row.dag_id
    if run.state is RunState.QUEUED:
        memory.queued_runs.setdefault(dag_id, []).append(run)
    elif run.state is RunState.RUNNING:
        memory.active_runs[dag_id] = memory.active_runs.get(dag_id, 0) + 1


def run_ended(run: Run, *, was: RunState, draft: Draft, slots: Slots) -> None:
    """A run of the DAG ended: the next that waits may begin."""
    memory, dag_id = draft.memory, run.row.dag_id
    if was is RunState.RUNNING:
        memory.active_runs[dag_id] -= 1
    elif run in memory.queued_runs.get(dag_id, []):
        memory.queued_runs[dag_id].remove(run)
    begin_queued(dag_id, draft, slots)


def begin_queued(dag_id: str, draft: Draft, slots: Slots) -> None:
    """Begin the oldest waiting runs of a DAG, as many as its limit admits."""
    memory = draft.memory
    waiting = memory.queued_runs.get(dag_id, [])
    while waiting and memory.active_runs.get(dag_id, 0) < waiting[0].spec.max_active_runs:
        run = waiting.pop(0)
        memory.active_runs[dag_id] = memory.active_runs.get(dag_id, 0) + 1
        begin(run, draft, slots)


def slot_due(dag_id: str, draft: Draft, slots: Slots) -> None:
    """A slot of a schedule has come, or seems to have: make its run, arm the next."""
    row = draft.memory.dags.get(dag_id)
    if row is None or row.gone or row.paused or row.next_run_at is None:
        return
    if row.next_run_at > draft.now:  # armed for an earlier slot, or the clock was set back
        draft.wake(row.next_run_at, Due(dag_id=dag_id))
        return
    plan = draft.memory.plans[row.version, dag_id]
    spec = plan.graph.spec
    if spec.schedule is None:
        return
    due, cursor = timetable.missed(
        spec.schedule,
        spec.timezone,
        cursor=row.next_run_at,
        now=draft.now,
        catchup=spec.catchup,
        limit=MISSED_SLOTS_AT_ONCE,
    )
    cursor = _until_end(spec, cursor)
    _put_dag(msgspec.structs.replace(row, next_run_at=cursor), draft)
    for slot in due:
        if _until_end(spec, slot) is None:
            continue  # missed while the daemon was down, and the schedule has ended since
        _add_run(plan, draft, slots, cause="schedule", logical_date=slot)
    draft.wake(cursor, Due(dag_id=dag_id))
