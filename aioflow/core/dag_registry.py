"""The registry of DAGs: their newest versions, their files, and the start of their schedules.

A DAG name belongs to the first file that defined it. If another file defines the same name, that
file gets an error; it takes over the name when the first file drops it. The report about a parsed
file changes the versions first, and then moves the affected triggers.

A task that needs more slots than its pool has can never start. This is reported as an error of the
DAG file when the file is parsed and whenever a pool changes. The DAG stays active, because its
other tasks may run and the pool can be resized.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from aioflow.core import retention
from aioflow.core.scheduling import timetable
from aioflow.core.scheduling.ready import is_hosted_sensor
from aioflow.core.state.child_roles import ASKED_FOR
from aioflow.core.state.memory import Memory
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import migration
from aioflow.core.triggers.assignment import is_stopped
from aioflow.core.triggers.dag_triggers import adopt, update_assignment_of
from aioflow.errors import DuplicateDag, PoolTooNarrow
from aioflow.model.dag import DagSpec, ScheduleSpec
from aioflow.model.rows import DagFileRow, DagRow, PoolRow, VersionRow
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.effects import Warn
from aioflow.protocol.inputs import (
    ContinueBackfill,
    FileBroken,
    FileDeleted,
    FileParsed,
    PauseTriggers,
)

__all__ = (
    "apply_parsed_file",
    "arm_schedule",
    "file_broken",
    "file_gone",
    "file_parsed",
    "next_run_starts_at",
    "put_dag",
    "recheck_pool_fit",
    "task_too_wide",
)


def task_too_wide(specs: Iterable[DagSpec], pools: Mapping[str, PoolRow]) -> PoolTooNarrow | None:
    """Return an error for the first task that does not fit into its pool; ``None`` if all fit."""
    for spec in specs:
        for task in spec.tasks:
            pool = pools.get(task.pool)
            if pool is not None and task.slots > pool.slots and not is_hosted_sensor(task):
                name = f"{spec.dag_id}.{task.task_id}"
                return PoolTooNarrow(name, task.slots, task.pool, pool.slots)
    return None


def recheck_pool_fit(tx: Transaction, pools: Mapping[str, PoolRow]) -> None:
    """Update the error of each file about tasks that do not fit into their pool.

    Any other error of the file takes precedence.
    """
    memory = tx.memory
    specs: dict[str, list[DagSpec]] = {}
    for row in memory.dags.values():
        if not row.gone:
            spec = memory.dag_versions[row.version, row.dag_id].graph.spec
            specs.setdefault(row.file, []).append(spec)
    for file in list(memory.files.values()):
        if file.reason not in {None, PoolTooNarrow.code}:
            continue
        found = task_too_wide(specs.get(file.file, ()), pools)
        reason, message = (None, None) if found is None else (found.code, str(found))
        if (reason, message) != (file.reason, file.message):
            changed = msgspec.structs.replace(file, reason=reason, message=message)
            memory.files[file.file] = changed
            rows = tx.batch.dag_files
            tx.batch.dag_files = [*(row for row in rows if row.file != file.file), changed]


def file_parsed(parsed: FileParsed, tx: Transaction, pools: Mapping[str, PoolRow]) -> None:
    """Apply the DAGs of a parsed file. DAGs that it no longer defines get no more runs."""
    failures = [(failure.reason, failure.message) for failure in parsed.failures]
    mine = []
    _forget_refused(parsed.file, tx)
    for spec in parsed.dags:
        known = tx.memory.dags.get(spec.dag_id)
        if known is not None and known.file != parsed.file and not known.gone:
            duplicate = DuplicateDag(spec.dag_id, known.file)
            failures.append((duplicate.code, str(duplicate)))
            refused = tx.refused.setdefault(spec.dag_id, {})
            refused[parsed.file] = (spec, parsed.version)
        else:
            mine.append(spec)
    _keep_version(parsed, tx)
    for spec in mine:
        _adopt(spec, parsed.file, parsed.version, tx)
    found = task_too_wide(mine, pools)
    if found is not None:
        failures.append((found.code, str(found)))
    reason, message = failures[0] if failures else (None, None)
    _put_file(
        DagFileRow(
            file=parsed.file,
            version=parsed.version,
            reason=reason,
            message=message,
            parsed_at=tx.now,
        ),
        tx,
    )
    _retire(parsed.file, {spec.dag_id for spec in mine}, tx)
    _prune_plans(tx)


def file_broken(broken: FileBroken, tx: Transaction) -> None:
    """Record that a file could not be parsed. Its last good version stays active."""
    known = tx.memory.files.get(broken.file)
    if known is not None and known.version is not None and known.reason is None:
        message = f"{broken.file} cannot be parsed, its DAGs keep their last good version"
        tx.outbox.alert(broken.reason, f"{message}: {broken.message}", run_id="")
    _put_file(
        DagFileRow(
            file=broken.file,
            version=None if known is None else known.version,
            reason=broken.reason,
            message=broken.message,
            parsed_at=tx.now,
        ),
        tx,
    )


def file_gone(gone: FileDeleted, tx: Transaction) -> None:
    """Remove a deleted file. Live runs of its DAGs continue."""
    if tx.memory.files.pop(gone.file, None) is not None:
        tx.batch.gone_files.append(gone.file)
    _forget_refused(gone.file, tx)
    _retire(gone.file, set(), tx)


def arm_schedule(row: DagRow, tx: Transaction) -> None:
    """Arm the timer for the next fire time, unless the schedule is paused or has ended."""
    at = next_run_starts_at(row, tx.memory, tx.now)
    if at is not None and row.next_run_at is not None:
        tx.wake_dag(row.dag_id, row.next_run_at, at)


def next_run_starts_at(row: DagRow, memory: Memory, now: Timestamp) -> Timestamp | None:
    """Return when the next scheduled run starts; ``None`` if the schedule is paused or ended."""
    dag_version, fire_time = memory.dag_versions.get((row.version, row.dag_id)), row.next_run_at
    if row.gone or row.paused or fire_time is None or dag_version is None:
        return None
    spec = dag_version.graph.spec
    if spec.schedule is None or (spec.end_date is not None and fire_time > spec.end_date):
        return None
    if spec.schedule.gap_us is not None:
        # The fire time was computed from the end of an earlier run. The clock may have been set
        # back since.
        soon = min(fire_time, now + spec.schedule.gap_us)
        return soon if spec.start_date is None else max(soon, spec.start_date)
    return timetable.starts_at(spec.schedule, spec.timezone, fire_time, salt=spec.dag_id)


def put_dag(row: DagRow, tx: Transaction) -> None:
    """Write the row of a DAG. If the DAG was paused or resumed, pause or resume its triggers."""
    was = is_stopped(row.dag_id, tx.memory)
    tx.memory.dags[row.dag_id] = row
    tx.batch.dags.append(row)
    if row.dag_id in tx.batch.gone_dags:
        tx.batch.gone_dags.remove(row.dag_id)
    now = is_stopped(row.dag_id, tx.memory)
    if was != now:
        tx.effects.append(PauseTriggers(row.dag_id, is_stopped=now))
    update_assignment_of(row.dag_id, tx)


def _put_file(row: DagFileRow, tx: Transaction) -> None:
    tx.memory.files[row.file] = row
    tx.batch.dag_files.append(row)
    if row.file in tx.batch.gone_files:
        tx.batch.gone_files.remove(row.file)


def _keep_version(parsed: FileParsed, tx: Transaction) -> None:
    memory = tx.memory
    if parsed.version not in memory.stored_versions:
        retention.retain_version(parsed.version, tx)
        memory.stored_versions.add(parsed.version)
        tx.batch.new_versions.append(
            VersionRow(
                version=parsed.version,
                file=parsed.file,
                dags=tuple(map(_without_fields, parsed.dags)),
                sources=parsed.sources,
                created_at=tx.now,
            )
        )


def _without_fields(spec: DagSpec) -> DagSpec:
    """Return a DAG without its trigger's fields, which are stored encrypted in a separate row."""
    if spec.trigger is None:
        return spec
    return msgspec.structs.replace(spec, trigger=msgspec.structs.replace(spec.trigger, kwargs=None))


def _adopt(spec: DagSpec, file: str, version: str, tx: Transaction) -> None:
    memory = tx.memory
    known = memory.dags.get(spec.dag_id)
    begun = known or DagRow(dag_id=spec.dag_id, file=file, version=version)
    has_rested = known is None or next_run_starts_at(known, memory, tx.now) is None
    told = tx.now if has_rested else None  # delays before now are not reported as late
    if spec.schedule is not None and not (known and _is_unchanged(spec, known, tx)):
        begun = _begin_schedule(spec, spec.schedule, begun, tx.now)
    _log_isolated(spec, tx)
    memory.add_plan(version, _without_fields(spec))
    adopt(spec, tx)
    row = msgspec.structs.replace(
        begun, file=file, version=version, gone=False, late_alert_for=told or begun.late_alert_for
    )
    put_dag(row, tx)
    arm_schedule(row, tx)
    for backfill in tx.memory.backfills.values():
        if backfill.dag_id == spec.dag_id:
            tx.effects.append(ContinueBackfill(backfill.backfill_no))


def _log_isolated(spec: DagSpec, tx: Transaction) -> None:
    """Log why a DAG gets a dedicated host, unless its author requested one."""
    reasons = tuple(reason for reason in spec.isolated if reason != ASKED_FOR)
    known = tx.memory.newest(spec.dag_id)
    if reasons and (known is None or known.isolated != spec.isolated):
        facts: dict[str, str | int] = {"dag_id": spec.dag_id, "reason": "; ".join(reasons)}
        tx.effects.append(Warn("a DAG runs in separate hosts", facts))


def _begin_schedule(spec: DagSpec, schedule: ScheduleSpec, row: DagRow, now: Timestamp) -> DagRow:
    """Set the first fire time of a new schedule, which is always after all processed fire times."""
    dealt = row.last_fire_time
    if dealt is None and row.next_run_at is not None:
        dealt = row.next_run_at - 1
    ahead = (
        dealt if dealt is not None and dealt > now else None
    )  # see ``core.scheduling.clock_steps``
    dealt = dealt if ahead is None else now
    if not schedule.has_fire_times:
        begin = now if spec.start_date is None else spec.start_date
        if schedule.gap_us is not None or (dealt is not None and begin <= dealt):
            begin = max(begin, now, -1 if dealt is None else dealt + 1)
        return msgspec.structs.replace(
            row, next_run_at=begin, last_fire_time=dealt, late_alert_for=now
        )
    after = _first_after(spec, schedule, now, is_new=dealt is None)
    after = after if dealt is None else max(after, dealt)
    first = timetable.next_fire_time(schedule, spec.timezone, after=after)
    dealt = min(after, now if dealt is None else max(now, dealt))
    return msgspec.structs.replace(
        row, next_run_at=first, last_fire_time=dealt if ahead is None else ahead, late_alert_for=now
    )


def _first_after(
    spec: DagSpec, schedule: ScheduleSpec, now: Timestamp, *, is_new: bool
) -> Timestamp:
    """Return the timestamp after which to search for the first fire time of a schedule."""
    start = spec.start_date
    if spec.catchup:
        if start is not None:
            return start - 1
        return schedule.dates[0] - 1 if schedule.dates else now
    if start is None:
        return now
    if is_new and spec.missed == "latest":
        # As in Airflow, run the latest fire time that passed before the DAG was known.
        latest = timetable.latest_fire_time(schedule, spec.timezone, after=start - 1, until=now)
        if latest is not None:
            return latest - 1
    return max(now, start - 1)


def _is_unchanged(spec: DagSpec, known: DagRow, tx: Transaction) -> bool:
    dag_version = tx.memory.dag_versions.get((known.version, known.dag_id))
    if dag_version is None:
        return False
    old, fire_time = dag_version.graph.spec, known.next_run_at
    if fire_time is not None and spec.start_date != old.start_date:
        begins = spec.start_date is None or spec.start_date <= fire_time
        if fire_time > tx.now or not begins:
            return False  # the next run may be due sooner now, or may have to wait
    is_once = spec.schedule is not None and spec.schedule.once
    return old.schedule == spec.schedule and (is_once or old.timezone == spec.timezone)


def _retire(file: str, defined: set[str], tx: Transaction) -> None:
    """Mark the DAGs that a file no longer defines.

    Their schedule cursors are retained in case the DAGs return.
    """
    for row in list(tx.memory.dags.values()):
        if row.file == file and row.dag_id not in defined and not row.gone:
            put_dag(msgspec.structs.replace(row, gone=True), tx)
            _inherit(row.dag_id, tx)


def _inherit(dag_id: str, tx: Transaction) -> None:
    """Give a DAG name that is free again to the first file that was refused the name."""
    heirs = tx.refused.pop(dag_id, {})
    if not heirs:
        return
    file = min(heirs)
    spec, version = heirs.pop(file)
    if heirs:
        tx.refused[dag_id] = heirs
    _adopt(spec, file, version, tx)
    row = tx.memory.files.get(file)
    is_clear = not any(file in others for others in tx.refused.values())
    if row is not None and row.reason == DuplicateDag.code and is_clear:
        _put_file(msgspec.structs.replace(row, reason=None, message=None), tx)


def _forget_refused(file: str, tx: Transaction) -> None:
    for files in tx.refused.values():
        files.pop(file, None)


def _prune_plans(tx: Transaction) -> None:
    """Drop DAG versions that no live run uses and no new run will use."""
    memory = tx.memory
    needed = {(row.version, row.dag_id) for row in memory.dags.values()}
    needed |= {(run.row.version, run.row.dag_id) for run in memory.runs.objects.values()}
    needed |= {
        (dag_version.version, dag_version.graph.spec.dag_id)
        for dag_version, _ in memory.runs.count_dag_versions()
    }
    for key in memory.dag_versions.keys() - needed:
        tx.pruned[key] = memory.dag_versions.pop(key)


def apply_parsed_file(entry: FileParsed, tx: Transaction) -> None:
    """Apply the report of a file that was parsed successfully."""
    file_parsed(entry, tx, tx.slots.pools)
    migration.file_parsed(entry, tx)
