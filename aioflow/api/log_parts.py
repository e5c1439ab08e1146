"""Which starts of a task make up each of its tries, counted over all that it was cleared."""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.model.rows import TaskRow, TryRow
from aioflow.telemetry.log_file import ALL, LogPart

__all__ = ("part_of",)


def part_of(tries: Sequence[TryRow], row: TaskRow | None, try_number: int | None) -> LogPart | None:
    """Return the part of a log that a try printed, or all of it; ``None`` if there is no such try.

    Each try that has ended has a row. The one under way, or a first success, has none.

    Args:
        tries: Those of the task, in the order of their starts.
        row: Of the task, if it has one.
        try_number: Counted from 1 on, over all that the task was cleared; ``None`` for all.
    """
    last = tries[-1] if tries else None
    if try_number is None:
        return LogPart(cleared=_cleared(tries, row))
    if try_number <= len(tries):
        after = tries[try_number - 2].start_no if try_number > 1 else ALL.after
        return LogPart(after=after, upto=tries[try_number - 1].start_no)
    if try_number > len(tries) + 1:
        return None
    # What is to come after this try has another number in its records.
    own = try_number if row is None else row.try_number
    return LogPart(after=ALL.after if last is None else last.start_no, try_number=own)


def _cleared(tries: Sequence[TryRow], row: TaskRow | None) -> tuple[tuple[int, bytes], ...]:
    """Return behind which starts the task was cleared: where its count of tries begins again."""
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
