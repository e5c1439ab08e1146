"""Output of tries: stored per try, readable live, limited, and with every loss reported."""

from __future__ import annotations

import itertools
import os
from contextlib import aclosing

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioflow.clock import SystemClock
from aioflow.executors.worker_process import WorkerOutput
from aioflow.protocol.commands import StartTask
from aioflow.redaction import Masks
from aioflow.telemetry import task_log
from aioflow.telemetry.task_log import Attribution, LogKey, TaskLog
from aioflow.telemetry.task_log_records import LogPart
from aioflow.worker.stdio import IDLE
from tests.executors.processes import running

NONCE = "0123456789abcdef"


def key(task_index=0, map_index=-1, try_number=1, start_no=1):
    return LogKey(
        run_no=7,
        task_index=task_index,
        map_index=map_index,
        task_no=100 + task_index,
        start_no=start_no,
        try_number=try_number,
    )


def marker(task_no, start_no, nonce=NONCE):
    return f"\x1e{nonce} {task_no} {start_no}\n".encode()


async def written(folder, *outputs, **options):
    """Write ``(key, data)`` pairs with a separate log, each as one record."""
    log = TaskLog(folder, SystemClock(), **options)
    async with running(log):
        opened = {}
        for whose, data in outputs:
            await opened.setdefault(whose, log.open(whose)).write(data)
            await log.catch_up()
    return log


async def test_output_after_a_clear_is_separated_at_every_offset(tmp_path):
    tries = (
        (key(start_no=1), b"first"),
        (key(start_no=2), b" again"),
        (key(start_no=5), b"second"),
        (key(start_no=6, try_number=2), b" more"),
    )
    log = await written(tmp_path, *tries)
    part = LogPart(cleared=((0, b"<never>"), (2, b"<cleared>"), (9, b"<later>")))
    whole = b"first again<cleared>second more"

    assert await log.read(7, 0, part=part) == whole
    for offset in range(len(whole)):
        assert await log.read(7, 0, part=part, offset=offset) == whole[offset:]
        piece = await log.read(7, 0, part=part, offset=offset, limit=4)
        assert piece == whole[offset : offset + 4]
    assert await log.read(7, 0, part=LogPart(after=2)) == b"second more"
    assert await log.read(7, 0, part=LogPart(after=1, upto=5)) == b" againsecond"
    assert await log.read(7, 0, part=LogPart(after=2, try_number=1)) == b"second"


async def test_a_task_reads_what_it_printed(tmp_path):
    log = await written(tmp_path, (key(), b"one\n"), (key(task_index=1), b"x"), (key(), b"two\n"))

    assert await log.read(7, 0) == b"one\ntwo\n"
    assert await log.read(7, 0, offset=4) == b"two\n"
    assert await log.read(7, 0, offset=1, limit=3) == b"ne\n"
    assert await log.read(8, 0) == b""


async def test_tries_can_be_distinguished(tmp_path):
    log = await written(tmp_path, (key(), b"first"), (key(try_number=2, start_no=2), b"second"))

    assert await log.read(7, 0, part=LogPart(try_number=2)) == b"second"
    assert await log.read(7, 0) == b"firstsecond"


async def test_received_output_is_read_before_it_is_on_disk(tmp_path):
    log = TaskLog(tmp_path, SystemClock())
    async with running(log):
        opened = log.open(key())
        for number in range(50):
            opened.offer(b"%d\n" % number)
            assert (await log.read(7, 0)).endswith(b"%d\n" % number)
    assert log.written_bytes == len(await log.read(7, 0))


async def test_a_possible_start_of_a_secret_is_shown_once_the_worker_is_idle(tmp_path):
    masks = Masks()
    masks.hide(["hunter22"])
    log = TaskLog(tmp_path, SystemClock(), masks=masks)
    whose = StartTask(run_no=7, task_no=100, start_no=1, task_index=0, map_index=-1, try_number=1)
    async with running(log):
        printing = WorkerOutput(log, NONCE)
        printing.expect(whose)
        await printing.keep(marker(100, 1) + b"to the h")
        before = await log.read(7, 0)
        await printing.keep(marker(*IDLE))
        after = await log.read(7, 0)

    assert (before, after) == (b"to the ", b"to the h")


async def test_a_thousand_mapped_children_share_a_file(tmp_path):
    outputs = [(key(map_index=index), b"%d\n" % index) for index in range(1500)]
    log = await written(tmp_path, *outputs)

    assert sorted(path.name for path in tmp_path.rglob("*.log")) == ["0.0.log", "0.1.log"]
    assert await log.read(7, 0, 999) == b"999\n"
    assert await log.read(7, 0, 1000) == b"1000\n"


async def test_output_over_the_cap_is_dropped_and_that_is_said(tmp_path):
    log = await written(
        tmp_path, (key(), b"a" * 60), (key(), b"b" * 60), (key(), b"c"), cap_bytes=100
    )

    found = await log.read(7, 0)
    assert found.startswith(b"a" * 60 + b"b" * 40 + b"\n[aioflow: ")
    assert found.count(b"truncated") == 1
    assert b"c\n" not in found.replace(b"truncated", b"")


async def test_following_starts_with_what_exists_and_continues_live(tmp_path):
    log = TaskLog(tmp_path, SystemClock())
    async with running(log), aclosing(log.follow(7, 0)) as following:
        out = log.open(key())
        await out.write(b"early")
        assert await anext(following) == b"early"
        async with anyio.create_task_group() as group:
            group.start_soon(out.write, b"late")
            assert await anext(following) == b"late"


async def test_those_who_follow_one_log_continue_where_they_stopped_each_of_them(tmp_path):
    lines = [b"line %d\n" % number for number in range(3)]
    log = await written(tmp_path, *((key(), line) for line in lines))
    ahead, behind = log.reading(7, 0), log.reading(7, 0)
    assert await ahead(0, 14) == b"line 0\nline 1\n"
    assert await behind(0, 7) == b"line 0\n"

    # A reader that started again from the beginning would not find these lines.
    path = log.path(7, 0)
    data = path.read_bytes()
    path.write_bytes(b"\0" * 8 + data[8:])

    assert await ahead(14, None) == b"line 2\n"
    assert await behind(7, None) == b"line 1\nline 2\n"


async def test_a_log_requested_in_new_parts_is_continued_as_well(tmp_path):
    lines = [b"line %d\n" % number for number in range(20)]
    log = await written(tmp_path, *((key(), line) for line in lines))
    for limit in (7, 21, 35):
        assert await log.read(7, 0, limit=limit) == b"".join(lines)[:limit]

    path = log.path(7, 0)
    data = path.read_bytes()
    path.write_bytes(b"\0" * 8 + data[8:])

    assert await log.read(7, 0, offset=35, limit=7) == b"line 5\n"
    assert await log.read(7, 0, offset=7, limit=7) == b"line 1\n"
    assert await log.read(7, 0, offset=21, limit=7) == b"line 3\n"


async def test_a_full_disk_costs_output_and_nothing_else(tmp_path):
    log = TaskLog(tmp_path, SystemClock())
    async with running(log), aclosing(log.follow(7, 0)) as following:
        out, other = log.open(key()), log.open(key(task_index=1))
        log.path(7, 0).parent.mkdir(parents=True)
        log.path(7, 0).symlink_to("/dev/full")
        await out.write(b"lost")
        await other.write(b"kept")
        async with aclosing(log.follow(7, 1)) as others:
            assert await anext(others) == b"kept"
        log.path(7, 0).unlink()
        await out.write(b"back")
        found = await anext(following)

    assert b"output is missing" in found
    assert b"No space left" in found
    assert found.endswith(b"back")


async def test_a_writer_waits_while_the_disk_is_slow(tmp_path, monkeypatch):
    monkeypatch.setattr(task_log, "WAITING_BYTES", 1000)
    log = TaskLog(tmp_path, SystemClock())
    out = log.open(key())
    done = anyio.Event()

    async def write():
        await out.write(b"x" * 1000)
        done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        await anyio.wait_all_tasks_blocked()
        assert not done.is_set()  # nothing writes to the disk yet
        out.offer(b"dropped")
        async with running(log):
            await done.wait()
            out.offer(b"taken")
    found = await log.read(7, 0)
    assert b"too slow" in found
    assert b"dropped" not in found
    assert found.endswith(b"taken")


@pytest.mark.parametrize("cut", [1, 10, 35, 38])
async def test_after_a_torn_record_reading_continues_at_the_next(tmp_path, cut):
    log = await written(tmp_path, (key(), b"torn"))
    path = log.path(7, 0)
    os.truncate(path, path.stat().st_size - cut)

    await written(tmp_path, (key(), b"sound"), (key(), b"sounder"))

    assert (await log.read(7, 0)).endswith(b"sounder")


async def test_user_output_that_looks_like_a_record_is_only_output(tmp_path):
    nasty = b"\x1eLOG" * 50
    log = await written(tmp_path, (key(), nasty), (key(map_index=3), nasty), (key(), b"end"))

    assert await log.read(7, 0) == nasty + b"end"


# ── attribution ─────────────────────────────────────────────────────────────────────────


def attributed(chunks):
    parser = Attribution(NONCE)
    pieces = list(itertools.chain.from_iterable(map(parser.feed, chunks))) + parser.finish()
    found = {}
    for whose, data in pieces:
        found[whose] = found.get(whose, b"") + data
    return found


def test_output_belongs_to_the_marker_before_it():
    stream = b"import noise" + marker(1, 1) + b"a\n" + marker(2, 1) + marker(3, 2) + b"c"

    assert attributed([stream]) == {
        None: b"import noise",
        (1, 1): b"a\n",
        (2, 1): b"",
        (3, 2): b"c",
    }


BITS = [b"\x1e", b"a", b"\n", NONCE.encode(), b" 1", marker(9, 9, "f" * 16)]


@given(
    outputs=st.lists(
        st.lists(
            st.sampled_from([b"\x1e", b"a", b"\n", NONCE.encode(), b" 1", marker(9, 9, "f" * 16)])
        ).map(b"".join),
        max_size=4,
    ),
    cuts=st.lists(st.integers(0, 300), max_size=8),
)
def test_chunk_borders_make_no_difference(outputs, cuts):
    expected = {(n, 1): data for n, data in enumerate(outputs)}
    stream = b"".join(marker(n, 1) + data for n, data in enumerate(outputs))
    borders = [0, *sorted(cuts), len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(borders)]

    # User code does not know the nonce, so it cannot write a marker except by chance.
    if not any(marker(1, 1)[:18] in data for data in outputs):
        assert attributed(chunks) == expected


def test_ordinary_output_is_never_held_back():
    parser = Attribution(NONCE)

    assert parser.feed(b"progress 10 %\r") == [(None, b"progress 10 %\r")]
    assert parser.feed(b"\x1eother") == [(None, b"\x1eother")]


# ── retention ───────────────────────────────────────────────────────────────────────────


def left_by(log, run_no, at):
    path = log.path(run_no, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"printed")
    os.utime(path, (at, at))
    return path


async def test_logs_go_by_their_last_line_a_block_of_runs_at_a_time(tmp_path):
    log = TaskLog(tmp_path, SystemClock())
    old, young, live, other = (
        left_by(log, run_no, at)
        for run_no, at in ((1, 1_000), (2, 2_000), (3, 1_000), (1_001, 1_000))
    )

    assert await log.list_blocks() == [0, 1]
    would = await log.delete_old(0, before=1_500_000_000, retained={3}, dry_run=True)
    assert (would, old.exists()) == (1, True)
    assert await log.delete_old(0, before=1_500_000_000, retained={3}) == 1
    assert [path.exists() for path in (old, young, live, other)] == [False, True, True, True]
    assert await log.delete_old(1, before=1_500_000_000, retained=()) == 1
    assert await log.list_blocks() == [0]
    assert await log.delete_old(1, before=1_500_000_000, retained=()) == 0


async def test_an_index_that_a_reader_has_added_later_keeps_no_log(tmp_path):
    log = TaskLog(tmp_path, SystemClock())
    path = left_by(log, 1, 1_000)
    path.with_suffix(".index").touch()

    assert await log.delete_old(0, before=1_500_000_000, retained=()) == 1
    assert not path.parent.exists()


async def test_logs_that_cannot_be_deleted_keep_no_others(tmp_path, monkeypatch, caplog):
    log = TaskLog(tmp_path, SystemClock())
    paths = [left_by(log, run_no, 1_000) for run_no in (1, 2, 3)]
    delete = task_log._delete

    def refuse_one(folder):
        if folder.name == "2":
            raise PermissionError("a test says so")
        delete(folder)

    monkeypatch.setattr(task_log, "_delete", refuse_one)

    assert await log.delete_old(0, before=1_500_000_000, retained=()) == 2
    assert [path.exists() for path in paths] == [False, True, False]
    assert "a test says so" in caplog.text


async def test_what_is_known_to_be_written_to_stderr_is_stored_as_such(tmp_path):
    log = TaskLog(tmp_path, SystemClock())
    async with running(log):
        opened = log.open(key())
        opened.offer(b"out\n")
        opened.offer(b"err\n", is_stderr=True)
        pieces = await log.reading(7, 0).pieces(0, None)
        second = await log.reading(7, 0, part=LogPart(try_number=1)).pieces(2, 5)

    assert [(piece.data, piece.is_stderr) for piece in pieces] == [
        (b"out\n", False),
        (b"err\n", True),
    ]
    assert b"".join(piece.data for piece in second) == b"t\nerr"
