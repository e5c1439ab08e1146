"""The log of a run: the lines of all its tasks in chronological order.

A request reads a bounded part of the files (see ``telemetry.run_log``) and returns a cursor. The
cursor consists of the last record that was read, and how much of it was returned. A line that is
split between two records is joined, unless a page ends between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import partial

import anyio
import msgspec

from aioflow._threads import in_thread
from aioflow.api.logs.lines import try_of
from aioflow.api.page.schemas import RunLogLineView, RunLogView
from aioflow.api.schemas import iso
from aioflow.api.task_instances import RunLayout
from aioflow.errors import RequestError
from aioflow.model.ids import StartNo
from aioflow.model.timestamps import Timestamp
from aioflow.processes.line_search import LineFinder, LineSearch
from aioflow.protocol.requests import OF_RUN
from aioflow.store import Store
from aioflow.telemetry.run_log import BEGIN, RunLogFiles, RunLogKey, RunPiece, RunSegment
from aioflow.telemetry.task_log import LogSegment, TaskLog
from aioflow.worker.log_text import LINE_BYTES, Levels, LineFilter, shown_text

__all__ = ("RunLogRange", "RunLogs")

_READ_BYTES = 512 * 1024
_SEARCHED_BYTES = 2 * 1024 * 1024
_READS = 32
_ALL = 1 << 30
_END_OF_TASK = b"-\n"
"""An artificial line after the output of a task, to end its last line. It is not output."""

_STORED_AT_ONCE = 8
_INTEGER_DIGITS = 19


class RunLogRange(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the lines of a run's log that are wanted.

    Attributes:
        cursor: Where to continue; empty for the beginning.
        is_tail: The last lines. Overrides ``cursor``.
        limit: Maximum number of complete lines. Unfinished lines of tasks may be added.
        tasks: Only lines of these tasks; empty for all.
        wanted: Only lines that match.
    """

    limit: int
    cursor: str = ""
    is_tail: bool = False
    tasks: Sequence[str] = ()
    wanted: LineFilter = LineFilter()


class _Line(msgspec.Struct):
    """A line, and the position after it.

    Attributes:
        end: Key of the record in which the line ends.
        done: How many bytes of that record have been read up to the end of the line.
    """

    task_index: int
    map_index: int
    start_no: StartNo
    at: Timestamp
    is_stderr: bool
    text: str
    level: str | None
    is_open: bool
    end: RunLogKey
    done: int


class RunLogs:
    """Reads the logs of runs.

    Args:
        store: Has the tries of the tasks, and the labels of mapped children.
    """

    def __init__(self, tasklog: TaskLog, search: LineSearch, store: Store) -> None:
        self._tasklog = tasklog
        self._store = store
        self._files = RunLogFiles(tasklog.indexes)
        self._search = search
        self._thread = anyio.CapacityLimiter(1)

    async def read(self, layout: RunLayout, run_no: int, wanted: RunLogRange) -> RunLogView:
        """Return lines of the log of a run.

        Raises:
            BadPattern: If a pattern is not valid, or takes too long.
            RequestError: If the cursor does not belong to this log.
        """
        await self._tasklog.catch_up()
        segments = await self._segments(layout, run_no, wanted.tasks)
        async with self._search.finding(wanted.wanted) as finder:
            if wanted.is_tail and not wanted.cursor:
                return await self._read_end(layout, segments, finder, wanted)
            return await self._read_on(layout, segments, finder, wanted)

    async def _read_end(
        self,
        layout: RunLayout,
        segments: Sequence[RunSegment],
        finder: LineFinder,
        wanted: RunLogRange,
    ) -> RunLogView:
        pieces, is_all = await in_thread(self._files.read_end, segments, limiter=self._thread)
        found = await self._matching(pieces, 0, finder, wanted.wanted)
        resume = (pieces[-1].key, len(pieces[-1].data)) if pieces else (BEGIN, 0)
        return RunLogView(
            items=await self._views(layout, found[-wanted.limit :]),
            next=None,
            resume=_cursor(*resume),
            is_first=is_all and len(found) <= wanted.limit,
        )

    async def _read_on(
        self,
        layout: RunLayout,
        segments: Sequence[RunSegment],
        finder: LineFinder,
        wanted: RunLogRange,
    ) -> RunLogView:
        after, done = _parsed(wanted.cursor) if wanted.cursor else (BEGIN, 0)
        found: list[_Line] = []
        is_end = False
        for _ in range(_READS):
            begin = after.before() if done else after
            size = _READ_BYTES if wanted.wanted.is_empty else _SEARCHED_BYTES
            read = partial(self._files.read, segments, begin, size)
            pieces, is_end = await in_thread(read, limiter=self._thread)
            skipped = done if _is_rest(pieces, after) else 0
            matching = await self._matching(pieces, skipped, finder, wanted.wanted)
            missing = wanted.limit - len(found)
            if len(matching) > missing:
                last = matching[missing - 1]
                after, done, is_end = last.end, last.done, False
                # Lines that other tasks have begun but not finished by then are returned as open
                # lines.
                before = _upto(pieces, after, done)
                found += await self._matching(before, skipped, finder, wanted.wanted)
                break
            found += matching
            if pieces:
                after, done = pieces[-1].key, len(pieces[-1].data)
            if is_end or len(found) >= wanted.limit or finder.is_due:
                break
        cursor = _cursor(after, done)
        return RunLogView(
            items=await self._views(layout, found),
            next=None if is_end else cursor,
            resume=cursor,
            is_first=not wanted.cursor,
        )

    async def _views(self, layout: RunLayout, lines: Sequence[_Line]) -> list[RunLogLineView]:
        """Return lines with the names of their tasks, and the numbers of their tries."""
        sources = {(line.task_index, line.map_index) for line in lines if line.task_index >= 0}
        numbers = {
            source: location.task_no
            for source in sources
            if (location := layout.locate(*source)) is not None
        }
        ended = await self._store.find_try_starts(numbers.values())
        labels = await self._store.find_labels(numbers.values())
        found = []
        for line in lines:
            task_no = numbers.get((line.task_index, line.map_index), -1)
            task_id, map_index, round_number = _name_of(layout, line)
            found.append(
                RunLogLineView(
                    task_id=task_id,
                    map_index=map_index,
                    map_label=labels.get(task_no),
                    round=round_number,
                    try_number=try_of(ended.get(task_no, ()), line.start_no),
                    at=iso(line.at),
                    text=line.text,
                    level=line.level,
                    stream="stderr" if line.is_stderr else None,
                    is_open=line.is_open,
                )
            )
        return found

    async def _matching(
        self, pieces: Sequence[RunPiece], skipped: int, finder: LineFinder, wanted: LineFilter
    ) -> list[_Line]:
        """Return the lines in records that match, in the order in which they end."""
        if wanted.is_empty:
            return await in_thread(_lines_of, pieces, skipped, limiter=self._thread)
        text = await in_thread(_SearchedText, pieces, skipped, limiter=self._thread)
        starts = await finder.find(text.data, _ALL)
        return await in_thread(text.lines, starts, limiter=self._thread)

    async def _segments(
        self, layout: RunLayout, run_no: int, tasks: Sequence[str]
    ) -> list[RunSegment]:
        of_tasks = {index: task.task_id for index, task in enumerate(layout.spec.tasks)}
        of_tasks[-1] = OF_RUN
        wanted = [
            segment
            for segment in await self._tasklog.list_segments(run_no)
            if segment.task_index in of_tasks
            and (not tasks or of_tasks[segment.task_index] in tasks)
        ]
        found: list[RunSegment] = []
        if self._tasklog.earlier is None:
            path = self._tasklog.segment_path
            return [RunSegment(one.task_index, one.number, 0, path(one)) for one in wanted]
        limiter = anyio.CapacityLimiter(_STORED_AT_ONCE)

        async def fetch(segment: LogSegment) -> None:
            async with limiter:
                files = await self._tasklog.files_of(segment)
            for order, file in enumerate(files):
                found.append(RunSegment(segment.task_index, segment.number, order, file))

        async with anyio.create_task_group() as group:
            for segment in wanted:
                group.start_soon(fetch, segment)
        return found


def _is_rest(pieces: Sequence[RunPiece], after: RunLogKey) -> bool:
    return bool(pieces) and pieces[0].key == after


def _upto(pieces: Sequence[RunPiece], last: RunLogKey, done: int) -> list[RunPiece]:
    """Return the pieces up to the record ``last``, including its first ``done`` bytes."""
    found = [piece for piece in pieces if piece.key < last]
    found += [piece._replace(data=piece.data[:done]) for piece in pieces if piece.key == last]
    return found


def _lines_of(pieces: Sequence[RunPiece], skipped: int) -> list[_Line]:
    """Return the lines of records in the order in which they end.

    Args:
        skipped: How many bytes of the first record were returned before.
    """
    found: list[_Line] = []
    begun: dict[tuple[int, int], tuple[RunPiece, bytes]] = {}
    levels: dict[tuple[int, int], Levels] = {}
    for piece in pieces:
        source = (piece.key.task_index, piece.map_index)
        tracker = levels.setdefault(source, Levels())
        data, skipped, position = piece.data[skipped:], 0, skipped
        for part in _split(data):
            position += len(part)
            first, start = begun.pop(source, (piece, b""))
            line = (start + part)[-_LONGEST:]
            if part.endswith(b"\n"):
                found.append(_line(source, first, line, tracker, piece.key, position))
            else:
                begun[source] = first, line
    for source, (first, line) in begun.items():
        last = pieces[-1]
        tracker = levels[source]
        found.append(_line(source, first, line, tracker, last.key, len(last.data), is_open=True))
    return found


_LONGEST = 16 * LINE_BYTES
"""Maximum number of bytes that are remembered of an unfinished line."""


def _split(data: bytes) -> Iterable[bytes]:
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def _line(
    source: tuple[int, int],
    first: RunPiece,
    line: bytes,
    levels: Levels,
    end: RunLogKey,
    done: int,
    *,
    is_open: bool = False,
) -> _Line:
    text = shown_text(line)
    return _Line(
        task_index=source[0],
        map_index=source[1],
        start_no=first.start_no,
        at=first.at,
        is_stderr=first.is_stderr,
        text=text,
        level=levels.of(text),
        is_open=is_open,
        end=end,
        done=done,
    )


class _SearchedText:
    """The output in some records, grouped by task, and the record of each byte.

    Args:
        skipped: How many bytes of the first record were returned before.
    """

    def __init__(self, pieces: Sequence[RunPiece], skipped: int) -> None:
        self._pieces = pieces
        self._skipped = skipped
        sources: dict[tuple[int, int], list[int]] = {}
        for number, piece in enumerate(pieces):
            sources.setdefault((piece.key.task_index, piece.map_index), []).append(number)
        self._starts: list[int] = []
        self._numbers: list[int] = []
        self._added: set[int] = set()
        texts, size = [], 0
        for numbers in sources.values():
            for number in numbers:
                self._starts.append(size)
                self._numbers.append(number)
                texts.append(pieces[number].data[0 if number else skipped :])
                size += len(texts[-1])
            if not texts[-1].endswith(b"\n"):
                texts.append(b"\n")
                self._added.add(size)
                size += 1
            texts.append(_END_OF_TASK)
            self._added.add(size)
            size += len(_END_OF_TASK)
        self.data = b"".join(texts)

    def lines(self, starts: Sequence[int]) -> list[_Line]:
        """Return the lines at given positions, in the order in which they end."""
        found, levels, previous = [], Levels(), 0
        for start in starts:
            if start in self._added:
                continue
            end = self.data.index(b"\n", start) + 1
            if start != previous:  # lines in between were left out
                levels = Levels()
            previous = end
            first, last = self._record_at(start), self._record_at(end - 1)
            piece = self._pieces[self._numbers[first]]
            is_open = end - 1 in self._added
            number = len(self._pieces) - 1 if is_open else self._numbers[last]
            done = len(self._pieces[number].data)
            if not is_open:
                done = end - self._starts[last] + (0 if number else self._skipped)
            source = piece.key.task_index, piece.map_index
            line, key = self.data[start:end], self._pieces[number].key
            found.append(_line(source, piece, line, levels, key, done, is_open=is_open))
        found.sort(key=lambda line: (line.is_open, line.end, line.done))
        return found

    def _record_at(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1


def _name_of(layout: RunLayout, line: _Line) -> tuple[str, int, int]:
    """Return the task of a line, its map index, and its round."""
    if line.task_index < 0:
        return OF_RUN, -1, 0
    task_id = layout.spec.tasks[line.task_index].task_id
    if layout.is_in_loop(line.task_index):
        return task_id, -1, max(line.map_index, 0)
    return task_id, line.map_index, 0


def _cursor(key: RunLogKey, done: int) -> str:
    return ".".join(str(number) for number in (*key, done))


def _parsed(cursor: str) -> tuple[RunLogKey, int]:
    numbers = cursor.split(".")
    digits = [number.removeprefix("-") for number in numbers]
    if len(numbers) != len(BEGIN) + 1 or not all(
        number.isascii() and number.isdecimal() and len(number) <= _INTEGER_DIGITS
        for number in digits
    ):
        raise RequestError(f"{cursor[:80]!r} is not a cursor of a log")
    *key, done = (int(number) for number in numbers)
    return RunLogKey(*key), max(done, 0)
