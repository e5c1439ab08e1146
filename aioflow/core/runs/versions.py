"""Which version of a DAG is the newest, which file it is from, and when its schedule begins.

A name belongs to the file that had it first. Another file that defines it too is told so,
and inherits it when the first one lets it go.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aioflow.core import retention
from aioflow.core.runs.pool_fit import too_wide
from aioflow.core.scheduling import timetable
from aioflow.core.state.child_roles import ASKED_FOR
from aioflow.core.state.memory import Memory
from aioflow.core.transaction import Transaction
from aioflow.core.triggers.assignment import is_stopped
from aioflow.core.triggers.dag_triggers import adopt, place_of
from aioflow.errors import DuplicateDag
from aioflow.model.dag import DagSpec
from aioflow.model.rows import DagFileRow, DagRow, PoolRow, VersionRow
from aioflow.model.schedule import ScheduleSpec
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.effects import Warn
from aioflow.protocol.inputs import (
    ContinueBackfill,
    FileBroken,
    FileDeleted,
    FileParsed,
    PauseTriggers,
)

__all__ = ("arm_schedule", "file_broken", "file_gone", "file_parsed", "put_dag", "slot_starts_at")


def file_parsed(parsed: FileParsed, draft: Transaction, pools: Mapping[str, PoolRow]) -> None:
    """Make a file's DAGs the newest; those it no longer has start no more runs."""
    failures = [(failure.reason, failure.message) for failure in parsed.failures]
    mine = []
    _forget_refused(parsed.file, draft)
    for spec in parsed.dags:
        known = draft.memory.dags.get(spec.dag_id)
        if known is not None and known.file != parsed.file and not known.gone:
            duplicate = DuplicateDag(spec.dag_id, known.file)
            failures.append((duplicate.code, str(duplicate)))
            refused = draft.refused.setdefault(spec.dag_id, {})
            refused[parsed.file] = (spec, parsed.version)
        else:
            mine.append(spec)
    _keep_version(parsed, draft)
    for spec in mine:
        _adopt(spec, parsed.file, parsed.version, draft)
    found = too_wide(mine, pools)
    if found is not None:
        failures.append((found.code, str(found)))
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
    _retire(parsed.file, {spec.dag_id for spec in mine}, draft)
    _prune_plans(draft)


def file_broken(broken: FileBroken, draft: Transaction) -> None:
    """A file gives nothing; its last good version stays active."""
    known = draft.memory.files.get(broken.file)
    if known is not None and known.version is not None and known.reason is None:
        message = f"{broken.file} gives nothing any more, its DAGs go on as they were"
        draft.owing.alert(broken.reason, f"{message}: {broken.message}", run_id="")
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


def file_gone(gone: FileDeleted, draft: Transaction) -> None:
    """A file was deleted. Live runs of its DAGs go on."""
    if draft.memory.files.pop(gone.file, None) is not None:
        draft.batch.gone_files.append(gone.file)
    _forget_refused(gone.file, draft)
    _retire(gone.file, set(), draft)


def arm_schedule(row: DagRow, draft: Transaction) -> None:
    """Have the next slot come, unless the schedule rests or has ended."""
    at = slot_starts_at(row, draft.memory, draft.now)
    if at is not None and row.next_run_at is not None:
        draft.wake_dag(row.dag_id, row.next_run_at, at)


def slot_starts_at(row: DagRow, memory: Memory, now: Timestamp) -> Timestamp | None:
    """Return when the run of the next slot starts; ``None`` where a schedule rests or has ended."""
    plan, slot = memory.plans.get((row.version, row.dag_id)), row.next_run_at
    if row.gone or row.paused or slot is None or plan is None:
        return None
    spec = plan.graph.spec
    if spec.schedule is None or (spec.end_date is not None and slot > spec.end_date):
        return None
    if spec.schedule.gap_us is not None:
        # It follows from a run that was, and the clock may have been set back since.
        soon = min(slot, now + spec.schedule.gap_us)
        return soon if spec.start_date is None else max(soon, spec.start_date)
    return timetable.starts_at(spec.schedule, spec.timezone, slot, salt=spec.dag_id)


def put_dag(row: DagRow, draft: Transaction) -> None:
    """Write a DAG's row. Where its triggers stop with that, or need not any more, they do."""
    was = is_stopped(row.dag_id, draft.memory)
    draft.memory.dags[row.dag_id] = row
    draft.batch.dags.append(row)
    if row.dag_id in draft.batch.gone_dags:
        draft.batch.gone_dags.remove(row.dag_id)
    now = is_stopped(row.dag_id, draft.memory)
    if was != now:
        draft.effects.append(PauseTriggers(row.dag_id, is_stopped=now))
    place_of(row.dag_id, draft)


def _put_file(row: DagFileRow, draft: Transaction) -> None:
    draft.memory.files[row.file] = row
    draft.batch.dag_files.append(row)
    if row.file in draft.batch.gone_files:
        draft.batch.gone_files.remove(row.file)


def _keep_version(parsed: FileParsed, draft: Transaction) -> None:
    memory = draft.memory
    if parsed.version not in memory.stored_versions:
        retention.spare_version(parsed.version, draft)
        memory.stored_versions.add(parsed.version)
        draft.batch.new_versions.append(
            VersionRow(
                version=parsed.version,
                file=parsed.file,
                dags=tuple(map(_without_fields, parsed.dags)),
                sources=parsed.sources,
                created_at=draft.now,
            )
        )


def _without_fields(spec: DagSpec) -> DagSpec:
    """Return a DAG as it may lie open: the fields of its trigger lie sealed in a row."""
    if spec.trigger is None:
        return spec
    return msgspec.structs.replace(spec, trigger=msgspec.structs.replace(spec.trigger, kwargs=None))


def _adopt(spec: DagSpec, file: str, version: str, draft: Transaction) -> None:
    memory = draft.memory
    known = memory.dags.get(spec.dag_id)
    begun = known or DagRow(dag_id=spec.dag_id, file=file, version=version)
    has_rested = known is None or slot_starts_at(known, memory, draft.now) is None
    told = draft.now if has_rested else None  # what is late by that is late for nobody
    if spec.schedule is not None and not (known and _is_unchanged(spec, known, draft)):
        begun = _begin_schedule(spec, spec.schedule, begun, draft.now)
    _tell_isolated(spec, draft)
    memory.add_plan(version, _without_fields(spec))
    adopt(spec, draft)
    row = msgspec.structs.replace(
        begun, file=file, version=version, gone=False, told_late=told or begun.told_late
    )
    put_dag(row, draft)
    arm_schedule(row, draft)
    for backfill in draft.memory.backfills.values():
        if backfill.dag_id == spec.dag_id:
            draft.effects.append(ContinueBackfill(backfill.backfill_no))


def _tell_isolated(spec: DagSpec, draft: Transaction) -> None:
    """Log why a DAG has hosts of its own from now on, unless its author asked for that."""
    reasons = tuple(reason for reason in spec.isolated if reason != ASKED_FOR)
    known = draft.memory.newest(spec.dag_id)
    if reasons and (known is None or known.isolated != spec.isolated):
        facts: dict[str, str | int] = {"dag_id": spec.dag_id, "reason": "; ".join(reasons)}
        draft.effects.append(Warn("a DAG runs in hosts of its own", facts))


def _begin_schedule(spec: DagSpec, schedule: ScheduleSpec, row: DagRow, now: Timestamp) -> DagRow:
    """Where a new schedule begins: never at a slot that was dealt with, whatever was edited."""
    dealt = row.last_slot
    if dealt is None and row.next_run_at is not None:
        dealt = row.next_run_at - 1
    ahead = (
        dealt if dealt is not None and dealt > now else None
    )  # see ``core.scheduling.clock_steps``
    dealt = dealt if ahead is None else now
    if not schedule.has_slots:
        begin = now if spec.start_date is None else spec.start_date
        if schedule.gap_us is not None or (dealt is not None and begin <= dealt):
            begin = max(begin, now, -1 if dealt is None else dealt + 1)
        return msgspec.structs.replace(row, next_run_at=begin, last_slot=dealt, told_late=now)
    after = _first_after(spec, schedule, now, is_new=dealt is None)
    after = after if dealt is None else max(after, dealt)
    first = timetable.next_slot(schedule, spec.timezone, after=after)
    dealt = min(after, now if dealt is None else max(now, dealt))
    return msgspec.structs.replace(
        row, next_run_at=first, last_slot=dealt if ahead is None else ahead, told_late=now
    )


def _first_after(
    spec: DagSpec, schedule: ScheduleSpec, now: Timestamp, *, is_new: bool
) -> Timestamp:
    """Return after which instant the first slot is sought that a schedule makes a run for."""
    start = spec.start_date
    if spec.catchup:
        if start is not None:
            return start - 1
        return schedule.dates[0] - 1 if schedule.dates else now
    if start is None:
        return now
    if is_new and spec.missed == "latest":
        # As in Airflow: the latest slot that was missed before the DAG was known.
        latest = timetable.latest_slot(schedule, spec.timezone, after=start - 1, until=now)
        if latest is not None:
            return latest - 1
    return max(now, start - 1)


def _is_unchanged(spec: DagSpec, known: DagRow, draft: Transaction) -> bool:
    plan = draft.memory.plans.get((known.version, known.dag_id))
    if plan is None:
        return False
    old, slot = plan.graph.spec, known.next_run_at
    if slot is not None and spec.start_date != old.start_date:
        begins = spec.start_date is None or spec.start_date <= slot
        if slot > draft.now or not begins:
            return False  # it may come sooner now, or has to wait
    is_once = spec.schedule is not None and spec.schedule.once
    return old.schedule == spec.schedule and (is_once or old.timezone == spec.timezone)


def _retire(file: str, kept: set[str], draft: Transaction) -> None:
    """Let go of the names a file no longer has. The cursor stays, for when one comes back."""
    for row in list(draft.memory.dags.values()):
        if row.file == file and row.dag_id not in kept and not row.gone:
            put_dag(msgspec.structs.replace(row, gone=True), draft)
            _inherit(row.dag_id, draft)


def _inherit(dag_id: str, draft: Transaction) -> None:
    """Give a free name to the first of the files that were refused it."""
    heirs = draft.refused.pop(dag_id, {})
    if not heirs:
        return
    file = min(heirs)
    spec, version = heirs.pop(file)
    if heirs:
        draft.refused[dag_id] = heirs
    _adopt(spec, file, version, draft)
    row = draft.memory.files.get(file)
    is_clear = not any(file in others for others in draft.refused.values())
    if row is not None and row.reason == DuplicateDag.code and is_clear:
        _put_file(msgspec.structs.replace(row, reason=None, message=None), draft)


def _forget_refused(file: str, draft: Transaction) -> None:
    for files in draft.refused.values():
        files.pop(file, None)


def _prune_plans(draft: Transaction) -> None:
    """Keep the plans that a new run or a live one may ask for."""
    memory = draft.memory
    needed = {(row.version, row.dag_id) for row in memory.dags.values()}
    needed |= {(run.row.version, run.row.dag_id) for run in memory.runs.objects.values()}
    needed |= {(plan.version, plan.graph.spec.dag_id) for plan, _ in memory.runs.plans.counts()}
    for key in memory.plans.keys() - needed:
        draft.pruned[key] = memory.plans.pop(key)
