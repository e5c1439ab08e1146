"""Search for lines in a log, a bounded part of it at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aioflow._threads import in_thread
from aioflow.api.page_schemas import LogLinesView, LogLineView

__all__ = ("LINE_BYTES", "find_lines")

_PIECE = 1024 * 1024
_PIECES = 64
LINE_BYTES = 4 * 1024
"""Longer lines are cut here."""


async def find_lines(
    read: Callable[[int, int], Awaitable[bytes]], text: str, *, offset: int, limit: int
) -> LogLinesView:
    """Return at most ``limit`` matching lines within the next 64 MiB of a log.

    Args:
        read: Reads the log, given an offset and a number of bytes.
        text: Text to find, case-insensitive; an empty one matches every line.
        offset: Start of a line, in bytes.
    """
    wanted = text.casefold()
    found: list[LogLineView] = []
    rest = b""
    for _ in range(_PIECES):
        piece = await read(offset + len(rest), _PIECE)
        data = rest + piece
        is_all = len(piece) < _PIECE
        ended = len(data) if is_all or len(data) > _PIECE else data.rfind(b"\n") + 1
        more, after = await in_thread(_lines, data[:ended], wanted, offset, limit - len(found))
        found += more
        if len(found) == limit:
            return LogLinesView(lines=found, next_offset=after)
        if is_all:
            return LogLinesView(lines=found, next_offset=None)
        offset, rest = after, data[ended:]
    return LogLinesView(lines=found, next_offset=offset)


def _lines(data: bytes, wanted: str, offset: int, limit: int) -> tuple[list[LogLineView], int]:
    """Return at most ``limit`` matching lines, and the offset behind the last line examined.

    A megabyte of short lines takes long, so this runs in a thread and not on the event loop.
    """
    found: list[LogLineView] = []
    begin = 0
    while begin < len(data) and len(found) < limit:
        end = data.find(b"\n", begin) + 1 or len(data)
        shown = data[begin : min(end, begin + LINE_BYTES)].decode(errors="replace")
        shown = shown.rstrip("\r\n")
        if wanted in shown.casefold():
            found.append(LogLineView(offset=offset + begin, text=shown))
        begin = end
    return found, offset + begin
