"""Correction of schedules that ran ahead because the wall clock was ahead and was set back.

The cursor of a schedule normally never moves back, because each fire time has only one run. While
the clock is ahead, the cursor may pass fire times that lie in the future again once the clock is
set back. The cursor is then moved back to the first of them. A fire time that already has a run
must not get another one. So for fire times up to ``last_fire_time``, which is not moved back,
existing runs are looked up before a run is created.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from aioflow.core.dag_registry import arm_schedule, put_dag
from aioflow.core.scheduling import timetable
from aioflow.core.state.memory import Memory
from aioflow.core.transaction import Transaction
from aioflow.model.rows import DagRow, RunRow
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.inputs import CreateMissingRuns, Input

__all__ = ("REASON", "found", "handle_step", "is_ahead", "rewind_cursors", "wanted")

REASON: Final = "clock_set_back"

_TOLD_US = 60_000_000
"""How far a schedule must have been ahead at least to be listed in the alert."""

_NAMED = 5
"""Maximum number of schedules that the alert lists."""


def handle_step(tx: Transaction) -> None:
    """Adjust the schedules if the wall clock was stepped since the last turn."""
    tx.step = tx.at.shift - tx.memory.shift
    if tx.step:
        rewind_cursors(tx)
        for row in tx.memory.dags.values():
            arm_schedule(row, tx)


def rewind_cursors(tx: Transaction) -> None:
    """Move back the cursors of schedules that ran ahead. Alert about those far ahead."""
    behind = []
    for row in list(tx.memory.dags.values()):
        cursor = _next_fire_time(row, tx)
        if cursor is not None and (row.next_run_at is None or cursor < row.next_run_at):
            last = row.last_fire_time
            if last is None and row.next_run_at is not None:
                last = row.next_run_at - 1
            told = None if row.late_alert_for is None else min(row.late_alert_for, tx.now)
            put_dag(replace(row, next_run_at=cursor, last_fire_time=last, late_alert_for=told), tx)
            if last is None or last - tx.now >= _TOLD_US:
                behind.append(row.dag_id)
    if not behind:
        return
    names = ", ".join(sorted(behind)[:_NAMED]) + (", ..." if len(behind) > _NAMED else "")
    count = "a schedule" if len(behind) == 1 else f"{len(behind)} schedules"
    message = f"the clock was set back: {count} had run ahead of it and continue from now: {names}"
    tx.outbox.alert(REASON, message, run_id="", dag_id=behind[0] if len(behind) == 1 else "")


def _next_fire_time(row: DagRow, tx: Transaction) -> Timestamp | None:
    """Return the next fire time after now; ``None`` if the schedule has not run ahead."""
    memory, now, last = tx.memory, tx.now, row.last_fire_time
    dag_version = memory.dag_versions.get((row.version, row.dag_id))
    spec = None if dag_version is None else dag_version.graph.spec
    if spec is None or spec.schedule is None or (last is not None and last <= now):
        return None
    if spec.schedule.gap_us is not None:
        return now + spec.schedule.gap_us
    if not spec.schedule.has_fire_times or (last is None and row.next_run_at is None):
        return None
    after = now if spec.start_date is None else max(now, spec.start_date - 1)
    return timetable.next_fire_time(spec.schedule, spec.timezone, after=after)


def is_ahead(row: DagRow) -> bool:
    """Return whether fire times at or after the cursor of a schedule may already have a run."""
    cursor, last = row.next_run_at, row.last_fire_time
    return cursor is not None and last is not None and cursor <= last


def wanted(inputs: Iterable[Input]) -> Iterator[CreateMissingRuns]:
    """Yield the inputs of a turn for which it must be known which of their fire times have a run.

    The caller passes the rows to ``found`` before the turn processes these inputs.
    """
    return (entry for entry in inputs if isinstance(entry, CreateMissingRuns))


def found(entry: CreateMissingRuns, runs: Iterable[RunRow], memory: Memory) -> None:
    """Store which of the fire times have a run, for the turn that creates the missing runs."""
    memory.found_ahead[entry.dag_id] = {run.logical_date for run in runs}
