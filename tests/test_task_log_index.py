"""Indexes of segment files: any position of a large log is found, exactly as without an index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow.clock import SystemClock
from aioflow.telemetry import task_log, task_log_index, task_log_reader
from aioflow.telemetry.run_log import BEGIN, RunLogFiles, RunSegment
from aioflow.telemetry.task_log import LogKey, TaskLog
from aioflow.telemetry.task_log_index import LogIndexes, Mark, Marks
from aioflow.telemetry.task_log_reader import (
    LogReader,
    line_numbers,
    offset_of_line,
    read_chain,
)
from aioflow.telemetry.task_log_records import WHOLE_LOG, LogPart, RecordScan, record_header
from tests.executors.processes import running

RECORD = st.tuples(
    st.integers(-1, 1),  # map index
    st.integers(1, 3),  # execution
    st.integers(0, 9),  # time, which a clock may set back
    st.sampled_from([b"a", b"b\n", b"\n\n", b"long " * 9 + b"\n", b"half "]),
)
PARTS = (
    WHOLE_LOG,
    LogPart(after=1),
    LogPart(try_number=2),
    LogPart(cleared=((1, b"<cleared>\n"), (2, b"\n<again>\n"))),
)


@contextmanager
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_log_index, "BLOCK_BYTES", 100)
        patch.setattr(task_log_reader, "_NEAR_BYTES", 10)
        yield


def stored(records) -> bytes:
    return b"".join(
        record_header(map_index, start_no, start_no, at, len(data)) + data
        for map_index, start_no, at, data in records
    )


def reader(path: Path, map_index: int, part: LogPart, indexes: LogIndexes) -> LogReader:
    return LogReader(Marks(indexes, path, map_index, part), Mark())


def whole(paths, map_index, part) -> bytes:
    """Return the output, read without an index."""
    found, before = b"", -1
    for path in paths:
        with path.open("rb") as file:
            scan = RecordScan(file, 0)
            while (record := scan.next_record()) is not None:
                data = scan.data(record.length)
                if record.map_index == map_index and part.includes(
                    record.start_no, record.try_number
                ):
                    found += part.between(before, record.start_no) + data
                    before = max(before, record.start_no)
                scan.skip(record.length)
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(RECORD, max_size=30), min_size=1, max_size=2),
    st.sampled_from(PARTS),
    st.integers(-1, 1),
    st.booleans(),
)
def test_any_place_is_found_as_without_an_index(tmp_path_factory, files, part, map_index, is_kept):
    """This holds in the second file of a log as well, and whether or not the index was stored."""
    folder = tmp_path_factory.mktemp("logs")
    paths = [folder / f"0.{number}.log" for number in range(len(files))]
    for path, records in zip(paths, files, strict=True):
        path.write_bytes(stored(records))
    expected = whole(paths, map_index, part)
    starts = [0, *(at + 1 for at, byte in enumerate(expected) if byte == 10)]
    with small_blocks():

        def cold():
            indexes = LogIndexes(folder if is_kept else None)
            return [reader(path, map_index, part, indexes) for path in paths]

        for offset in range(0, len(expected) + 1, 7):
            pieces = read_chain(cold(), offset, 11)
            assert b"".join(piece.data for piece in pieces) == expected[offset : offset + 11]
        assert line_numbers(cold(), starts) == list(range(1, len(starts) + 1))
        for line, start in enumerate(starts, 1):
            assert offset_of_line(cold(), line) == start
        assert offset_of_line(cold(), len(starts) + 1) == len(expected)
        assert list(folder.glob("*.index")) == [] or is_kept


def test_text_that_looks_like_a_record_of_another_child_is_only_output(tmp_path):
    forged = record_header(0, 1, 1, 99, 5) + b"false"
    records = [
        (child, 1, 1, forged if child else b"true %d\n" % n) for n in range(9) for child in (1, 0)
    ]
    path = tmp_path / "0.0.log"
    path.write_bytes(stored(records))
    with small_blocks():
        found = reader(path, 0, WHOLE_LOG, LogIndexes()).read(0)

    assert found == b"".join(b"true %d\n" % n for n in range(9))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(RECORD, max_size=20), min_size=1, max_size=3))
def test_a_cursor_is_continued_by_another_process_also_after_the_clock_was_set_back(
    tmp_path_factory, files
):
    folder = tmp_path_factory.mktemp("run")
    segments = []
    for number, records in enumerate(files):
        segments.append(RunSegment(number, 0, 0, folder / f"{number}.0.log"))
        segments[-1].path.write_bytes(stored(records))
    expected, _ = RunLogFiles(LogIndexes()).read(segments, BEGIN, 1 << 20)
    with small_blocks():
        for at, piece in enumerate(expected):
            rest, _ = RunLogFiles(LogIndexes(folder)).read(segments, piece.key, 1 << 20)
            assert rest == expected[at + 1 :]


async def test_the_writer_keeps_an_index_and_a_cut_one_is_completed(tmp_path, monkeypatch):
    monkeypatch.setattr(task_log, "BLOCK_BYTES", 100)
    with small_blocks():
        log = TaskLog(tmp_path, SystemClock())
        key = LogKey(run_no=7, task_index=0, map_index=-1, task_no=1, start_no=1, try_number=1)
        out = log.open(key)
        async with running(log):
            for number in range(40):
                await out.write(b"line %d\n" % number)
                await log.catch_up()
        path = log.path(7, 0)
        index = path.with_suffix(".index")
        complete = index.read_bytes()
        index.write_bytes(complete[:-100])  # within the last but one entry
        blocks = LogIndexes(tmp_path).blocks(path)

        assert len(blocks) > 5
        assert index.read_bytes() == complete[: index.stat().st_size]
        assert index.stat().st_size > len(complete) - 100
        path.unlink()
        path.write_bytes(stored([(-1, 2, 5, b"other %d\n" % n) for n in range(40)]))
        other = reader(path, -1, WHOLE_LOG, LogIndexes(tmp_path))
        assert other.read(offset_of_line([other], 31), 9) == b"other 30\n"


async def test_consecutive_output_of_one_execution_is_one_record(tmp_path):
    log = TaskLog(tmp_path, SystemClock())
    key = LogKey(run_no=7, task_index=0, map_index=-1, task_no=1, start_no=1, try_number=1)
    out = log.open(key)
    for text in (b"a", b"b"):
        out.offer(text)
    out.offer(b"c", is_stderr=True)
    async with running(log):
        pieces = await log.reading(7, 0).pieces(0, None)

    assert [(piece.data, piece.is_stderr) for piece in pieces] == [(b"ab", False), (b"c", True)]
