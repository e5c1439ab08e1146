"""The log of a whole run: the output of all tasks, ordered by time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow.telemetry import run_log, task_log_index
from aioflow.telemetry.run_log import BEGIN, RunLogFiles, RunSegment
from aioflow.telemetry.task_log_index import LogIndexes
from aioflow.telemetry.task_log_records import RecordScan, record_header


def write(folder: Path, task_index: int, *records: tuple[int, bytes]) -> RunSegment:
    """Write the output file of a task. A record consists of a time and data."""
    path = folder / f"{task_index}.0.log"
    data = [record_header(-1, 1, 1, at, len(text)) + text for at, text in records]
    path.write_bytes(b"".join(data))
    return RunSegment(task_index, 0, 0, path)


def reader() -> RunLogFiles:
    return RunLogFiles(LogIndexes())


def texts(pieces):
    return [piece.data for piece in pieces]


def test_records_of_tasks_are_merged_by_time(tmp_path):
    segments = [
        write(tmp_path, 0, (1, b"a"), (5, b"e")),
        write(tmp_path, 1, (2, b"b"), (4, b"d")),
        write(tmp_path, 2, (3, b"c")),
    ]
    found, is_end = reader().read(segments, BEGIN, 1_000)

    assert texts(found) == [b"a", b"b", b"c", b"d", b"e"]
    assert is_end


def test_reading_continues_after_any_record_also_where_times_are_equal(tmp_path):
    segments = [write(tmp_path, n, (7, b"%da" % n), (7, b"%db" % n)) for n in range(3)]
    whole, _ = reader().read(segments, BEGIN, 1_000)
    for at, piece in enumerate(whole):
        rest, _ = reader().read(segments, piece.key, 1_000)
        again, _ = reader().read(segments, piece.key.before(), 1_000)
        assert texts(rest) == texts(whole[at + 1 :])
        assert texts(again) == texts(whole[at:])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=5), st.integers(1, 5))
def test_pages_together_are_the_whole_and_each_task_keeps_its_order(tmp_path_factory, times, limit):
    """This holds even if a clock was set back, so that the times of a task are not in order."""
    folder = tmp_path_factory.mktemp("run")
    segments = [
        write(folder, index, *((at, b"%d.%d" % (index, n)) for n, at in enumerate(of_task)))
        for index, of_task in enumerate(times)
    ]
    files, after, found, is_end = reader(), BEGIN, [], False
    while not is_end:
        page, is_end = files.read(segments, after, limit)
        found += page
        after = page[-1].key if page else after

    for index, of_task in enumerate(times):
        own = [piece.data for piece in found if piece.key.task_index == index]
        assert own == [b"%d.%d" % (index, n) for n in range(len(of_task))]
    assert [piece.key for piece in found] == sorted(piece.key for piece in found)


def test_few_files_are_open_and_the_order_is_right_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(run_log, "_OPEN_FILES", 2)
    segments = [
        write(tmp_path, n, *((at * 10 + n, b"%d" % (at * 10 + n)) for at in range(4)))
        for n in range(9)
    ]
    found, _ = reader().read(segments, BEGIN, 1_000)

    assert texts(found) == [b"%d" % (at * 10 + n) for at in range(4) for n in range(9)]


def test_a_page_in_the_middle_of_a_large_file_does_not_read_it_from_its_beginning(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(task_log_index, "BLOCK_BYTES", 500)
    segment = write(tmp_path, 0, *((at, b"%03d" % at) for at in range(100)))
    files = reader()
    found, _ = files.read([segment], BEGIN, 1_000)
    starts: list[int] = []

    def scanning(file, position):
        starts.append(position)
        return RecordScan(file, position)

    monkeypatch.setattr(run_log, "RecordScan", scanning)
    rest, _ = files.read([segment], found[90].key, 1_000)

    assert texts(rest) == texts(found[91:])
    assert min(starts) > 70 * len(found[0].data + record_header(-1, 1, 1, 0, 0))


def test_a_file_that_was_deleted_and_begun_again_is_read_from_its_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(task_log_index, "BLOCK_BYTES", 500)
    segment = write(tmp_path, 0, *((at, b"%03d" % at) for at in range(100)))
    files = reader()
    found, _ = files.read([segment], BEGIN, 1_000)
    segment.path.unlink()
    write(tmp_path, 0, *((at, b"%03d" % at) for at in range(200, 210)))
    later, _ = files.read([segment], found[-1].key, 1_000)

    assert texts(later) == [b"%03d" % at for at in range(200, 210)]


def test_the_end_of_a_run_has_no_gaps(tmp_path, monkeypatch):
    monkeypatch.setattr(run_log, "_TAIL_BYTES", 400)
    segments = [
        write(tmp_path, 0, *((at, b"chatty %d" % at) for at in range(100))),
        write(tmp_path, 1, (1, b"early"), (95, b"late")),
    ]
    found, is_all = reader().read_end(segments)
    whole, _ = reader().read(segments, BEGIN, 10_000)

    assert not is_all
    assert texts(found) == texts(whole[-len(found) :])
    assert b"late" in texts(found)
    assert b"early" not in texts(found)


@pytest.mark.parametrize("cut", [1, 20, 36, 38])
def test_a_record_that_is_still_being_written_is_read_later(tmp_path, cut):
    segment = write(tmp_path, 0, (1, b"first"), (2, b"second"))
    whole = segment.path.read_bytes()
    one = len(record_header(-1, 1, 1, 1, 5)) + 5
    segment.path.write_bytes(whole[: one + cut])
    before, is_end = reader().read([segment], BEGIN, 1_000)
    segment.path.write_bytes(whole)
    after, _ = reader().read([segment], before[-1].key, 1_000)

    assert (texts(before), is_end) == ([b"first"], True)
    assert texts(after) == [b"second"]
