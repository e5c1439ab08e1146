"""The log of a task as lines with numbers, times and levels, by range or by search.

Every request reads a bounded part of the log, however large the log is, and returns where to
continue. Lines are numbered from the beginning of the log. The index of the log contains the number
of lines before each block (see ``telemetry.task_log_index``). So finding a line by its number, or
the number of a line by its position, requires reading a single block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from aioflow._threads import in_thread
from aioflow.api.page.schemas import LogLinesView, LogLineView
from aioflow.api.schemas import iso
from aioflow.model.ids import StartNo
from aioflow.processes.line_search import LineFinder, LineSearch
from aioflow.telemetry.task_log import OpenLog
from aioflow.telemetry.task_log_records import LogPiece
from aioflow.worker.log_text import LINE_BYTES, Levels, LineFilter, shown_text

__all__ = ("LineRange", "LineReader", "TriedLog", "lines_of", "try_of")

_PIECE_BYTES = 1024 * 1024
_PIECES = 64


class LineRange(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the lines of a log that are wanted.

    Attributes:
        offset: Lines from this byte offset on, which is the start of a line.
        before: The last lines before this byte offset. Overrides ``offset``.
        line: Lines from this number on, counted from 1. Overrides ``offset``.
        is_tail: The last lines of the log.
        limit: Maximum number of lines.
        wanted: Only lines that match.
    """

    limit: int
    offset: int = 0
    before: int | None = None
    line: int | None = None
    is_tail: bool = False
    wanted: LineFilter = LineFilter()


class TriedLog(msgspec.Struct, frozen=True):
    """The log of a task, and its executions.

    Attributes:
        ended: The last execution of each try that has ended, in order.
    """

    read: OpenLog
    ended: Sequence[StartNo] = ()

    def try_number(self, start_no: StartNo) -> int:
        """Return the number of an execution's try, counted across clears."""
        return try_of(self.ended, start_no)


def try_of(ended: Sequence[StartNo], start_no: StartNo) -> int:
    """Return the number of an execution's try, counted across clears; see ``TriedLog``."""
    return bisect_left(ended, start_no) + 1


class LineReader:
    """Reads logs as lines."""

    def __init__(self, search: LineSearch) -> None:
        self._search = search

    async def read(self, log: TriedLog, wanted: LineRange) -> LogLinesView:
        """Return lines of a log.

        Raises:
            BadPattern: If a pattern is not valid, or takes too long.
        """
        async with self._search.finding(wanted.wanted) as finder:
            if wanted.is_tail or wanted.before is not None:
                end = await log.read.size() if wanted.before is None else wanted.before
                found = await _read_backward(log, finder, end, wanted.limit)
            else:
                offset = wanted.offset
                if wanted.line is not None:
                    offset = await log.read.offset_of_line(wanted.line)
                found = await _read_forward(log, finder, offset, wanted.limit)
        return await _numbered(log, found, is_whole=wanted.wanted.is_empty)


async def _numbered(log: TriedLog, found: LogLinesView, *, is_whole: bool) -> LogLinesView:
    """Add line numbers. If the lines are consecutive, only the first number is looked up."""
    lines = found.lines
    offsets = [line.offset for line in (lines[:1] if is_whole else lines)]
    numbers = await log.read.line_numbers(offsets)
    if is_whole and numbers:
        numbers = [numbers[0] + at for at in range(len(lines))]
    numbered = [
        msgspec.structs.replace(line, line=number)
        for line, number in zip(lines, numbers, strict=True)
    ]
    return msgspec.structs.replace(found, lines=numbered)


async def _read_forward(log: TriedLog, finder: LineFinder, offset: int, limit: int) -> LogLinesView:
    begin, found = offset, list[LogLineView]()
    for _ in range(_PIECES):
        pieces = await log.read.pieces(offset, _PIECE_BYTES)
        data = b"".join(piece.data for piece in pieces)
        is_all = len(data) < _PIECE_BYTES
        data = data if is_all else data[: data.rfind(b"\n") + 1 or len(data)]
        starts = await finder.find(data, limit - len(found))
        found += await in_thread(lines_of, log, pieces, data, starts, offset)
        if len(found) == limit:
            end = _line_end(data, starts[-1])
            is_end = is_all and end == len(data)
            return _view(begin, found, None if is_end else offset + end, offset + end)
        offset += len(data)
        if is_all:
            return _view(begin, found, None, offset)
        if finder.is_due:
            break
    return _view(begin, found, offset, offset)


async def _read_backward(log: TriedLog, finder: LineFinder, end: int, limit: int) -> LogLinesView:
    upto, found = end, list[LogLineView]()
    for _ in range(_PIECES):
        begin = max(upto - _PIECE_BYTES, 0)
        pieces = await log.read.pieces(begin, upto - begin)
        data = b"".join(piece.data for piece in pieces)
        # A partial line at the beginning belongs to the next block, except that a very long line is
        # split.
        skipped = data.find(b"\n", 0, len(data) - 1) + 1 if begin else 0
        positions = await finder.find(data[skipped:], limit - len(found), is_backward=True)
        starts = [skipped + one for one in positions]
        found = await in_thread(lines_of, log, pieces, data, starts, begin) + found
        upto = begin + skipped
        if len(found) == limit or upto <= 0 or finder.is_due:
            break
    first = found[0].offset if len(found) == limit else upto
    return _view(first, found, None, end)


def _view(start: int, found: list[LogLineView], next_offset: int | None, end: int) -> LogLinesView:
    return LogLinesView(
        lines=found, next_offset=next_offset, before_offset=start or None, end_offset=end
    )


def lines_of(
    log: TriedLog, pieces: Sequence[LogPiece], data: bytes, starts: Sequence[int], offset: int
) -> list[LogLineView]:
    """Return the lines at given positions of a block, each with the time of its first byte.

    Args:
        pieces: The pieces of the block, with the time at which each was captured.
        data: The bytes of all pieces together; the end may be missing.
        starts: Positions of the starts of lines in the block, in order.
        offset: Offset of the block in the log.
    """
    found, levels, at, passed = [], Levels(), -1, 0
    previous = 0
    for start in starts:
        while start >= passed and at + 1 < len(pieces):
            at += 1
            passed += len(pieces[at].data)
        end = _line_end(data, start)
        text = shown_text(data[start:end])
        if start != previous:  # lines in between were left out
            levels = Levels()
        previous = end
        piece = pieces[at]
        found.append(
            LogLineView(
                offset=offset + start,
                text=text,
                at=iso(piece.at),
                level=levels.of(text),
                stream="stderr" if piece.is_stderr else None,
                try_number=log.try_number(piece.start_no),
                is_cut=end - start > LINE_BYTES + 2,
                is_open=not data.endswith(b"\n", start, end),
            )
        )
    return found


def _line_end(data: bytes, start: int) -> int:
    return data.find(b"\n", start) + 1 or len(data)
