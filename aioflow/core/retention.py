"""Retention and deletion of ended runs, named events, journal rows, versions and unused DAGs.

A deleted run is hidden at once, and its rows are erased in slices. A DAG is deleted only without
live runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

import msgspec
from msgspec.structs import replace

from aioflow.core.runs import previous
from aioflow.core.state.memory import Memory
from aioflow.core.state.run_sequence import run_key
from aioflow.core.transaction import Transaction
from aioflow.errors import DagPresent, DagRunning, RequestError, UnknownDag, UnknownRun
from aioflow.model.history import day_of
from aioflow.model.ids import RunNo
from aioflow.model.rows import DeletionRow, RunRow
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import EventOutcome, OutcomeChange
from aioflow.protocol.requests import (
    DAG_EVENTS,
    EVENTS,
    HISTORY,
    DeleteDag,
    DeleteRun,
    EraseHistory,
    EraseOld,
    EraseRows,
    EraseVersions,
)

__all__ = (
    "Aged",
    "deletable_runs",
    "delete_dag",
    "delete_run",
    "erase_history",
    "erase_old",
    "erase_rows",
    "erase_versions",
    "needed_versions",
    "old_numbers",
    "retain_version",
)


class Aged(msgspec.Struct, frozen=True):
    """An old ended run.

    Attributes:
        after: The next run of its DAG by logical date; ``None`` if the run has no date or no run
            follows.
    """

    run: RunRow
    after: RunRow | None


def deletable_runs(found: Iterable[Aged], *, before: Timestamp, newest: RunNo) -> Iterator[RunRow]:
    """Yield the runs of a DAG that may be deleted because they ended before a timestamp.

    The run that ended last is retained, so that the last result of the DAG stays visible. The runs
    that ``depends_on_past`` and ``wait_for_downstream`` refer to are also retained. These are the
    predecessor of each live run, and the latest run by date, which will be the predecessor of the
    next run.

    Args:
        newest: The run of the DAG that ended last.
    """
    for aged in found:
        run, after = aged.run, aged.after
        if run.ended_at is None or run.ended_at >= before or run.run_no == newest:
            continue
        is_looked_at = run.logical_date is not None and (after is None or after.ended_at is None)
        if not is_looked_at:
            yield run


def old_numbers(
    rows: Sequence[tuple[int, Timestamp]], *, before: Timestamp, below: int | None = None
) -> list[int]:
    """Return the numbers of the leading rows that are old enough to delete.

    Stop at the first row that is too new, so that the remaining rows have no gaps.

    Args:
        rows: Row numbers and timestamps, ordered by number.
        below: Rows with this number or a higher one are retained.
    """
    is_old = takewhile(lambda row: row[1] < before and (below is None or row[0] < below), rows)
    return [number for number, _ in is_old]


def erase_old(request: EraseOld, tx: Transaction) -> None:
    """Delete old rows that belong to no run. Rows that are already deleted are ignored.

    Raises:
        RequestError: If a live run is older than one of these events, and may still wait for it.
    """
    numbers = request.numbers
    if request.table == EVENTS and numbers:
        oldest = min(tx.memory.runs, default=None)
        if oldest is not None and max(numbers) >= oldest:
            raise RequestError(f"run {oldest} is active and older than event {max(numbers)}")
        _forget_requests(set(numbers), tx)
    if request.table == DAG_EVENTS:
        _drop_pending_events(set(numbers), tx)
    tx.batch.erased.setdefault(request.table, []).extend((number,) for number in numbers)


def erase_history(request: EraseHistory, tx: Transaction) -> None:
    """Delete rows of the history, or merge hourly rows into daily ones."""
    keys = [(row.dag_id, row.task_id, row.measure, row.start, row.bucket) for row in request.rows]
    tx.batch.erased.setdefault(HISTORY, []).extend(keys)
    if request.is_merged:
        for row in request.rows:
            tx.history.add(row._replace(start=day_of(row.start)))


def erase_versions(request: EraseVersions, tx: Transaction) -> int:
    """Delete versions except those that a file, a DAG or a live run uses. Return the count.

    If a later parse needs a deleted version again, it finds the version missing and stores it.
    """
    memory, needed = tx.memory, needed_versions(tx.memory)
    gone = [version for version in request.versions if version not in needed]
    memory.stored_versions.difference_update(gone)
    tx.batch.erased.setdefault("version", []).extend((version,) for version in gone)
    return len(gone)


def needed_versions(memory: Memory) -> set[str]:
    """Return the versions that are used in memory, including versions no row refers to any more."""
    needed = memory.hosted_versions()
    needed |= {row.version for row in memory.files.values() if row.version is not None}
    return needed | {version for version, _ in memory.dag_versions}


def retain_version(version: str, tx: Transaction) -> None:
    """Retain a version that was about to be deleted in this turn, because it is used again."""
    going = tx.batch.erased.get("version", [])
    if (version,) in going:
        going.remove((version,))


def _drop_pending_events(numbers: set[int], tx: Transaction) -> None:
    """Drop asset events that are being deleted from the pending events of DAGs."""
    for one in tx.memory.dag_triggers:
        if not any(event.event_no in numbers for held in one.pending.values() for event in held):
            continue
        tx.dag_triggers.note(one)
        one.pending = {
            asset: tuple(event for event in held if event.event_no not in numbers)
            for asset, held in one.pending.items()
        }


def _forget_requests(numbers: set[int], tx: Transaction) -> None:
    """Forget idempotency keys of deleted events. A repeated request then creates a new event."""
    known = tx.memory.event_requests
    for key in [key for key, number in known.items() if number in numbers]:
        del known[key]


_NO_FIELDS = b"\x80"


def delete_run(request: DeleteRun, tx: Transaction) -> None:
    """Hide a run, and record that it is to be deleted.

    Raises:
        RequestError: If there is no run with this id, or it has not ended.
    """
    row = tx.memory.prefetched_runs.get(request.run_id)
    is_live = tx.memory.find_run(request.run_id) is not None
    if is_live or (row is not None and row.ended_at is None):
        raise RequestError(f"run {request.run_id!r} has not ended; cancel it first, then delete it")
    if row is None:
        raise UnknownRun(request.run_id)
    tx.memory.touch(request.run_id)
    order = run_key(row)
    if order is not None:
        previous.forget(row.dag_id, order, tx)
    tx.batch.new_deletions.append(DeletionRow(run_no=row.run_no, at=tx.now))


def delete_dag(request: DeleteDag, tx: Transaction) -> None:
    """Delete a DAG. The caller deletes its ended runs first.

    Raises:
        UnknownDag: If there is no DAG with this name.
        DagPresent: If a file defines it.
        DagRunning: If a run of it has not ended.
    """
    memory, dag_id = tx.memory, request.dag_id
    row = memory.dags.get(dag_id)
    if row is None:
        raise UnknownDag(dag_id)
    if not row.gone:
        raise DagPresent(dag_id, row.file)
    filling = [one for one in memory.backfills.values() if one.dag_id == dag_id]
    live_runs = sum(run.row.dag_id == dag_id for run in memory.runs.objects.values())
    live_runs += sum(
        n
        for dag_version, n in memory.runs.count_dag_versions()
        if dag_version.graph.spec.dag_id == dag_id
    )
    if live_runs:
        raise DagRunning(dag_id, live_runs)
    if not request.only_asks:
        for backfill in filling:
            tx.put_backfill(replace(backfill, state="cancelled", ended_at=tx.now))
        _reset_dag_trigger(dag_id, tx)
        del memory.dags[dag_id]
        tx.batch.dags = [dag for dag in tx.batch.dags if dag.dag_id != dag_id]
        tx.batch.gone_dags.append(dag_id)


def _reset_dag_trigger(dag_id: str, tx: Transaction) -> None:
    """Reset the trigger of a DAG for the next DAG of that name. Its known keys are retained."""
    one = tx.memory.dag_triggers.of(dag_id)
    if one is not None:
        tx.dag_triggers.note(one)
        held = [event.event_no for events in one.pending.values() for event in events]
        held += [] if one.row.held is None else [one.row.held.event_no]
        tx.batch.of_dags.outcomes += [
            OutcomeChange(number, EventOutcome.REPLACED) for number in held
        ]
        one.pending = {}
        nothing = {"event": None, "event_key": None, "held": None}
        one.row = replace(one.row, class_path="", kwargs=_NO_FIELDS, **nothing)
        tx.memory.dag_triggers.index(one)


def erase_rows(request: EraseRows, tx: Transaction) -> None:
    """Delete some of the remaining rows of a deleted run.

    Raises:
        RequestError: If the run has not ended.
    """
    if request.run_no in tx.memory.runs:
        raise RequestError(f"run {request.run_no} has not ended")
    tx.batch.erased.setdefault(request.table, []).extend(request.keys)
