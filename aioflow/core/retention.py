"""Retention: which ended runs, named events and journal rows are old enough to delete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

import msgspec

from aioflow.core.state.memory import Memory
from aioflow.core.transaction import Transaction
from aioflow.errors import RequestError
from aioflow.model.ids import RunNo
from aioflow.model.rows import RunRow
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.requests import DAG_EVENTS, EVENTS, EraseOld, EraseVersions

__all__ = (
    "Aged",
    "erase_old",
    "erase_versions",
    "may_go",
    "needed_versions",
    "old_numbers",
    "spare_version",
)


class Aged(msgspec.Struct, frozen=True):
    """A run that ended long ago.

    Attributes:
        after: The next run of its DAG by logical date; ``None`` if it has no date, or no run
            follows.
    """

    run: RunRow
    after: RunRow | None


def may_go(found: Iterable[Aged], *, before: Timestamp, newest: RunNo) -> Iterator[RunRow]:
    """Yield the runs of a DAG that may be deleted: those that ended before a timestamp.

    The run that ended last is retained, so that the last result of the DAG stays visible. So are
    the runs that ``depends_on_past`` and ``wait_for_downstream`` refer to: the run right before a
    live one, and the latest by date, which comes right before the next.

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

    It stops at the first row that is not, so that the remaining rows have no gaps.

    Args:
        rows: Row numbers and timestamps, ordered by number.
        below: Rows from this number on are retained.
    """
    is_old = takewhile(lambda row: row[1] < before and (below is None or row[0] < below), rows)
    return [number for number, _ in is_old]


def erase_old(request: EraseOld, tx: Transaction) -> None:
    """Delete old rows that belong to no run. Deleted ones are ignored.

    Raises:
        RequestError: If a live run is older than one of these events, and may still wait for it.
    """
    numbers = request.numbers
    if request.table == EVENTS and numbers:
        oldest = min(tx.memory.runs, default=None)
        if oldest is not None and max(numbers) >= oldest:
            raise RequestError(f"run {oldest} goes on, and is older than event {max(numbers)}")
        _forget_requests(set(numbers), tx)
    if request.table == DAG_EVENTS:
        _let_go_of_held(set(numbers), tx)
    tx.batch.erased.setdefault(request.table, []).extend((number,) for number in numbers)


def erase_versions(request: EraseVersions, tx: Transaction) -> int:
    """Delete versions except those that a file, a DAG or a live run uses. Return the count.

    A parse that needs one of them again finds it missing, and stores it again.
    """
    memory, needed = tx.memory, needed_versions(tx.memory)
    gone = [version for version in request.versions if version not in needed]
    memory.stored_versions.difference_update(gone)
    tx.batch.erased.setdefault("version", []).extend((version,) for version in gone)
    return len(gone)


def needed_versions(memory: Memory) -> set[str]:
    """Return the versions that memory uses, including those that no row refers to any more."""
    needed = memory.hosted_versions()
    needed |= {row.version for row in memory.files.values() if row.version is not None}
    return needed | {version for version, _ in memory.dag_versions}


def spare_version(version: str, tx: Transaction) -> None:
    """Retain a version that is used again in the turn that was to delete it."""
    going = tx.batch.erased.get("version", [])
    if (version,) in going:
        going.remove((version,))


def _let_go_of_held(numbers: set[int], tx: Transaction) -> None:
    """Drop the pending asset events of DAGs that are among the deleted ones."""
    for one in tx.memory.dag_triggers:
        if not any(event.event_no in numbers for held in one.pending.values() for event in held):
            continue
        tx.dag_triggers.note(one)
        one.pending = {
            asset: tuple(event for event in held if event.event_no not in numbers)
            for asset, held in one.pending.items()
        }


def _forget_requests(numbers: set[int], tx: Transaction) -> None:
    """Forget the idempotency keys of deleted events. A repeated request creates a new event."""
    known = tx.memory.event_requests
    for key in [key for key, number in known.items() if number in numbers]:
        del known[key]
