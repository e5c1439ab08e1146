"""The executions that make up each try of a task, with tries numbered across clears."""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.model.rows import TaskRow, TryRow
from aioflow.telemetry.log_file import ALL, LogPart

__all__ = ("part_of",)


def part_of(tries: Sequence[TryRow], row: TaskRow | None, try_number: int | None) -> LogPart | None:
    """Return the part of a log that a try printed, or all of it; ``None`` if there is no such try.

    Each ended try has a row, except a first success. The running try has none.

    Args:
        tries: The tries of the task, in the order of their execution.
        row: The task's row, if it has one.
        try_number: Counted from 1, across clears; ``None`` for the whole log.
    """
    last = tries[-1] if tries else None
    if try_number is None:
        return LogPart(cleared=_cleared(tries, row))
    if try_number <= len(tries):
        after = tries[try_number - 2].start_no if try_number > 1 else ALL.after
        return LogPart(after=after, upto=tries[try_number - 1].start_no)
    if try_number > len(tries) + 1:
        return None
    # Later tries have other numbers in their log records, so this selects the current one.
    own = try_number if row is None else row.try_number
    return LogPart(after=ALL.after if last is None else last.start_no, try_number=own)


def _cleared(tries: Sequence[TryRow], row: TaskRow | None) -> tuple[tuple[int, bytes], ...]:
    """Return the executions after which the task was cleared, with a notice for the log.

    A clear shows in a try number that does not increase.
    """
    counts = [(one.start_no, one.try_number) for one in tries]
    if row is not None and (not counts or row.start_no > counts[-1][0]):
        counts.append((row.start_no, max(row.try_number, 1)))
    found = []
    for at in range(1, len(counts)):
        (start_no, before), (_, number) = counts[at - 1], counts[at]
        if number <= before:
            text = f"\n[aioflow: the task was cleared; try {at + 1} follows]\n"
            found.append((start_no, text.encode()))
    return tuple(found)
