"""Alerts for schedules whose runs are created late, one for all fire times that are late together.

This happens when the daemon was down, the database was unavailable, too many runs of the DAG are
queued, or a run is refused repeatedly. There is no further alert until the schedule is on time
again. Fire times are not late if they passed while the DAG was paused or its file was missing, or
before the DAG was known.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from aioflow.core.runs.versions import put_dag
from aioflow.core.scheduling import timetable
from aioflow.core.transaction import Transaction
from aioflow.model.dag import DagSpec
from aioflow.model.rows import DagRow
from aioflow.model.timestamps import Timestamp

__all__ = ("REASON", "cannot_be_made", "held_back", "told")

REASON: Final = "schedule_late"

_COUNTED = 10
"""Late fire times are counted up to this number."""

_WHAT_RUNS = {
    "all": "all of them are made up for",
    "latest": "the latest is made up for",
    "skip": "they are skipped",
}


def told(row: DagRow, spec: DagSpec, starts: Timestamp, tx: Transaction) -> DagRow:
    """Alert if the next run of a DAG is created late. Return the DAG's row.

    Args:
        starts: When the run should have started.
    """
    if not _is_late(starts, tx):
        return row
    if not _is_known(row):
        _tell(row, spec, _WHAT_RUNS[spec.missed], tx)
    return msgspec.structs.replace(row, late_alert_for=tx.now)


def held_back(row: DagRow, spec: DagSpec, starts: Timestamp, tx: Transaction) -> None:
    """Alert if the next run, which is blocked, is late; else set a timer for when it will be."""
    after = tx.memory.late_after_us
    if _is_known(row) or after is None or row.next_run_at is None:
        return
    if not _is_late(starts, tx):
        tx.wake_dag(row.dag_id, row.next_run_at, starts + after + 1)
        return
    _tell(row, spec, "too many of its runs wait already", tx)
    put_dag(msgspec.structs.replace(row, late_alert_for=tx.now), tx)


def cannot_be_made(dag_id: str, reason: str, tx: Transaction) -> None:
    """Alert if the next run, which was refused and will be tried again, is late."""
    row = tx.memory.dags.get(dag_id)
    if row is None or row.next_run_at is None or _is_known(row):
        return
    if _is_late(row.next_run_at, tx):
        _say(row, row.next_run_at, "a slot", f"it cannot be made: {reason[:1_000]}", tx)
        put_dag(msgspec.structs.replace(row, late_alert_for=tx.now), tx)


def _is_late(starts: Timestamp, tx: Transaction) -> bool:
    after = tx.memory.late_after_us
    return after is not None and tx.now - starts > after


def _is_known(row: DagRow) -> bool:
    slot = row.next_run_at
    return slot is not None and row.late_alert_for is not None and slot <= row.late_alert_for


def _tell(row: DagRow, spec: DagSpec, what_follows: str, tx: Transaction) -> None:
    assert spec.schedule is not None  # noqa: S101 - without a schedule there are no fire times
    assert row.next_run_at is not None  # noqa: S101
    until = tx.now if spec.end_date is None else min(tx.now, spec.end_date)
    count = len(
        timetable.slots_between(
            spec.schedule, spec.timezone, after=row.next_run_at - 1, until=until, limit=_COUNTED
        )
    )
    number = f"{count} or more slots" if count == _COUNTED else f"{count} slots"
    what = "a slot" if count < 2 else number
    _say(row, row.next_run_at, what, what_follows, tx)


def _say(row: DagRow, slot: Timestamp, what: str, what_follows: str, tx: Transaction) -> None:
    since = datetime.fromtimestamp(slot / 1e6, UTC).isoformat(timespec="seconds")
    after_seconds = (tx.memory.late_after_us or 0) / 1e6
    tx.memory.schedules_late += 1
    missing = f"{what} of its schedule since {since} had no run {after_seconds:g} s later"
    tx.outbox.alert(REASON, f"{missing}: {what_follows}", run_id="", dag_id=row.dag_id)
